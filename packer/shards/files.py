"""Files that are hashed while they are written, and afterwards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import xxhash

_HASHED_TOGETHER = 16 << 20  # bytes


class HashingFile:
    """A binary file that hashes what is written to it; as much of a file object as pyarrow asks for."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._hash = xxhash.xxh3_128()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        written = 0
        while written < len(view):  # an unbuffered write may be short
            written += self._file.write(view[written:])
        self.bytes += written
        return written

    def flush(self) -> None:
        """Write what is held back: nothing is."""
        self._file.flush()

    def sync(self) -> None:
        """Make the bytes last."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self.closed = True

    def hexdigest(self) -> str:
        """xxh3-128 of what was written, hexadecimal."""
        return self._hash.hexdigest()


def hash_file(path: Path) -> str:
    """Hash a file: xxh3-128, hexadecimal."""
    hashed = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASHED_TOGETHER):
            hashed.update(block)
    return hashed.hexdigest()
