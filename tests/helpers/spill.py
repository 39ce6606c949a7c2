"""What `tests/test_spill.py` shares with other tests."""

from collections import namedtuple

from packer.output import output_place

Usage = namedtuple("Usage", "total used free")


def with_free(monkeypatch, free: int) -> None:
    monkeypatch.setattr(output_place.shutil, "disk_usage", lambda path: Usage(10**12, 0, free))
