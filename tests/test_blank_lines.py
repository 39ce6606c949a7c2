"""Blank lines between documents: skipped quickly, and counted in the line numbers of messages."""

import gzip
import time

import pytest

import packer
from tests.helpers.commands import run

BLANKS = {"newlines": b"\n", "carriage returns": b"\r\n", "spaces": b" \t\n"}


def zipped(path, parts):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part, times in parts:
            for _ in range(times):
                file.write(part)
    return path


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("kind", BLANKS)
def test_millions_of_blank_lines_are_skipped_quickly_and_counted_in_messages(tmp_path, kind):
    blank = BLANKS[kind] * 1_000_000
    good, bad = b'{"input_ids": [7]}\n', b'{"input_ids": "x"}\n'
    begun = time.monotonic()
    path = zipped(tmp_path / "a.jsonl.gz", [(blank, 2), (good, 1), (blank, 2), (good, 1)])
    assert packer.stats(path, max_len=8).documents == 2
    wrong = zipped(tmp_path / "b.jsonl.gz", [(good, 1), (blank, 2), (bad, 1)])
    with pytest.raises(packer.PackerError, match=r"document 1 \(b.jsonl.gz line 2000002\)"):
        packer.stats(wrong, max_len=8)
    assert time.monotonic() - begun < 30


def test_a_file_of_blank_lines_is_empty(tmp_path):
    path = zipped(tmp_path / "a.jsonl.gz", [(b"\n" * 1_000_000, 2)])
    done = run("pack", path, "--max-len", 8)
    assert "empty dataset: 0 documents in 1 file(s)" in done.stderr
