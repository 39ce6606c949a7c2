"""Files of bare integers, mapped into memory: lists lie one after the other in them, without gaps.

Where a list ends and the next begins stands in another file, from which it is read in place, or is held in memory. A
file of masks may lie beside, with a value for each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.inputs.documents import reading
from packer.inputs.mapped_files import FileState, mirrored
from packer.stores import AnyPath, RemotePath, pinned
from packer.stores.mirror import map_whole
from packer.token_memory import TokenColumn
from packer.token_memory.token_column import VALUE_TYPES, Addresses

_CHECKED = 1 << 20  # values that are checked together
_TOGETHER = 1 << 18  # lists in a record batch, which has 2 MB of offsets


class Bounds(NamedTuple):
    """Where lists end in an array of values; the first list begins with its first value.

    Example: lists 3, inner [6, 10], shift 1, end 9: the values 0 to 2, 3 to 4, and 5 to 8 are a list each.
    """

    lists: int
    inner: NDArray[np.int64]  # (lists - 1,) values before each other list, times 2**shift; may be unaligned
    shift: int
    end: int  # number of values

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the number of values before each of the lists `first` to `last` - 1, and up to their end."""
        offsets = np.empty(last - first + 1, np.int64)
        inside = self.inner[max(first - 1, 0) : last] >> self.shift
        begin = int(first == 0)
        offsets[begin : begin + len(inside)] = inside
        offsets[:begin] = 0
        offsets[begin + len(inside) :] = self.end  # one place if these are the last lists, otherwise none
        return offsets


class MappedColumn(NamedTuple):
    """Values of a column in a mapped file."""

    state: FileState
    owner: pa.Buffer
    dtype: np.dtype[Any]
    skipped: int  # bytes before the first value

    @classmethod
    def of(cls, path: AnyPath, name: str, dtype: np.dtype[Any], skipped: int = 0) -> MappedColumn:
        """Map a file; the values of an object in storage are fetched when they are needed."""
        path = pinned(path)
        owner = map_values(path)
        return cls(FileState(path.absolute(), name, owner.size), owner, dtype, skipped)

    @property
    def values(self) -> pa.Array:
        """All values; nothing is copied."""
        kind = pa.from_numpy_dtype(self.dtype)
        count = (self.owner.size - self.skipped) // self.dtype.itemsize
        return pa.Array.from_buffers(kind, count, [None, self.owner.slice(self.skipped)])


def map_values(path: AnyPath) -> pa.Buffer:
    """Map a file into memory; of an object, nothing is fetched."""
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    return mirrored(path).buffer if isinstance(path, RemotePath) else map_whole(path)


def map_index(path: AnyPath) -> pa.Buffer:
    """Map a file into memory; an object is fetched, once for all tasks of the process."""
    buffer = map_values(path)
    if isinstance(path, RemotePath) and buffer.size:
        mirrored(path).fetch([0], [buffer.size])
    return buffer


