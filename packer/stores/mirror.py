"""Mirrors: memory as large as an object in a store, into which needed parts of the object are read.

A mirror gives every byte of an object an address, so that code for mapped files also works on objects. Headers, offsets
and other descriptions of values are fetched into the mirror and stay there. Values themselves are read into separate
memory, which is freed with its last reference. All other bytes of a mirror are 0.

All this memory is mapped from temporary files, so the system can move it to the disk. The files of mirrors are sparse.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from packer.stores.buckets import PART, in_parallel
from packer.stores.local_files import local_copy, temporary_folder, temporary_memory, told_if_full
from packer.stores.remote_path import AnyPath, RemotePath

CHUNK = 1 << 15
"""Bytes of a mirror that are fetched together."""

_ALIGNED = 64  # bytes: the address of a value in memory, modulo 64, equals its position in the object


class Mirror:
    """Memory as large as an object that is not empty. It exists until the process ends.

    Reading fails if the object has changed since its state was taken.
    """

    def __init__(self, path: RemotePath, size: int) -> None:
        self.path, self._file = path, temporary_folder() / uuid.uuid4().hex
        with told_if_full(self._file.parent):
            self._file.touch()
            os.truncate(self._file, size)
        self.buffer = map_whole(self._file)
        self.base: int = self.buffer.address
        self.fetched: set[int] = set()
        """Indices of the chunks that are in memory."""
        _mirrors.append(self)

    def fetch(self, starts: ArrayLike, lengths: ArrayLike) -> None:
        """Fetch ranges of bytes. starts: index of the first byte of each range. lengths: bytes of each range.

        Raises an OSError if the store cannot be read, and a PackerError if the disk of temporary files is full.
        """
        begin, size = (np.asarray(each, np.int64).reshape(-1) for each in (starts, lengths))
        first, end = begin // CHUNK, -(-(begin + size) // CHUNK)
        counts = end - first
        before = np.cumsum(counts) - counts
        fetch_chunks([(self, np.unique(np.repeat(first - before, counts) + np.arange(counts.sum())))])

    def missing(self, chunks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield ranges (first byte, bytes) of at most `PART` bytes that cover the chunks that are not in memory.

        chunks: indices in ascending order.
        """
        left = np.array([chunk for chunk in chunks.tolist() if chunk not in self.fetched], np.int64)
        for run in np.split(left, np.flatnonzero(np.diff(left) > 1) + 1):
            if len(run):
                yield from _parts(int(run[0]) * CHUNK, min((int(run[-1]) + 1) * CHUNK, self.buffer.size))

    def load(self, start: int, length: int) -> None:
        """Read a range into the mirror. Writes its file, because a full disk under mapped memory ends the process."""
        content = self.path.read_range(start, length)
        with told_if_full(self._file.parent), self._file.open("r+b") as file:
            file.seek(start)
            file.write(content)


_mirrors: list[Mirror] = []


@lru_cache(maxsize=1)
def _sorted(count: int) -> tuple[list[Mirror], NDArray[np.int64], NDArray[np.int64]]:
    """Return the first `count` mirrors in order of address, and the addresses of their beginnings and ends."""
    mirrors = sorted(_mirrors[:count], key=lambda each: each.base)
    bounds = np.array([[each.base, each.base + each.buffer.size] for each in mirrors], np.int64).reshape(-1, 2)
    return mirrors, bounds[:, 0], bounds[:, 1]


def _owners(addresses: NDArray[np.int64]) -> tuple[list[Mirror], NDArray[np.int64]]:
    """Return all mirrors, and the index of the mirror that contains each address; -1 for other memory."""
    mirrors, bases, ends = _sorted(len(_mirrors))
    owners = np.searchsorted(bases, addresses, side="right") - 1
    return mirrors, np.where((owners >= 0) & (addresses < np.append(ends, 0)[owners]), owners, -1)


def fetch_chunks(wanted: Sequence[tuple[Mirror, NDArray[np.int64]]]) -> None:
    """Fetch chunks of several mirrors in parallel, given their ascending indices; see `Mirror.fetch`."""
    parts = [(each, part) for each, chunks in wanted for part in each.missing(chunks)]
    in_parallel(lambda part: part[0].load(*part[1]), parts)
    for each, chunks in wanted:
        each.fetched.update(chunks.tolist())


def is_mirrored(addresses: NDArray[np.integer[Any]]) -> bool:
    """Whether any of these addresses is in a mirror."""
    return bool(_mirrors) and bool((_owners(addresses.astype(np.int64))[1] >= 0).any())


def read_ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], object]:
    """Read ranges of mirrors, given by addresses and sizes. One request reads several ranges that are close.

    Returns the addresses of the copies, and their memory, which the caller must keep. Ranges outside mirrors keep their
    addresses. Raises the same errors as `Mirror.fetch`.
    """
    mirrors, owners = _owners(starts)
    order = np.flatnonzero((owners >= 0) & (lengths > 0))
    order = order[np.argsort(starts[order], kind="stable")]
    moved = starts.copy()
    if not len(order):
        return moved, None
    begin, owners = starts[order] // _ALIGNED * _ALIGNED, owners[order]
    reach = np.maximum.accumulate((starts + lengths)[order])
    heads = np.flatnonzero(np.append(True, (begin[1:] > reach[:-1] + 2 * CHUNK) | (owners[1:] != owners[:-1])))
    first, end = begin[heads], np.append(reach[heads[1:] - 1], reach[-1])  # of each run of ranges read together
    ends = np.cumsum(-(-(end - first) // _ALIGNED) * _ALIGNED)
    places = np.append(0, ends[:-1])
    memory = np.frombuffer(temporary_memory(int(ends[-1])), np.uint8)
    runs = np.repeat(np.arange(len(heads)), np.diff(np.append(heads, len(order))))
    moved[order] = memory.ctypes.data + places[runs] + starts[order] - first[runs]

    def read(part: tuple[Mirror, int, int, int]) -> None:
        mirror, start, length, place = part
        memory[place : place + length] = np.frombuffer(mirror.path.read_range(start, length), np.uint8)

    parts = []
    for owner, start, stop, place in zip(owners[heads].tolist(), first.tolist(), end.tolist(), places, strict=True):
        mirror = mirrors[owner]
        for at, length in _parts(start - mirror.base, stop - mirror.base):
            parts.append((mirror, at, length, int(place) + at - (start - mirror.base)))
    in_parallel(read, parts)
    return moved, memory


def read_array(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array unchanged, or a copy of its values if it is in a mirror; see `read_ranges`."""
    (address,), memory = read_ranges(np.array([values.ctypes.data], np.int64), np.array([values.nbytes], np.int64))
    if memory is None:
        return values
    assert isinstance(memory, np.ndarray)
    place = int(address - memory.ctypes.data)
    return memory[place : place + values.nbytes].view(values.dtype)


def _parts(start: int, stop: int) -> Sequence[tuple[int, int]]:
    """Divide a range into requests (first byte, bytes)."""
    return [(at, min(PART, stop - at)) for at in range(start, stop, PART)]


def map_whole(path: AnyPath) -> pa.Buffer:
    """Map a file, or a temporary copy of an object, into memory. The copy disappears with the memory."""
    with local_copy(path) as copy, pa.memory_map(str(copy)) as file:  # the buffer keeps the mapping, not the descriptor
        return file.read_buffer()
