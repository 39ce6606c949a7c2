"""Objects as files that can be read and sought."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from packer.stores.requests import PART, submitted

_FIRST = 64 << 10  # bytes of the first request


class RemoteFile(io.RawIOBase):
    """An object as a file that can be read and sought. A reader that goes on is read ahead of, in growing parts.

    Args:
        read_range: function that returns the bytes of a range, given its start and length.
        size: bytes of the object.
    """

    def __init__(self, read_range: Callable[[int, int], Any], size: int) -> None:
        self._read_range = read_range
        self._size = size
        self._at = 0
        self._start, self._part = 0, memoryview(b"")
        self._next: Future[Any] | None = None  # of the part that follows

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """Always True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        if self._at >= self._size:
            return 0
        if not self._start <= self._at < self._start + len(self._part):
            self._load(len(view))
        part = self._part[self._at - self._start :][: len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _load(self, wanted: int) -> None:
        """Make the part that begins at the present position the current one."""
        goes_on = len(self._part) and self._at == self._start + len(self._part)
        if goes_on and self._next is not None:
            part = self._next.result()
        else:
            length = min(max(wanted, _FIRST), PART, self._size - self._at)
            part = self._read_range(self._at, length)
        self._start, self._part, self._next = self._at, memoryview(part), None
        after = self._start + len(part)
        if goes_on and after < self._size:
            length = min(2 * len(part), PART, self._size - after)
            self._next = submitted(self._read_range, after, length)
