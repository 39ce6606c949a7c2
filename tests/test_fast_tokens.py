"""Tokens by gigatoken: those of the library, and nothing of it is kept once a document differs."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import packer
from packer.text import fast_tokens
from packer.text.fast_tokens import by_library
from packer.text.load_tokenizer import open_tokenizer
from packer.text.tokenizer import train_byte_level
from packer.text.tokens import MarkedText, Places, TextTokens
from tests.kills import Killed, kill
from tests.small import shrink

tokenizers = pytest.importorskip("tokenizers")
needs_gigatoken = pytest.mark.skipif(fast_tokens.version() is None, reason="gigatoken is not installed")

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

    from tests.chat_templates import trained

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


def test_tokens_and_places_are_those_of_the_library(tokens, monkeypatch):
    """However they are found: by gigatoken, by the bytes of tokens, or by offsets."""
    shrink(monkeypatch, fast_characters=1)
    draw = random.Random(1)
    texts = odd_texts(2000)
    marked = [MarkedText(text, None, sorted(draw.choices(range(len(text) + 1), k=4))) for text in texts]
    expected = tokens._with_offsets(texts, [one.places for one in marked])
    for places in (True, False):
        found = tokens.encode(marked, places=places)
        assert found.differing is None
        assert np.array_equal(found.ids, expected.ids)
        assert np.array_equal(found.ends, expected.ends)
        if places:
            assert isinstance(found.places, Places)
            assert np.array_equal(found.places.tokens, expected.places.tokens)
            assert np.array_equal(found.places.inside, expected.places.inside)


@needs_gigatoken
def test_gigatoken_serves_qwen3(shared_data, monkeypatch):
    shrink(monkeypatch, fast_characters=1)
    tokens = TextTokens(open_tokenizer(str(shared_data / "tokenizers" / "qwen3")))
    assert tokens.encode([MarkedText("Hello")], places=True).is_fast


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A source in several pieces, in which a word stands in the second half only."""
    path = tmp_path_factory.mktemp("source") / "texts.jsonl"
    words = [" ".join(["the quick brown fox"] * (3 + at % 5) + ["jumps"] * (at == 3500)) for at in range(4000)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in words))
    return path


def packed(source: Path, tokenizer: str, out: Path):
    result = packer.pack(source, out, max_len=64, tokenizer=tokenizer, eos=False, sync=False)
    return {path.name: path.read_bytes() for path in out.glob("*.arrow")}, result.totals


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_byte_level(["the quick brown fox jumps"] * 4, 300).save(str(path))
    return str(path)


@needs_gigatoken
@pytest.mark.parametrize("begins_with", ["gigatoken", "tokenizers"])
def test_a_pack_that_resumes_the_other_way_has_the_same_bytes(texts, tokenizer, tmp_path, monkeypatch, begins_with):
    shrink(monkeypatch, fast_characters=1)
    shrink(monkeypatch, piece=1 << 15, record_block=1 << 13)
    ways = {"gigatoken": "1", "tokenizers": "0"}
    whole = {}
    for way, switch in ways.items():
        monkeypatch.setenv(fast_tokens.SWITCH, switch)
        whole[way], totals = packed(texts, tokenizer, tmp_path / way)
        assert totals.documents_by_gigatoken == (4000 if way == "gigatoken" else None)
    assert whole["gigatoken"] == whole["tokenizers"]
    monkeypatch.setenv(fast_tokens.SWITCH, ways.pop(begins_with))
    with monkeypatch.context() as striking:
        kill(striking, r"00000-00002\.json$", after=True)
        with pytest.raises(Killed):
            packed(texts, tokenizer, tmp_path / "out")
    monkeypatch.setenv(fast_tokens.SWITCH, *ways.values())
    found, totals = packed(texts, tokenizer, tmp_path / "out")
    assert found == whole["gigatoken"]
    assert 0 < totals.documents_by_gigatoken < 4000


@needs_gigatoken
def test_ranks_with_and_without_gigatoken_write_the_bytes_of_one_process(texts, tokenizer, tmp_path):
    expected, _ = packed(texts, tokenizer, tmp_path / "one")
    script = (
        "import sys; from packer.cli import cli; from packer.sources import decoded_pieces; from packer.text import "
        "fast_tokens; fast_tokens._ENOUGH = 1; decoded_pieces._PIECE = 1 << 15; cli(sys.argv[1:])"
    )
    out = tmp_path / "out"
    words = ["pack", texts, "-o", out, "--max-len", "64", "--tokenizer", tokenizer, "--no-eos", "--ranks", "2"]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, *map(str, words), "--rank", str(rank)],
            env={**os.environ, fast_tokens.SWITCH: str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=100) for process in running] == [0, 0]
    assert {path.name: path.read_bytes() for path in out.glob("*.arrow")} == expected
    assert 0 < packer.load(out).manifest.totals.documents_by_gigatoken < 4000


@pytest.mark.parametrize("wrong", ["nowhere", "somewhere", "everywhere"])
def test_nothing_is_kept_of_a_way_that_gives_another_token(texts, tokenizer, tmp_path, monkeypatch, caplog, wrong):
    """A merge of a planted way is another one: where that shows, all documents are tokenized by the library."""
    caplog.set_level("INFO", logger="packer")
    monkeypatch.setattr(fast_tokens, "version", lambda: None)
    expected, _ = packed(texts, tokenizer, tmp_path / "expected")
    monkeypatch.setattr(fast_tokens, "version", lambda: "0")
    shrink(monkeypatch, fast_characters=1)
    monkeypatch.setattr(fast_tokens, "_ONE_IN", 1)
    planted = {"nowhere": "never", "somewhere": "Ġjumps", "everywhere": "Ġfox"}[wrong]

    def load(backend):
        other = json.loads(backend.to_str())
        (merge,) = [merge for merge in other["model"]["merges"] if "".join(merge) == planted] or [None]
        if merge is not None:
            other["model"]["merges"].remove(merge)
        broken = tokenizers.Tokenizer.from_str(json.dumps(other))
        return lambda given: by_library(broken, given)

    monkeypatch.setattr(fast_tokens, "load", load)
    monkeypatch.setattr(fast_tokens, "hard_texts", lambda settings: ["plain"])
    shrink(monkeypatch, piece=1 << 15, record_block=1 << 13)
    found, totals = packed(texts, tokenizer, tmp_path / "found")
    assert found == expected
    assert totals.documents_by_gigatoken == (4000 if wrong == "nowhere" else None)
    said = [record.getMessage() for record in caplog.records if "gigatoken" in record.getMessage()]
    assert len(said) == (wrong != "nowhere"), caplog.text
    if wrong == "somewhere":
        assert "texts.jsonl line 3501" in said[0]
