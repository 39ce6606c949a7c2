"""Hash files, while they are written or afterwards."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from packer.stores import AnyPath, RemotePath

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HASHED_TOGETHER = 16 << 20  # bytes
_WRITTEN_TOGETHER = 1 << 16  # bytes: Arrow writes headers, padding and short columns one by one


class HashingFile(io.BufferedWriter):
    """Binary file that hashes everything written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"), _WRITTEN_TOGETHER)
        self._hash = xxhash.xxh3_128()
        self.bytes = 0

    def write(self, data: Buffer) -> int:
        """Write all of `data`."""
        self._hash.update(data)
        size = super().write(data)
        self.bytes += size
        return size

    def hexdigest(self) -> str:
        """Return the xxh3-128 of all bytes written, hexadecimal."""
        return self._hash.hexdigest()


def matches(path: AnyPath, digest: str) -> bool:
    """Whether a file exists and matches its xxh3-128.

    An object in a store only has to exist: it appeared whole, and the store checks what it holds.
    """
    if isinstance(path, RemotePath):
        return path.is_file()
    return path.is_file() and hash_file(path) == digest


def hash_file(path: AnyPath) -> str:
    """Return the xxh3-128 of a file, hexadecimal."""
    hashed = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASHED_TOGETHER):
            hashed.update(block)
    return hashed.hexdigest()
