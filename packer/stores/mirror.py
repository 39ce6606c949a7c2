"""Memory of the size of an object in a store, into which the parts that are needed are read.

A mirror gives every byte of an object an address, so that code for mapped files also works on objects, once `fetch` or
`held` has brought the bytes. Others read as zeros, so code that computes addresses must fetch them first.

The memory is mapped from temporary files without a name, full of holes: the system may write it to the disk instead of
keeping it, and nothing is left after a kill. What is no longer held is punched out of the file again.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from packer.errors import PackerError
from packer.stores.buckets import PART, in_parallel
from packer.stores.remote_path import AnyPath, RemotePath

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHUNK = 1 << 15
"""Bytes that are read together at least."""

_SMALLEST, _LARGEST = 1 << 30, 1 << 38  # bytes of address space taken at once


class _Region:
    """Address space for several objects, backed by a file full of holes."""

    def __init__(self, size: int) -> None:
        self.file = tempfile.TemporaryFile(prefix="packer-")  # noqa: SIM115 (closed with the region)
        self.file.truncate(size)
        self.memory = mmap.mmap(self.file.fileno(), size)
        self.base = int(np.frombuffer(self.memory, np.uint8).ctypes.data)
        self.size = size
        self.used = -self.base % CHUNK  # so that no chunk holds parts of two objects

    def write(self, address: int, content: Buffer) -> None:
        """Write to the file, which the memory shows; a full disk is a PackerError, and no crash as in memory."""
        at, left = address - self.base, memoryview(content)
        try:
            while left:
                written = os.pwrite(self.file.fileno(), left, at)
                left, at = left[written:], at + written
        except OSError as error:
            raise PackerError(
                f"{tempfile.gettempdir()}: {error.strerror}, but parts of the objects that are read must fit there: "
                "free some space, choose a smaller --shard-size, or set TMPDIR to another folder"
            ) from error

    def punch(self, address: int, length: int) -> None:
        """Give a part of the file back to the system, where it can do so."""
        with suppress(OSError, AttributeError):
            self.memory.madvise(mmap.MADV_REMOVE, address - self.base, length)


@dataclass(order=True, slots=True)
class _Object:
    """An object that is mirrored."""

    base: int
    """Address of its first byte."""

    size: int = field(compare=False)
    path: RemotePath = field(compare=False)
    region: _Region = field(compare=False)


class _Mirrors:
    """All mirrors of a process, and which chunks of them are in memory."""

    def __init__(self) -> None:
        self.renew_lock()
        self._region: _Region | None = None
        self._objects: list[_Object] = []
        self._bounds = np.zeros((0, 2), np.int64)
        self._present: set[int] = set()  # numbers of chunks: addresses // CHUNK
        self._moving: set[int] = set()  # being read, or removed
        self._pins: dict[int, int] = {}

    def renew_lock(self) -> None:
        """Take a new lock: in a forked process, that of the parent may be held for ever."""
        self._changed = threading.Condition(threading.RLock())

    def add(self, path: RemotePath, size: int) -> memoryview:
        """Take address space for an object; it is given back when no view of it is left."""
        space = -(-max(size, 1) // CHUNK) * CHUNK
        with self._changed:
            region = self._region
            if region is None or region.used + space > region.size:
                last = _SMALLEST // 2 if region is None else region.size
                self._region = region = _Region(max(space + CHUNK, min(2 * last, _LARGEST)))
            added = _Object(region.base + region.used, size, path, region)
            # Views of views do not keep each other alive, but all keep what they are views of.
            owner = (ctypes.c_char * size).from_buffer(region.memory, region.used)
            region.used += space
            bisect.insort(self._objects, added)
            self._find_bounds()
        weakref.finalize(owner, self._remove, added).atexit = False
        return memoryview(owner).toreadonly().cast("B")

    def _remove(self, removed: _Object) -> None:
        first, last = removed.base // CHUNK, -(-(removed.base + removed.size) // CHUNK)
        with self._changed:
            self._objects.remove(removed)
            self._find_bounds()
            for chunk in self._present.intersection(range(first, last)):
                self._present.remove(chunk)
                self._pins.pop(chunk, None)
            removed.region.punch(first * CHUNK, (last - first) * CHUNK)

    def _find_bounds(self) -> None:
        regions = {id(each.region): each.region for each in self._objects}.values()
        self._bounds = np.array([[each.base, each.base + each.size] for each in regions], np.int64).reshape(-1, 2)

    def chunks(self, starts: ArrayLike, lengths: ArrayLike) -> list[int]:
        """Return the numbers of the chunks that hold these ranges of addresses, ascending, without ordinary memory."""
        begin, size = (np.asarray(each, np.int64).reshape(-1) for each in (starts, lengths))
        inside = self.contains(begin) & (size > 0)
        first, end = begin[inside] // CHUNK, -(-(begin + size)[inside] // CHUNK)
        counts = end - first
        before = np.cumsum(counts) - counts
        chunks: list[int] = np.unique(np.repeat(first - before, counts) + np.arange(counts.sum())).tolist()
        return chunks

    def contains(self, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which addresses lie in a mirror."""
        inside = np.zeros(len(addresses), bool)
        for low, high in self._bounds:
            inside |= (addresses >= low) & (addresses < high)
        return inside

    def parts(self, address: int, size: int) -> NDArray[np.int64]:
        """Return which parts of an object are in memory; see `fetched_parts`."""
        with self._changed:
            inside = range(address // CHUNK, -(-(address + size) // CHUNK))
            runs = self._runs([chunk for chunk in inside if chunk in self._present])
        bounds = CHUNK * np.array([run[1:] for run in runs], np.int64).reshape(-1, 2) - address
        return np.column_stack([bounds[:, 0], np.minimum(bounds[:, 1], size) - bounds[:, 0]])

    def bring(self, chunks: Sequence[int]) -> None:
        """Pin chunks, and read those that are not in memory."""
        with self._changed:
            for chunk in chunks:
                self._pins[chunk] = self._pins.get(chunk, 0) + 1
        left = list(chunks)
        try:
            while left:
                with self._changed:
                    mine = [chunk for chunk in left if chunk not in self._present and chunk not in self._moving]
                    self._moving.update(mine)
                    if not mine and not self._present.issuperset(left):
                        self._changed.wait()
                self._read(mine)
                left = [chunk for chunk in left if chunk not in self._present]
        except BaseException:
            self.release(chunks)
            raise

    def release(self, chunks: Sequence[int]) -> None:
        """Undo `bring`; what nobody has pinned is removed from memory."""
        with self._changed:
            gone = []
            for chunk in chunks:
                self._pins[chunk] = self._pins.get(chunk, 1) - 1  # without a pin, it left memory with its object
                if not self._pins[chunk]:
                    del self._pins[chunk]
                    gone += [chunk] if chunk in self._present else []
            self._present.difference_update(gone)
            for each, first, last in self._runs(gone):
                each.region.punch(first * CHUNK, (last - first) * CHUNK)

    def _read(self, chunks: Sequence[int]) -> None:
        """Read chunks that were marked as moving."""
        done = False
        try:
            with self._changed:
                runs = self._runs(chunks)
            parts = []
            for each, first, last in runs:
                stop = min(last * CHUNK, each.base + each.size)
                parts += [(each, at, min(PART, stop - at)) for at in range(first * CHUNK, stop, PART)]
            in_parallel(self._read_part, parts)
            done = True
        finally:
            with self._changed:
                self._moving.difference_update(chunks)
                if done:
                    self._present.update(chunks)
                self._changed.notify_all()

    @staticmethod
    def _read_part(part: tuple[_Object, int, int]) -> None:
        each, address, length = part
        each.region.write(address, each.path.read_range(address - each.base, length))

    def _runs(self, chunks: Sequence[int]) -> list[tuple[_Object, int, int]]:
        """Return runs of consecutive chunks of an object: (object, first, after the last)."""
        runs: list[tuple[_Object, int, int]] = []
        for chunk in chunks:
            if runs and runs[-1][2] == chunk and chunk * CHUNK < runs[-1][0].base + runs[-1][0].size:
                runs[-1] = (runs[-1][0], runs[-1][1], chunk + 1)
                continue
            at = bisect.bisect_right(self._objects, chunk * CHUNK, key=lambda each: each.base) - 1
            runs.append((self._objects[at], chunk, chunk + 1))
        return runs


_mirrors = _Mirrors()
os.register_at_fork(after_in_child=lambda: _mirrors.renew_lock())
_later: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
_settling = threading.Lock()


def mirror(path: RemotePath, size: int) -> memoryview:
    """Return read-only memory of the size of an object, in which its parts appear once they are fetched.

    Reads fail if the object was changed since its state was taken. Raises an OSError if so much cannot be mapped.
    """
    return _mirrors.add(path, size)


def fetch(starts: ArrayLike, lengths: ArrayLike) -> None:
    """Read ranges of mirrors, given as int64 addresses and bytes, which stay in memory as long as the mirror does.

    Addresses of ordinary memory are passed over. Raises an OSError if the store cannot be read, and a PackerError if
    the disk of temporary files is full.
    """
    _mirrors.bring(_mirrors.chunks(starts, lengths))


def fetch_later(starts: ArrayLike, lengths: ArrayLike) -> None:
    """Fetch ranges with the next `settle`: those of many objects together take less time than one after the other."""
    _later.append((np.asarray(starts, np.int64), np.asarray(lengths, np.int64)))


def fetch_queued() -> None:
    """Fetch what `fetch_later` was given."""
    with _settling:
        if _later:
            fetch(*(np.concatenate(parts) for parts in zip(*_later, strict=True)))
            _later.clear()


def fetched_parts(address: int, size: int) -> NDArray[np.int64]:
    """Return the parts of a mirror that are in memory: (parts, 2), first byte and number of bytes."""
    return _mirrors.parts(address, size)


@contextmanager
def held(starts: ArrayLike, lengths: ArrayLike) -> Iterator[None]:
    """Read ranges of mirrors, which stay in memory until the end of the block; see `fetch`."""
    chunks = _mirrors.chunks(starts, lengths)
    _mirrors.bring(chunks)
    try:
        yield
    finally:
        _mirrors.release(chunks)


def map_whole(path: AnyPath) -> pa.Buffer:
    """Map a file into memory; an object is read as a whole, and leaves memory with the buffer."""
    if isinstance(path, RemotePath):
        found = path.pinned()
        buffer = pa.py_buffer(mirror(found, found.stat().st_size))
        fetch([buffer.address], [buffer.size])
        return buffer
    with pa.memory_map(str(path)) as file:  # closing frees the file descriptor; the buffer keeps the mapping
        return file.read_buffer()


def has_mirrors() -> bool:
    """Whether this process has a mirror, so that addresses may have to be fetched."""
    return bool(len(_mirrors._bounds))


def is_mirrored(addresses: ArrayLike) -> bool:
    """Whether any of these addresses lies in a mirror."""
    return bool(_mirrors.contains(np.asarray(addresses).astype(np.int64)).any())
