"""Tokens by a memory of words are the library's, token by token, and so are the places of characters."""

import json
import pickle
import re
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.text import Encoder, TextOptions, recognize
from packer.text.token_places import place_of
from packer.text.tokenizer_content import content_of
from packer.text.word_tokens import WORDS, in_ascii, is_quicker, word_tokens
from tests.chat_templates import EXACT, MARKED, save_tokenizer, trained
from tests.chat_templates import WORDS as SENTENCE

tokenizers = pytest.importorskip("tokenizers")

ASCII = "".join(map(chr, range(128)))


@cache
def made(model):
    """A tokenizer with the words of a model."""
    tokenizer = tokenizers.Tokenizer.from_str(trained().to_str())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    if model != "GPT-2":
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS[model]), "isolated")
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, byte_level(False, use_regex=False)])
    if model == "Qwen2":
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in ("<|im_start|>x", "fo", "  ")])
    tokenizer.add_special_tokens(["\n\n"])
    return tokenizer


def words_of(tokenizer):
    return word_tokens(tokenizer, content_of(tokenizer).settings)


def check(tokenizer, texts, cuts):
    words = words_of(tokenizer)
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    assert words.encode(texts, None) == [(encoding.ids, []) for encoding in encodings]
    places = [
        [place_of(encoding, cut, len(text)) for cut in at]
        for encoding, text, at in zip(encodings, texts, cuts, strict=True)
    ]
    assert words.encode(texts, cuts) == [(e.ids, places) for e, places in zip(encodings, places, strict=True)]


# ---- words ----


@pytest.mark.parametrize("model", WORDS)
def test_words_are_found_in_ascii_as_the_library_finds_them(model):
    """All texts of a few characters, one of each kind that the patterns tell apart, and all pairs of characters."""
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS[model]), "isolated")
    if model == "GPT-2":
        split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    find = re.compile(in_ascii(WORDS[model])).findall
    texts = ["".join(letters) for letters in product("aS'1 \n\r\t\x0b\x1c!", repeat=4)]
    texts += ["".join(pair) for pair in product(ASCII, repeat=2)]
    texts += [f"I'{end}x 'LL'vE {end}'{end}" for end in ("s", "t", "re", "ve", "m", "ll", "d", "S", "RE", "D")]
    for text in texts:
        spans = [span for _, span in split.pre_tokenize_str(text)]
        assert find(text) == [text[start:end] for start, end in spans], repr(text)


# ---- tokens and places ----

pieces = st.sampled_from(
    [
        *(
            "fox",
            "The quick",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\r\n",
            "\t",
            "42",
            "1234567",
            "'s",
            "'LL",
            "!?",
            "_",
            "\x00",
            "\x1c",
        ),
        *("<|im_start|>", "<|im_start|>x", "<|im_end|>", "<|im_", "fo", "</s>", "<s>", "\x7f"),
        *("é", "e\u0301", "中文", "😀", "\u0301", "\u017f", "\u00a0", "\u2028", "\ufb01"),
    ]
)
texts = st.lists(pieces | st.text(ASCII, max_size=5) | st.text(max_size=3), max_size=12).map("".join)
texts = texts.filter(lambda text: text.encode(errors="replace").decode() == text)


@pytest.mark.parametrize("model", WORDS)
@given(documents=st.lists(texts, min_size=1, max_size=4), data=st.data())
@settings(deadline=None, max_examples=60)
def test_tokens_and_places_are_those_of_the_library(model, documents, data):
    cuts = [data.draw(st.lists(st.integers(0, len(text)), max_size=6)) for text in documents]
    check(made(model), documents, cuts)


@pytest.mark.parametrize("model", WORDS)
def test_every_place_of_long_texts(model):
    text = SENTENCE * 20 + "<|im_start|>user\nfo" + "x" * 500 + "\n" * 90
    check(made(model), [text, ""], [range(len(text) + 1), [0]])


def test_more_words_than_are_remembered(monkeypatch):
    monkeypatch.setattr("packer.text.word_tokens._MOST", 3)
    monkeypatch.setattr("packer.text.word_tokens._LONGEST", 5)
    check(made("GPT-2"), [SENTENCE, SENTENCE[::-1]], [[5], [7, 3]])


