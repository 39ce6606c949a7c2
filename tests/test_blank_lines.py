"""Blank lines between documents: skipped quickly, and counted in the line numbers of messages."""

import gzip
import json
import time

import pytest

from packer.errors import PackerError
from packer.sources.json_lines.json_blocks import count_lines
from packer.sources.json_lines.lines import filled_lines, first_line
from packer.sources.text.json_records import open_json_records
from packer.sources.tokenized_source import open_source
from tests.small import shrink
from tests.test_splits import refused, run

BLANKS = {"newlines": b"\n", "carriage returns": b"\r\n", "spaces": b" \t\n"}


def zipped(path, parts):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part, times in parts:
            for _ in range(times):
                file.write(part)
    return path


@pytest.mark.parametrize("kind", BLANKS)
def test_millions_of_blank_lines_are_skipped_quickly_and_counted_in_messages(tmp_path, kind):
    blank = BLANKS[kind] * 1_000_000
    good, bad = b'{"input_ids": [7]}\n', b'{"input_ids": "x"}\n'
    begun = time.monotonic()
    path = zipped(tmp_path / "a.jsonl.gz", [(blank, 2), (good, 1), (blank, 2), (good, 1)])
    source = open_source(path)
    assert sum(len(table.lengths) for table in source.tables()) == 2
    assert source.describe(1) == "document 1 (a.jsonl.gz line 4000002)"
    wrong = zipped(tmp_path / "b.jsonl.gz", [(good, 1), (blank, 2), (bad, 1)])
    with pytest.raises(PackerError, match=r"document 1 \(b.jsonl.gz line 2000002\)"):
        list(open_source(wrong).tables())
    assert time.monotonic() - begun < 30


def test_a_file_of_blank_lines_is_empty_or_refused_before_it_is_read_to_its_end(tmp_path, monkeypatch):
    path = zipped(tmp_path / "a.jsonl.gz", [(b"\n" * 1_000_000, 2)])
    done = run("pack", path, "--max-len", 8)
    assert "empty dataset: 0 documents in 1 file(s)" in done.stderr
    shrink(monkeypatch, blank_lines=1_000_000)
    message = refused(path)
    assert message.startswith("a.jsonl.gz: its first 1,0")
    assert message.endswith("bytes are blank lines, above the limit of 1,000,000; remove them")


def test_text_is_found_after_blank_lines(tmp_path):
    blank = b"\n \r\n" * 500_000
    path = zipped(tmp_path / "a.jsonl.gz", [(blank, 4), (b'  {"text": "a"}\n', 1), (blank, 4), (b'{"text": "b"}', 1)])
    records = open_json_records(path, "a.jsonl.gz")
    assert records.fields == {"text": "a"}
    found = [record for block, _ in records.blocks(["text"]) for record in records.records(block, ["text"])]
    assert [record["text"] for record in found] == ["a", "b"]
    assert records.places.place(1) == "a.jsonl.gz line 8000002"


@pytest.mark.parametrize(
    ("block", "count"),
    [
        (b"", 0),
        (b"\n\n", 0),
        (b'{"a": 1}\n\n{"a": 2}', 2),
        (b'  {"a": 1}\r\n\t\r\n\f\v\n {"a": 2}\n', 2),
        (b'{"a": 1}\n null\n', -1),
        (b'{"a": 1}\n\n  []', -1),
        (b'{"a":\n1}\n', -1),
    ],
)
def test_lines_that_are_not_blank_are_counted_and_must_begin_with_a_brace(block, count):
    assert count_lines(block) == count
    expected = [line.strip() for line in block.split(b"\n") if line.strip()]
    assert [line.strip() for line in filled_lines(block)] == expected


def test_the_first_line_is_found_with_its_number(tmp_path):
    path = tmp_path / "a.jsonl"
    for before in (0, 1, 70_000):
        path.write_bytes(b"\n" * before + json.dumps({"x": 1}).encode() + b"\n\n")
        assert first_line(path, "a.jsonl") == (before + 1, b'{"x": 1}')
    path.write_bytes(b" \n\n")
    assert first_line(path, "a.jsonl") == (0, b"")
