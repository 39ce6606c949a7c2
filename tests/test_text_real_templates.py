"""Published chat templates on real chats: the fast way finds what the slow twin finds, token by token.

Where gigatoken is installed, it tokenizes; the twin takes the tokens of transformers.
"""

from datetime import datetime

import pytest

from packer.sources.documents import DocumentError
from packer.text import chat_template as chat_template_module
from packer.text import tokens as tokens_module
from packer.text.text_columns import recognize
from packer.text.text_encoder import Encoder
from packer.text.tokenizer import of_transformers
from tests.helpers import naive_chats
from tests.helpers.chat_templates import auto_tokenizer, lists, text_options, trained_at
from tests.helpers.small import shrink

pytest.importorskip("transformers")
from tests.helpers.text_real_templates import TEMPLATES, chats

REFUSALS = (
    "appends a generation prompt, or a part of one",
    "renders the last turn differently, or not at all, when another follows",
    "generation marks hold nothing",
)
"""Why chats are refused in which no rendering of a beginning contradicts the whole."""


FARTHEST = 80
"""Characters between the beginning of an exchange and the question in it."""


class OneDay(datetime):
    """The clock of transformers' templates, on the day that packer's have."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


@pytest.fixture(autouse=True)
def _one_day(monkeypatch):
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", OneDay)


@pytest.fixture(scope="module")
def tokenizer(shared_data):
    return auto_tokenizer(str(shared_data / "tokenizers" / "qwen3"))


@pytest.fixture(scope="module")
def encoder(tokenizer):
    options = text_options(tokenizer=tokenizer.name_or_path)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, fast_characters=1)
        yield Encoder(options, recognize({"messages": [], "tools": []}, "chats"), exchanges=True)


def expected(tokenizer, template, record):
    """(tokens, trained tokens, exchanges) by the twin; trained is None if it cannot be told.

    Exchanges are (message, token with which it begins), None if no rendering shows that.
    """
    messages, tools = record["messages"], record.get("tools")
    render = naive_chats.renderer(tokenizer, template, tools)
    masked = {turn for turn, message in enumerate(messages) if message.get("weight") == 0}
    whole = render(messages, prompt=False)
    starts = naive_chats.exchange_starts(render, messages)
    for first, start in starts.items():
        if start is not None:
            (starts[first],) = naive_chats.tokens_of_starts(tokenizer, whole, [start])
    wanted = naive_chats.assistant_characters(render, messages, masked)
    ids, trained = naive_chats.tokens_of_characters(tokenizer, whole, wanted or [False] * len(whole))
    return ids, None if wanted is None else trained, starts


def attempt(encoder, record):
    """A record as tokens, or why it is refused."""
    try:
        return encoder.encode([record]), ""
    except DocumentError as error:
        return None, error.message


@pytest.mark.nightly(after=10)
@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_masks_and_exchanges_are_the_twins(shared_data, tokenizer, encoder, name):
    template = TEMPLATES[name]
    encoder._template = chat_template_module.ChatTemplate(
        of_transformers(tokenizer), template
    )  # opening a tokenizer takes a second
    source = template or tokenizer.chat_template
    for record in chats(shared_data):
        if naive_chats.renderer(tokenizer, template, record.get("tools"))(record["messages"], prompt=False) is None:
            with pytest.raises(DocumentError, match="does not render"):
                encoder.encode([record])
            continue
        ids, trained, starts = expected(tokenizer, template, record)
        encoded, refused = attempt(encoder, record)
        if encoded is None:
            assert trained is None or any(reason in refused for reason in REFUSALS), refused
            continue
        assert encoded.counts["fast"] == (tokens_module.gigatoken_version() is not None)
        assert lists(encoded.input_ids) == [ids]
        begin, *found = lists(encoded.extra["exchange_starts"])[0]
        assert begin == 0
        assert len(found) == len(starts)
        for (first, start), at in zip(starts.items(), found, strict=True):
            is_of_tool = record["messages"][first - 1]["role"] == "tool"  # which some templates close with what follows
            assert start is None or (at <= start if is_of_tool else at == start)
            rest, content = tokenizer.decode(ids[at:]), record["messages"][first]["content"].strip()
            assert 0 <= rest.find(content) < FARTHEST or content not in tokenizer.decode(ids)
        found = trained_at(lists(encoded.labels)[0])
        if "{% generation %}" not in source and "{%- generation" not in source:
            assert found == trained
        elif record["messages"][-1].get("weight") is None and all("weight" not in m for m in record["messages"]):
            theirs = tokenizer.apply_chat_template(
                record["messages"],
                tools=record.get("tools"),
                chat_template=template,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            assert found == [at for at, trained_here in enumerate(theirs["assistant_masks"]) if trained_here]
