"""Text and chats to tokens and labels; `tokenizers` and `transformers` are imported on use.

records.py     which columns hold what, and checks of their values
chats.py       conversations to text, and what of it the assistant wrote
tokens.py      text to tokens, and where in them a character begins
encoder.py     all of it, batch by batch
identity.py    what shapes the tokens, for a manifest
opening.py     tokenizers by path or Hub id
byte_level.py  a tokenizer trained in place
"""

from packer.text.byte_level import END_OF_TEXT, train_byte_level
from packer.text.encoder import Encoded, Encoder, TextOptions
from packer.text.opening import open_decoder, open_tokenizer
from packer.text.records import Records, TextError, recognise

__all__ = [
    "END_OF_TEXT",
    "Encoded",
    "Encoder",
    "Records",
    "TextError",
    "TextOptions",
    "open_decoder",
    "open_tokenizer",
    "recognise",
    "train_byte_level",
]