def first_descent(values: NDArray[np.int64]) -> int | None:
    """Return the index of the first value below the one before it, or of a negative first one; None if all ascend."""
    for first in range(0, len(values), _CHECKED):
        before = int(values[first - 1]) if first else 0
        wrong = np.diff(values[first : first + _CHECKED], prepend=before) < 0
        if wrong.any():
            return first + int(wrong.argmax())
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedArrays:
    """Lists of values in files of bare integers, as record batches of large lists. It is pickled by paths."""

    columns: Mapping[str, MappedColumn]
    """Columns by name, each with a value per token."""

    bounds: Bounds
    index: tuple[FileState, pa.Buffer] | None
    """File in which the bounds lie; None if they are in memory of their own."""

    ends: NDArray[np.int64]
    """Shape (batches,): cumulative lengths of the batches."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the columns, by name."""

    @classmethod
    def of(
        cls, columns: Mapping[str, MappedColumn], bounds: Bounds, index: tuple[FileState, pa.Buffer] | None = None
    ) -> MappedArrays:
        """Describe columns whose files have been checked to hold `bounds.end` values."""
        owners = (*(column.owner for column in columns.values()), bounds.inner, index)
        tokens = {
            name: TokenColumn(addresses=_addresses(column, bounds), owners=owners) for name, column in columns.items()
        }
        ends = np.minimum(np.arange(_TOGETHER, bounds.lists + _TOGETHER, _TOGETHER), bounds.lists)
        return cls(columns=columns, bounds=bounds, index=index, ends=ends, tokens=tokens)

    @property
    def owner(self) -> object:
        """What keeps the memory alive."""
        return self

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns."""
        return pa.schema(
            [(name, pa.large_list(pa.from_numpy_dtype(column.dtype))) for name, column in self.columns.items()]
        )

    def whole(self) -> MappedArrays:
        """Return the same lists with all of their values in memory, also if the files are in a store."""
        columns = {}
        for name, column in self.columns.items():
            with reading(column.state.name):
                path, empty = column.state.path, not column.owner.size
                columns[name] = column if empty else column._replace(owner=map_whole(path))
        return MappedArrays.of(columns, self.bounds, self.index)

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Yield the named columns of each record batch, whose offsets are made."""
        values = [self.columns[name].values for name in names]
        for number in numbers:
            first = int(self.ends[number - 1]) if number else 0
            offsets = as_arrow(self.bounds.offsets(first, int(self.ends[number])))
            yield [pa.LargeListArray.from_arrays(offsets, each) for each in values]

    def __reduce__(self) -> tuple[object, ...]:
        files = {name: (each.state, each.dtype, each.skipped) for name, each in self.columns.items()}
        if self.index is None:
            return _map_again, (files, self.bounds, None, 0)
        (state, owner), inner = self.index, self.bounds.inner
        return _map_again, (
            files,
            self.bounds._replace(inner=inner[:0].copy()),
            state,
            inner.ctypes.data - owner.address,
        )


def _map_again(
    files: Mapping[str, tuple[FileState, np.dtype[Any], int]], bounds: Bounds, index: FileState | None, place: int
) -> MappedArrays:
    """Unpickle `MappedArrays`: map the files again, and find the bounds at this place of the index."""
    columns = {}
    for name, (state, dtype, skipped) in files.items():
        with reading(state.name):
            columns[name] = MappedColumn(state, map_values(state.path), dtype, skipped)
    if index is None:
        return MappedArrays.of(columns, bounds)
    with reading(index.name):
        owner = map_index(index.path)
    inner = np.frombuffer(owner, "<i8", max(bounds.lists - 1, 0), place)
    return MappedArrays.of(columns, bounds._replace(inner=inner), (index, owner))


def _addresses(column: MappedColumn, bounds: Bounds) -> Addresses:
    """Return the addresses of lists. The first and the last one, which lack a bound, are chunks of their own."""
    dtype, lists, inner, shift = column.dtype, bounds.lists, bounds.inner, bounds.shift
    chunks: list[tuple[int, ...]] = []  # (lists, address of offsets, bytes per offset, length, first value, shift)
    if lists:
        chunks.append((1, 0, 0, int(inner[0]) >> shift if lists > 1 else bounds.end, 0, 0))
    if lists > 2:
        chunks.append((lists - 2, inner.ctypes.data, 8, 0, 0, shift))
    if lists > 1:
        before = int(inner[-1]) >> shift
        chunks.append((1, 0, 0, bounds.end - before, before, 0))
    counts, offsets, offset_bytes, list_sizes, firsts, shifts = np.array(chunks, np.int64).reshape(-1, 6).T.copy()
    return Addresses(
        first_rows=np.cumsum([0, *counts], dtype=np.int64),
        offsets=offsets.astype(np.uint64),
        offset_bytes=offset_bytes,
        offset_shifts=shifts,
        list_sizes=list_sizes,
        values=(column.owner.address + column.skipped + firsts * dtype.itemsize).astype(np.uint64),
        value_codes=np.full(len(counts), VALUE_TYPES.index(dtype.type)),
        value_bytes=np.full(len(counts), dtype.itemsize),
    )
