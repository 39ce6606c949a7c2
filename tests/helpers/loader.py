"""What `tests/test_loader.py` shares with other tests."""

from pathlib import Path


def maps_of(folder: Path) -> int:
    """Number of memory maps of files in a folder that this process has."""
    return Path("/proc/self/maps").read_text().count(str(folder))
