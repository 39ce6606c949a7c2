"""Text and chats to tokens and labels; `tokenizers` is imported on use, `transformers` only if it is needed.

text_columns.py          columns that hold a text, a prompt and its completion, or a conversation
messages.py              checks of the values in these columns
conversations.py         records to conversations; messages that are context only
rendering.py             conversations to text, by a chat template
message_ends/            where messages end in the rendered text, and what the assistant wrote
tokens.py                text to tokens, and the tokens at which given characters begin
word_tokens.py           the same with a memory of words, for machines with few cores
token_places.py          the token at which a character begins
text_encoder.py          records to tokens and labels, batch by batch
pair_columns.py          columns that hold preference pairs
pair_encoder.py          preference pairs to tokens and labels
tokenizer_identity.py    what shapes the tokens, for a manifest
load_tokenizer.py        tokenizers by path or Hub id
tokenizer.py             a tokenizer, with transformers or without
tokenizer_files.py       tokenizers that are opened by their files, without transformers
template_environment.py  chat templates, compiled as transformers does
train_tokenizer.py       a small byte-level tokenizer, trained in place
"""

from packer.text.load_tokenizer import open_decoder, open_tokenizer
from packer.text.messages import TextError
from packer.text.pair_columns import recognize_pairs
from packer.text.pair_encoder import PairEncoder
from packer.text.text_columns import TRAIN_ON, Records, recognize
from packer.text.text_encoder import Encoded, Encoder, TextOptions
from packer.text.train_tokenizer import END_OF_TEXT, train_byte_level

__all__ = [
    "END_OF_TEXT",
    "TRAIN_ON",
    "Encoded",
    "Encoder",
    "PairEncoder",
    "Records",
    "TextError",
    "TextOptions",
    "open_decoder",
    "open_tokenizer",
    "recognize",
    "recognize_pairs",
    "train_byte_level",
]
