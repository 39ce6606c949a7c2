"""Text and chats to tokens and labels; `tokenizers` and `transformers` are imported on use.

records.py             which columns hold what, and checks of their values
conversations.py       records to conversations, and which of their messages are context only
rendering.py           conversations to text
chats.py               what of it the assistant wrote, and where turns begin
generation_prompts.py  what a template appends behind the last message
marks.py               where a template marks what the assistant wrote
loops.py               where each message ends, of templates that write one after the other
ahead.py               what in a template may look at later ones
tokens.py              text to tokens, and where in them a character begins
spelling.py            told by the bytes that tokens spell
encoder.py             all of it, batch by batch
identity.py            what shapes the tokens, for a manifest
opening.py             tokenizers by path or Hub id
byte_level.py          a tokenizer trained in place
"""

from packer.text.byte_level import END_OF_TEXT, train_byte_level
from packer.text.encoder import Encoded, Encoder, TextOptions
from packer.text.opening import open_decoder, open_tokenizer
from packer.text.records import TRAIN_ON, Records, TextError, recognise

__all__ = [
    "END_OF_TEXT",
    "TRAIN_ON",
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