def test_a_copy_in_another_process_does_the_same():
    words = words_of(made("Qwen2"))
    wanted = words.encode([SENTENCE], [[9]])
    assert pickle.loads(pickle.dumps(words)).encode([SENTENCE], [[9]]) == wanted


# ---- which tokenizers ----


def changed(**parts):
    tokenizer = tokenizers.Tokenizer.from_str(made("Llama 3").to_str())
    for name, value in parts.items():
        setattr(tokenizer, name, value)
    return tokenizer


def with_token(**flags):
    tokenizer = changed()
    tokenizer.add_tokens([tokenizers.AddedToken("<new>", **{"normalized": False, **flags})])
    return tokenizer


def without_a_byte():
    content = json.loads(trained().to_str())
    vocab = content["model"]["vocab"]
    number = vocab.pop("\u0100")  # the character 0
    content["model"]["vocab"] = {token: at - (at > number) for token, at in vocab.items()}
    content["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def test_real_tokenizers_are_known(shared_data):
    qwen3, bert = (
        tokenizers.Tokenizer.from_file(str(shared_data / "tokenizers" / name / "tokenizer.json"))
        for name in ("qwen3", "bert_uncased")
    )
    qwen3.post_processor = None
    check(qwen3, [SENTENCE * 3, "<tool_call>\n{}\n</tool_call><|im_end|>\n"], [[4, 50], [12, 20]])
    assert words_of(bert) is None


def test_tokenizers_of_other_kinds_are_left_to_the_library():
    normalizers, pre = tokenizers.normalizers, tokenizers.pre_tokenizers
    other = [pre.Split(tokenizers.Regex(r"\s+"), "isolated"), pre.ByteLevel(False, use_regex=False)]
    removed = [pre.Split(tokenizers.Regex(WORDS["Llama 3"]), "removed"), pre.ByteLevel(False, use_regex=False)]
    assert words_of(with_token()) is not None
    for tokenizer in (
        changed(normalizer=normalizers.Lowercase()),
        changed(normalizer=normalizers.Sequence([normalizers.NFC()])),
        changed(pre_tokenizer=pre.ByteLevel(add_prefix_space=True)),
        changed(pre_tokenizer=pre.ByteLevel(add_prefix_space=False, use_regex=False)),
        changed(pre_tokenizer=pre.Metaspace()),
        changed(pre_tokenizer=pre.Sequence(other)),
        changed(pre_tokenizer=pre.Sequence(removed)),
        changed(pre_tokenizer=pre.Sequence([*other, pre.Digits()])),
        changed(pre_tokenizer=None),
        changed(model=tokenizers.models.BPE(dropout=0.5)),
        changed(model=tokenizers.models.WordLevel({"a": 0}, "a")),
        with_token(normalized=True),
        with_token(lstrip=True),
        with_token(rstrip=True),
        with_token(single_word=True),
        without_a_byte(),
    ):
        assert words_of(tokenizer) is None


@pytest.mark.parametrize(("name", "value"), [("RAYON_NUM_THREADS", "1"), ("TOKENIZERS_PARALLELISM", "false")])
def test_the_memory_serves_where_few_cores_are_there(tmp_path, monkeypatch, name, value):
    """Both ways make the same tokens and labels of chats."""
    path = save_tokenizer(tmp_path)
    roles = ("system", "user", "assistant", "user", "assistant")
    chats = [{"messages": [{"role": role, "content": SENTENCE[at:]} for role in roles]} for at in range(0, 90, 7)]
    for template in (EXACT["chatml"], MARKED["marked"]):
        made = {}
        for cores in (1, 64):
            monkeypatch.setattr("packer.text.word_tokens.available_workers", lambda cores=cores: cores)
            options = TextOptions(tokenizer=path, chat_template=template)
            made[cores] = Encoder(options, recognize(chats[0], "x"), turns=True)
            assert is_quicker() == (made[cores]._tokens._words is not None) == (cores == 1)
        assert made[1].encode(chats) == made[64].encode(chats)
    monkeypatch.setenv(name, value)
    assert is_quicker()
