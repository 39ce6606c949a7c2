"""Tokens by gigatoken: those of the library, and nothing of it is kept once a document differs."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import packer
from packer.errors import SourceError
from packer.text import tokens as tokens_module
from packer.text.tokenizer import open_tokenizer, train_byte_level
from packer.text.tokens import Texts, TextTokens, by_library
from tests.helpers.kills import Killed, kill
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines

tokenizers = pytest.importorskip("tokenizers")
needs_gigatoken = pytest.mark.skipif(tokens_module.gigatoken_version() is None, reason="gigatoken is not installed")


ALPHABET = [
    "ab",
    " ",
    "  ",
    "\n",
    "'s",
    "12345",
    "e\u0301",
    "\u4e2d\u6587",
    "\U0001f600\u200d",
    "\u0928\u092e",
    "<|im_end|>",
]


def odd_texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(ALPHABET, k=draw.randrange(40))) for _ in range(count)]


def kinds():
    """Byte-level tokenizers built of the library's parts, by name."""
    from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

    from tests.helpers.chat_templates import trained

    def made(**parts):
        tokenizer = tokenizers.Tokenizer.from_str(trained().to_str())
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        return tokenizer

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    strips = made()
    strips.add_tokens(
        [AddedToken("12", lstrip=True, rstrip=True), AddedToken("ab", single_word=True, normalized=False)]
    )
    digits = pre_tokenizers.Digits(individual_digits=True)
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+|[^\s\p{N}]+"), "isolated")
    return {
        "plain": made(),
        "prefix space": made(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "digits": made(pre_tokenizer=pre_tokenizers.Sequence([digits, byte_level])),
        "split": made(pre_tokenizer=pre_tokenizers.Sequence([split, byte_level])),
        "NFC": made(normalizer=normalizers.NFC()),
        "NFKC, lower case": made(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
        "added tokens that strip": strips,
    }


@pytest.fixture(scope="module", params=["plain", "prefix space", "digits", "split", "NFC", "NFKC, lower case",
                                        "added tokens that strip", "qwen3", "bert_uncased"])  # fmt: skip
def tokens(request, tmp_path_factory) -> TextTokens:
    if request.param in ("qwen3", "bert_uncased"):
        return TextTokens(open_tokenizer(str(request.getfixturevalue("shared_data") / "tokenizers" / request.param)))
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    kinds()[request.param].save(str(path))
    return TextTokens(open_tokenizer(str(path)))


def test_tokens_and_places_are_those_of_the_library(request, tokens, monkeypatch):
    """However they are found: by gigatoken, by the bytes of tokens, or by offsets."""
    shrink(monkeypatch, fast_characters=1)
    draw = random.Random(1)
    texts = odd_texts(700)
    starts = [(at, start) for at, text in enumerate(texts) for start in draw.choices(range(len(text) + 1), k=4)]
    starts = np.array(starts)
    expected = tokens._with_offsets(texts, starts[:, 1], starts[:, 0])
    for places in (True, False):
        found = tokens.encode(Texts(texts, np.arange(len(texts)), exchange_starts=starts if places else starts[:0]))
        assert np.array_equal(found.ids, expected.ids)
        assert np.array_equal(found.ends, expected.ends)
        if request.node.callspec.params["tokens"] == "qwen3" and tokens_module.gigatoken_version():
            assert found.by_gigatoken
        if places:
            assert np.array_equal(found.places.tokens, expected.places.tokens)
            assert np.array_equal(found.places.inside, expected.places.inside)


OTHERS = [  # which a library with older tables of Unicode does not order or compose
    "\u0c1c\u0c4d\u0c3c",
    "\u0644\u0898\u064e",
    "z\u0302\u1df6\u0323",
    "\U000105d2\u0307",
    "a\u0301\u08ca\u0323",
    "\u0d15\u0d4d\u0d3b",
    "o\u1ac1\u0328",
    "\U000113c2\U000113c2",
    "\U00016d63\U00016d67",
]
PARTS = [
    *("a", "the", " ", "\n", "1", "!", "'s", "e\u0301", "\u0323", "\u0302", "\u0307", "\u093c", "\u064e", "\u1100"),
    *("\u1161", "\uac00", "\u11a8", "\u0915", "\u0f71", "\u0f72", "\u4e2d", "\U0001f970", "\u212b", "\ufb2a"),
    *("\u2adc", "\u0344", "\u0c4d", "\u0345", "\u0334", "\u1e9b", "\u05d0", "\u05b7", "\u0b47", "\u0b3e", "\u09be"),
]


@pytest.mark.nightly(after=1)
@needs_gigatoken
@pytest.mark.parametrize("name", ["NFC", "qwen3"])
def test_texts_with_characters_of_later_versions_of_unicode_have_the_tokens_of_the_library(
    name, tmp_path, shared_data, monkeypatch
):
    shrink(monkeypatch, fast_characters=1)
    path = shared_data / "tokenizers" / name
    if name == "NFC":
        kinds()[name].save(str(path := tmp_path / "tokenizer.json"))
    tokens = TextTokens(open_tokenizer(str(path)))
    draw = random.Random(3)
    drawn = ["".join(draw.choices(PARTS, k=draw.randrange(1, 9))) for _ in range(20_000)]
    mixed = ["".join(draw.choices([*PARTS, *OTHERS], k=draw.randrange(1, 9))) for _ in range(5_000)]
    tokens.fast._left_to_compare = 0
    for texts, others in ((drawn, 0), ([*OTHERS, *mixed], len(OTHERS))):  # characters are compared when they occur
        found = tokens.encode(Texts(texts, np.arange(len(texts))))
        ids, ends = by_library(tokens.backend, texts)
        assert np.array_equal(found.ends, ends)
        assert np.array_equal(found.ids, ids)
        assert 1_000 < found.by_gigatoken <= len(texts) - others


@needs_gigatoken
@pytest.mark.parametrize(
    ("normalizer", "added", "written"),
    [
        ("NFC", "vi\u1ec7t", "vie\u0323\u0302t"),
        ("NFD", "pho\u031b\u0309", "ph\u1edf"),
        ("NFKC", "fin", "\ufb01n"),
        ("Lowercase", "abc", "ABC"),
        ("StripAccents", "cafe", "cafe\u0301"),
    ],
)
def test_text_that_the_normalizer_turns_into_an_added_token_has_the_tokens_of_the_library(
    normalizer, added, written, tmp_path, monkeypatch
):
    from tokenizers import normalizers

    from tests.helpers.chat_templates import trained

    shrink(monkeypatch, fast_characters=1)
    made = tokenizers.Tokenizer.from_str(trained().to_str())
    made.normalizer = getattr(normalizers, normalizer)()
    made.add_tokens([added])
    made.save(str(tmp_path / "tokenizer.json"))
    tokens = TextTokens(open_tokenizer(str(tmp_path / "tokenizer.json")))
    tokens.fast._left_to_compare = 0  # as behind the first documents of a corpus
    text = f"a {written} b{written}"
    assert np.array_equal(tokens.encode(Texts([text], np.arange(1))).ids, by_library(tokens.backend, [text])[0])


def test_a_character_that_occurs_later_is_compared_before_gigatoken_tokenizes_it(tokenizer, tmp_path, monkeypatch):
    """A way that drops one letter tokenizes all documents but the one with this letter, which comes later."""

    def drops(backend):
        return lambda texts: by_library(backend, [text.replace("\u01c3", "") for text in texts])

    texts = ["fox " * 5 + "\u01c3" * (at == 3500) for at in range(4000)]
    source = write_lines(tmp_path / "letters.jsonl", [{"text": text} for text in texts])
    monkeypatch.setattr(tokens_module, "gigatoken_version", lambda: None)
    expected, _ = packed(source, tokenizer, tmp_path / "expected")
    monkeypatch.setattr(tokens_module, "gigatoken_version", lambda: "0")
    shrink(monkeypatch, fast_characters=1, first_characters=0, compared_documents=1 << 62)
    shrink(monkeypatch, piece=1 << 15, record_block=1 << 13)
    monkeypatch.setattr(tokens_module, "load", drops)
    found, totals = packed(source, tokenizer, tmp_path / "found")
    assert found == expected
    assert totals.documents_by_gigatoken == 3999


def test_gigatoken_is_loaded_for_large_files_only_or_once_compressed_ones_were_long(
    texts, tokenizer, tmp_path, monkeypatch
):
    size = texts.stat().st_size
    packed_texts = tmp_path / "texts.jsonl.gz"
    packed_texts.write_bytes(gzip.compress(texts.read_bytes()))
    monkeypatch.setattr(tokens_module, "gigatoken_version", lambda: "0")
    monkeypatch.setattr(tokens_module, "load", without_merge("never"))
    monkeypatch.setattr(tokens_module, "hard_texts", lambda settings: ["plain"])
    shrink(monkeypatch, piece=1 << 15, record_block=1 << 13)
    for source, enough, some in ((texts, size + 1, False), (texts, size, True), (packed_texts, size // 2, True)):
        shrink(monkeypatch, fast_characters=enough)
        _, totals = packed(source, tokenizer, tmp_path / f"{source.name}-{enough}")
        assert bool(totals.documents_by_gigatoken) == some
    assert totals.documents_by_gigatoken < 4000


def test_the_first_documents_are_compared_to_their_ends(texts, tokenizer, tmp_path, monkeypatch, caplog):
    source = tmp_path / "long.jsonl"
    source.write_text(json.dumps({"text": "the quick brown fox " * 500 + "jumps"}) + "\n")
    monkeypatch.setattr(tokens_module, "gigatoken_version", lambda: "0")
    shrink(monkeypatch, fast_characters=1)
    shrink(monkeypatch, compared_documents=1 << 62)
    monkeypatch.setattr(tokens_module, "load", without_merge("Ġjumps"))
    monkeypatch.setattr(tokens_module, "hard_texts", lambda settings: ["plain"])
    with pytest.raises(SourceError, match="gigatoken gives other tokens than tokenizers for a document"):
        packed(source, tokenizer, tmp_path / "found")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A source in several pieces, in which a word stands in the second half only."""
    path = tmp_path_factory.mktemp("source") / "texts.jsonl"
    words = [" ".join(["the quick brown fox"] * (3 + at % 5) + ["jumps"] * (at == 3500)) for at in range(4000)]
    return write_lines(path, [{"text": text} for text in words])


def packed(source: Path, tokenizer: str, out: Path):
    result = packer.pack(source, out, max_len=64, tokenizer=tokenizer, eos=False, sync=False)
    return {path.name: path.read_bytes() for path in out.glob("*.arrow")}, result.totals


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_byte_level(["the quick brown fox jumps"] * 4, 300).save(str(path))
    return str(path)


def without_merge(planted: str):
    """Load the library's tokenizer instead of gigatoken's, without a merge that gives this token."""

    def load(backend):
        other = json.loads(backend.to_str())
        (merge,) = [merge for merge in other["model"]["merges"] if "".join(merge) == planted] or [None]
        if merge is not None:
            other["model"]["merges"].remove(merge)
        broken = tokenizers.Tokenizer.from_str(json.dumps(other))
        return lambda given: by_library(broken, given)

    return load


@pytest.mark.nightly(after=1)
@needs_gigatoken
@pytest.mark.parametrize("begins_with", ["gigatoken", "tokenizers"])
def test_a_pack_that_resumes_the_other_way_has_the_same_bytes(texts, tokenizer, tmp_path, monkeypatch, begins_with):
    shrink(monkeypatch, fast_characters=1)
    shrink(monkeypatch, piece=1 << 15, record_block=1 << 13)
    ways = {"gigatoken": "1", "tokenizers": "0"}
    whole = {}
    for way, switch in ways.items():
        monkeypatch.setenv(tokens_module.SWITCH, switch)
        whole[way], totals = packed(texts, tokenizer, tmp_path / way)
        assert totals.documents_by_gigatoken == (4000 if way == "gigatoken" else None)
    assert whole["gigatoken"] == whole["tokenizers"]
    monkeypatch.setenv(tokens_module.SWITCH, ways.pop(begins_with))
    with monkeypatch.context() as striking:
        kill(striking, r"00000-00002\.json$", after=True)
        with pytest.raises(Killed):
            packed(texts, tokenizer, tmp_path / "out")
    monkeypatch.setenv(tokens_module.SWITCH, *ways.values())
    found, totals = packed(texts, tokenizer, tmp_path / "out")
    assert found == whole["gigatoken"]
    assert 0 < totals.documents_by_gigatoken < 4000


@pytest.mark.nightly
@needs_gigatoken
def test_ranks_with_and_without_gigatoken_write_the_bytes_of_one_process(texts, tokenizer, tmp_path, monkeypatch):
    expected, _ = packed(texts, tokenizer, tmp_path / "one")
    shrink(monkeypatch, everywhere=True, fast_characters=1, piece=1 << 15)
    out = tmp_path / "out"
    words = ["pack", texts, "-o", out, "--max-len", "64", "--tokenizer", tokenizer, "--no-eos"]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "packer", *map(str, words), "--ranks", f"{rank}/2"],
            env={**os.environ, tokens_module.SWITCH: str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=300) for process in running] == [0, 0]
    assert {path.name: path.read_bytes() for path in out.glob("*.arrow")} == expected
    assert 0 < packer.load(out).manifest.totals.documents_by_gigatoken < 4000


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("wrong", ["somewhere", "nowhere", "everywhere"])
def test_nothing_is_kept_of_a_way_that_gives_another_token(texts, tokenizer, tmp_path, monkeypatch, wrong):
    """A merge of a planted way is another one: where that shows, packing fails, and without it begins anew."""
    monkeypatch.setattr(tokens_module, "gigatoken_version", lambda: None)
    expected, _ = packed(texts, tokenizer, tmp_path / "expected")
    monkeypatch.setattr(tokens_module, "gigatoken_version", lambda: "0")
    shrink(monkeypatch, fast_characters=1, compared_documents=1, piece=1 << 15, record_block=1 << 13)
    planted = {"nowhere": "never", "somewhere": "\u0120jumps", "everywhere": "\u0120fox"}[wrong]
    monkeypatch.setattr(tokens_module, "load", without_merge(planted))
    monkeypatch.setattr(tokens_module, "hard_texts", lambda settings: ["plain"])
    if wrong != "nowhere":
        with pytest.raises(SourceError, match="set PACKER_GIGATOKEN=0, and repeat the command"):
            packed(texts, tokenizer, tmp_path / "found")
        monkeypatch.setenv(tokens_module.SWITCH, "0")
    found, totals = packed(texts, tokenizer, tmp_path / "found")
    assert found == expected
    assert totals.documents_by_gigatoken == (4000 if wrong == "nowhere" else None)


@needs_gigatoken
def test_a_tokenizer_that_gigatoken_does_not_know_is_said_in_one_line(tmp_path, monkeypatch, caplog, capfd):
    caplog.set_level("INFO", logger="packer.text")
    shrink(monkeypatch, fast_characters=1)
    kinds()["NFKC, lower case"].save(str(tmp_path / "tokenizer.json"))
    tokens = TextTokens(open_tokenizer(str(tmp_path / "tokenizer.json")))
    assert tokens.encode(Texts(["fox"], np.arange(1))).by_gigatoken == 0
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("tokenizers is used instead of gigatoken: ")
    assert len(said.splitlines()) == 1
    assert capfd.readouterr().err == ""
