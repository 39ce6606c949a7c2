"""Formats of input files: how they are recognized, and how a new one is registered."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import packer
from packer.errors import PackerError
from packer.sources.formats import FORMATS, InputFormat, ending_of, format_of, known_formats
from packer.sources.tokenized_source import open_source
from tests.chat_templates import save_tokenizer
from tests.test_sources import DOCUMENTS, read_whole, write
from tests.toy_format import NUMBERS


@pytest.fixture
def numbers(monkeypatch, tmp_path) -> Path:
    """A file of the toy format, which is registered."""
    toy = InputFormat(title="Numbers", endings=(".numbers",), magic=(NUMBERS,), module="tests.toy_format")
    monkeypatch.setitem(FORMATS, "numbers", toy)
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "rows.numbers"
    path.write_bytes(NUMBERS + b"".join(b" ".join(b"%d" % token for token in d) + b"\n" for d in DOCUMENTS))
    return path


def rows_of(packed: Path) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in packer.load(packed)]


def test_a_registered_format_is_packed(numbers, tmp_path, monkeypatch):
    assert read_whole(open_source(numbers.parent).spill(tmp_path / "spill"))[0] == DOCUMENTS
    packer.pack(numbers.parent, tmp_path / "packed", max_len=64, sync=False)
    write(tmp_path / "same", "stream", DOCUMENTS)
    packer.pack(tmp_path / "same.arrow", tmp_path / "expected", max_len=64, sync=False)
    assert rows_of(tmp_path / "packed") == rows_of(tmp_path / "expected")
    assert not list(packer.verify(tmp_path / "packed", source=numbers.parent))
    packer.pack(numbers, max_len=64, sync=False)
    assert (numbers.parent / "rows-packed-64").is_dir()


def test_text_in_a_registered_format_is_tokenized(numbers, tmp_path):
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    manifest = packer.pack(numbers, tmp_path / "packed", max_len=512, tokenizer=tokenizer, sync=False)
    assert manifest.totals.documents == len(DOCUMENTS)


def test_a_registered_format_is_recognized_by_its_first_bytes_and_listed_in_messages(numbers, tmp_path):
    numbers.rename(tmp_path / "rows.bin")
    assert format_of(tmp_path / "rows.bin", "rows.bin").title == "Numbers"
    (tmp_path / "other.bin").write_bytes(b"something else")
    words = r"it begins with b'somethin'\); supported formats are .* and Numbers \(\.numbers\)$"
    with pytest.raises(PackerError, match=words):
        format_of(tmp_path / "other.bin", "other.bin")


TOY = """
import sys
from packer.algorithms import ALGORITHMS, Algorithm
from packer.algorithms.best_fit import best_fit_decreasing

def solve(histogram, max_segments=None, **limits):
    return best_fit_decreasing(histogram, max_segments)

ALGORITHMS["toy"] = Algorithm(name="toy", summary="A toy.", solve=solve)
import packer
packer.pack(sys.argv[1], sys.argv[2], max_len=64, algorithm="toy", sync=False)
print([packer.load(sys.argv[2])[row]["doc_ids"].tolist() for row in range(len(packer.load(sys.argv[2])))])
"""


def test_a_registered_algorithm_packs(tmp_path):
    """Run in another process, since options list the algorithms that are registered when they are imported."""
    source = write(tmp_path / "rows", "stream", DOCUMENTS)
    command = [sys.executable, "-c", TOY, source, tmp_path / "toy"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    packer.pack(source, tmp_path / "best", max_len=64, algorithm="bfd", sync=False)
    best = packer.load(tmp_path / "best")
    assert json.loads(done.stdout) == [best[row]["doc_ids"].tolist() for row in range(len(best))]


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a.arrow", ".arrow"),
        ("a.feather", ".feather"),
        ("a.jsonl", ".jsonl"),
        ("a.b.json.zst", ".json.zst"),
        (".jsonl.gz", ".jsonl.gz"),
        ("a.parquet", ".parquet"),
        ("a.parquet.gz", ""),
        ("a.gz", ""),
        ("README.md", ""),
        ("ajsonl", ""),
    ],
)
def test_names_are_recognized_by_their_endings(name, ending):
    assert ending_of(name) == ending


@pytest.mark.parametrize(
    ("name", "start", "title"),
    [
        ("a.arrow", b"ARROW1\0\0", "Arrow"),
        ("a", b"\xff\xff\xff\xff\x10", "Arrow"),
        ("a.arrow", b"damaged", "Arrow"),
        ("a.arrow", b"PAR1", "Parquet"),
        ("a.bin", b"PAR1", "Parquet"),
        ("a.parquet", b"", "Parquet"),
        ("a.json", b"PAR1", "JSON"),
        ("a.ndjson.gz", b"\x1f\x8b", "JSON"),
    ],
)
def test_the_first_bytes_decide_except_for_json(tmp_path, name, start, title):
    (tmp_path / name).write_bytes(start)
    assert format_of(tmp_path / name, name).title == title


def test_messages_list_all_formats():
    known = "Arrow (.arrow .ipc .feather), Parquet (.parquet), JSON (.jsonl .ndjson .json, also .gz .zst), "
    known += "CSV (.csv, also .gz .zst) and text (.txt, also .gz .zst)"
    assert known_formats() == known
