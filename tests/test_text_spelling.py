"""Where characters begin in the tokens is told from the bytes that tokens spell as it is from their offsets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.text import open_tokenizer
from packer.text.spelling import Spelling, can_be_spelled
from packer.text.tokens import TextTokens
from tests.chat_templates import WORDS, save_tokenizer, trained

pytest.importorskip("transformers")

pieces = st.sampled_from(
    [*WORDS, "<|im_start|>", "<|im_end|>", "</s>", "e\u0301", "q\u0302\u0323", "\u0958", "\u212b", "\u0301"]
)
texts = st.lists(pieces).map("".join) | st.text(st.characters(codec="utf-8"), max_size=20)
cut_texts = st.lists(
    texts.flatmap(lambda text: st.tuples(st.just(text), st.lists(st.integers(0, len(text)), max_size=5))), max_size=4
)


@pytest.fixture(scope="module", params=["made here", "qwen3"])
def tokens(request, tmp_path_factory):
    if request.param == "qwen3":
        path = request.getfixturevalue("shared_data") / "tokenizers" / "qwen3"
    else:
        path = save_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return TextTokens(open_tokenizer(str(path)))


@given(documents=cut_texts)
def test_what_tokens_spell_says_what_their_offsets_do(tokens, documents):
    given, cuts = [text for text, _ in documents], [at for _, at in documents]
    by_spelling = tokens.encode(given, cuts)
    spelling, tokens._spelling = tokens._spelling, None
    try:
        assert by_spelling == tokens.encode(given, cuts)
    finally:
        tokens._spelling = spelling


def test_a_text_that_is_changed_on_the_way_is_not_spelled(tokens):
    def places(text):
        return tokens._spelling.places([text], [tokens._backend.encode(text).ids], [[0, len(text)]])

    assert places("caf\u00e9 <|im_end|>") is not None
    for other in ("cafe\u0301", "q\u0302\u0323"):  # of another length, and of the same
        assert (places(other) is None) == (tokens._backend.normalizer is not None)


def with_part(**parts):
    """The tokenizer made here, with another part."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(json.dumps(json.loads(trained().to_str()) | parts))


def test_tokenizers_that_drop_or_add_something_are_asked_for_offsets():
    from tokenizers import AddedToken, Tokenizer, models

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False}
    assert can_be_spelled(with_part())
    assert can_be_spelled(with_part(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level]}))
    assert can_be_spelled(with_part(normalizer={"type": "NFC"}))
    assert not can_be_spelled(with_part(normalizer={"type": "Lowercase"}))
    assert not can_be_spelled(with_part(pre_tokenizer=byte_level | {"add_prefix_space": True}))
    assert not can_be_spelled(with_part(pre_tokenizer=None))
    assert not can_be_spelled(with_part(pre_tokenizer=split))
    removing = [split | {"behavior": "Removed"}, byte_level]
    assert not can_be_spelled(with_part(pre_tokenizer={"type": "Sequence", "pretokenizers": removing}))
    assert not can_be_spelled(with_part(pre_tokenizer={"type": "Sequence", "pretokenizers": [byte_level, byte_level]}))
    stripping = with_part()
    stripping.add_tokens([AddedToken("<mask>", lstrip=True)])
    assert not can_be_spelled(stripping)
    assert not can_be_spelled(Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")))


def test_every_byte_is_some_tokens():
    spelling = Spelling(trained())
    assert {token for token in spelling._bytes if len(token) == 1} >= {bytes([byte]) for byte in range(256)}
    assert b"<|im_start|>" in spelling._bytes
