"""Fixtures of tests that encode chats: a tokenizer that knows ChatML, and encoders, each opened once."""

import pytest

from packer.text.text_columns import recognize
from packer.text.text_encoder import Encoder
from tests.helpers.chat_templates import EXACT, auto_tokenizer, save_tokenizer, text_options

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=EXACT["chatml"])


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path):
    return auto_tokenizer(tokenizer_path)


@pytest.fixture(scope="module")
def encoder_of(tokenizer_path):
    """Function from a template and what is trained to an encoder of records with lists in these columns."""
    opened = {}

    def encoder(template, train_on=None, *, columns=("messages", "tools", "chat_template_kwargs"), exchanges=False):
        key = template, train_on, tuple(columns), exchanges
        if key not in opened:
            options = text_options(tokenizer=tokenizer_path, chat_template=template, train_on=train_on)
            opened[key] = Encoder(options, recognize({name: [] for name in columns}, "chats"), exchanges=exchanges)
        return opened[key]

    return encoder
