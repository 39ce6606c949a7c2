"""Formats of input files: how they are recognized."""

import pytest

from packer.inputs.formats import ending_of, format_of, known_formats

ENDINGS = {
    "a.arrow": ".arrow",
    "a.b.json.zst": ".json.zst",
    ".jsonl.gz": ".jsonl.gz",
    "a.parquet.gz": "",
    "a.gz": "",
    "README.md": "",
    "ajsonl": "",
}


def test_names_are_recognized_by_their_endings():
    assert {name: ending_of(name) for name in ENDINGS} == ENDINGS


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
