"""List columns of integers in mapped memory, described by addresses, and kernels that copy spans of them into rows.

Arrow's `take` reaches less than a tenth of their speed. Documents may be anywhere in the source, so a copy mostly waits
for the first cache lines of a segment. Prefetching the first lines of the next segments saves 40% of the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.algorithms.memory import array_at, copy_bytes, copy_ids, prefetch
from packer.arrow import as_numpy, numpy_dtype
from packer.stores.mirror import is_mirrored, read_ranges

# Integer types of tokens on disk. The `value_code` of a chunk is an index into this tuple.
VALUE_TYPES: tuple[type[np.integer], ...] = (
    np.int32,
    np.int64,
    np.uint16,
    np.uint32,
    np.int16,
    np.uint8,
    np.int8,
    np.uint64,
)

NO_BYTES = pa.binary(0)
"""Type of the values if only the lengths of lists are known. Any number of such values takes no memory."""


class Addresses(NamedTuple):
    """Addresses of the lists of each chunk, as a named tuple of arrays that kernels accept.

    List i of the column is list j = i - first_rows[chunk] of its chunk. Its first value has the index offsets[j] >>
    offset_shifts[chunk] among the values of the chunk. In a chunk of fixed-size lists, the index is j *
    list_sizes[chunk].
    """

    first_rows: NDArray[np.int64]  # (chunks + 1,) index of the first list of each chunk, then the number of all lists
    offsets: NDArray[np.uint64]  # (chunks,) address of the offset of the first list; 0 for fixed-size lists
    offset_bytes: NDArray[np.int64]  # (chunks,) bytes per offset: 4 or 8; 0 for fixed-size lists
    offset_shifts: NDArray[np.int64]  # (chunks,) 0 for offsets that count values; 1, 2 or 3 if they count bytes
    list_sizes: NDArray[np.int64]  # (chunks,) length of fixed-size lists, otherwise 0
    values: NDArray[np.uint64]  # (chunks,) address of the value with index 0
    value_codes: NDArray[np.int64]  # (chunks,) index into VALUE_TYPES; -1 for other types
    value_bytes: NDArray[np.int64]  # (chunks,) bytes per value


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenColumn:
    """A list column addressed by list index, across chunks, files and integer types.

    It takes 64 bytes per chunk and nothing per list. Chunks keep their own offsets, because Arrow's `take` and
    `combine_chunks` corrupt offsets beyond 2**31 values.
    """

    addresses: Addresses

    owners: tuple[object, ...]
    """Objects that keep the memory alive: Arrow arrays, or the buffers of mapped files."""

    @classmethod
    def from_arrow(cls, chunks: Iterable[pa.Array], owners: tuple[object, ...] | None = None) -> TokenColumn:
        """Describe Arrow list arrays (list, large_list or fixed_size_list of values with a `numpy_dtype`), in order.

        The arrays must have no nulls, and `list_lengths` must have checked their offsets.

        Args:
            chunks: arrays to describe.
            owners: objects that keep the arrays' memory alive; None for the arrays themselves.
        """
        builder = ColumnBuilder()
        held = []
        for chunk in chunks:
            if len(chunk):
                builder.add(chunk, chunk.buffers())
                if owners is None:
                    held.append(chunk)
        return cls(addresses=builder.addresses(), owners=tuple(held) if owners is None else owners)

    @classmethod
    def of_lists(
        cls, firsts: NDArray[np.int64], codes: NDArray[np.int64], widths: NDArray[np.int64], owners: tuple[object, ...]
    ) -> TokenColumn:
        """Describe separate lists of unknown lengths. Only a span of each list's values must be in memory.

        Args:
            firsts: (lists,) address of the value with index 0 of each list, even if that value is not in memory.
            codes: (lists,) index into VALUE_TYPES of the type of its values; -1 for other types.
            widths: (lists,) bytes per value.
            owners: objects that keep the memory alive.
        """
        zeros = np.zeros(len(firsts), np.int64)
        addresses = Addresses(
            first_rows=np.arange(len(firsts) + 1),
            offsets=zeros.view(np.uint64),
            offset_bytes=zeros,
            offset_shifts=zeros,
            list_sizes=zeros,
            values=firsts.view(np.uint64),
            value_codes=codes,
            value_bytes=widths,
        )
        return cls(addresses=addresses, owners=owners)

    @classmethod
    def joined(cls, columns: Sequence[TokenColumn]) -> TokenColumn:
        """Concatenate columns; a single column is returned unchanged."""
        if len(columns) == 1:
            return columns[0]
        parts = [column.addresses for column in columns] or [ColumnBuilder().addresses()]
        firsts = np.cumsum([0, *map(len, columns)])
        first_rows = [part.first_rows[:-1] + first for part, first in zip(parts, firsts, strict=False)]
        others = (np.concatenate(arrays) for arrays in list(zip(*parts, strict=True))[1:])
        addresses = Addresses(np.concatenate([*first_rows, firsts[-1:]]), *others)
        return cls(addresses=addresses, owners=tuple(owner for column in columns for owner in column.owners))

    def __len__(self) -> int:
        return int(self.addresses.first_rows[-1])

    def __reduce__(self) -> str:
        raise TypeError("addresses are valid only in their own process: pickle the source instead")

    def values_at(self, number: int, start: int, length: int) -> NDArray[Any]:
        """Return a copy of a span of a list of integers, in their type on disk, for error messages."""
        of = self.addresses
        chunk = int(np.searchsorted(of.first_rows, number, side="right")) - 1
        index, width = number - int(of.first_rows[chunk]), int(of.offset_bytes[chunk])
        first = index * int(of.list_sizes[chunk])
        if width:
            offsets = array_at(int(of.offsets[chunk]) + index * width, 1, np.dtype(f"i{width}"))
            first = int(offsets[0]) >> int(of.offset_shifts[chunk])
        address = (int(of.values[chunk]) + (first + start) * int(of.value_bytes[chunk])) % 2**64
        found: NDArray[Any] = array_at(address, length, VALUE_TYPES[of.value_codes[chunk]]).copy()
        return found


class _Layout(NamedTuple):
    """Memory layout of a chunk, determined by its type; see `Addresses`."""

    offset_bytes: int
    list_size: int
    value_code: int
    value_bytes: int


class ColumnBuilder:
    """Collects the addresses of a list column, chunk by chunk."""

    def __init__(self) -> None:
        self._first_rows = array("q", [0])
        self._offsets, self._values = array("Q"), array("Q")
        self._type: pa.DataType | None = None
        self._layouts: list[tuple[int, _Layout]] = []  # (first chunk, layout), ascending

    def add(self, chunk: pa.Array, buffers: Sequence[pa.Buffer | None]) -> None:
        """Append a chunk, unless it is empty.

        Args:
            chunk: list array as in `TokenColumn.from_arrow`.
            buffers: result of `chunk.buffers()`, which takes some time to compute.
        """
        if not len(chunk):
            return
        if self._type is None or not chunk.type.equals(self._type):
            self._type = chunk.type
            self._layouts.append((len(self._values), _layout(chunk.type)))
        offset_bytes, list_size, _, value_bytes = self._layouts[-1][1]
        offsets, values = buffers[1], buffers[-1]  # of a list array: validity, offsets, validity of values, values
        self._first_rows.append(self._first_rows[-1] + len(chunk))
        self._offsets.append(
            offsets.address + chunk.offset * offset_bytes if offset_bytes and offsets is not None else 0
        )
        child = chunk.values  # the whole child array, not its slice
        first = (child.offset + chunk.offset * list_size) * value_bytes
        if pa.types.is_fixed_size_list(child.type):
            first += child.values.offset * (value_bytes // child.type.list_size)
        self._values.append(values.address + first if values is not None else 0)

    def addresses(self) -> Addresses:
        """Return the addresses of all chunks."""
        numbers = [number for number, _ in self._layouts]
        counts = np.diff([*numbers, len(self._values)])
        layouts = np.array([layout for _, layout in self._layouts], np.int64).reshape(-1, len(_Layout._fields))
        offset_bytes, list_sizes, value_codes, value_bytes = np.repeat(layouts, counts, axis=0).T
        return Addresses(
            first_rows=np.array(self._first_rows, np.int64),
            offsets=np.array(self._offsets, np.uint64),
            offset_bytes=np.ascontiguousarray(offset_bytes),
            offset_shifts=np.zeros(len(offset_bytes), np.int64),
            list_sizes=np.ascontiguousarray(list_sizes),
            values=np.array(self._values, np.uint64),
            value_codes=np.ascontiguousarray(value_codes),
            value_bytes=np.ascontiguousarray(value_bytes),
        )


def _layout(kind: pa.DataType) -> _Layout:
    code, width = -1, 0
    if kind.value_type != NO_BYTES:
        dtype = numpy_dtype(kind.value_type)
        code, width = VALUE_TYPES.index(dtype.type) if dtype.type in VALUE_TYPES else -1, dtype.itemsize
    if pa.types.is_fixed_size_list(kind):
        return _Layout(0, kind.list_size, code, width)
    return _Layout(8 if pa.types.is_large_list(kind) else 4, 0, code, width)


def list_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Check the offsets of an Arrow list array, and return the lengths of its lists, shape (len(array),).

    The array must have passed `validate`, which checks fixed-size lists, but only the first and the last offset.

    Raises:
        ValueError: an offset is smaller than the previous one, or outside the values.
    """
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    if len(array) == 0:
        return np.zeros(0, np.int64)
    offsets = as_numpy(array.offsets)
    lengths = np.diff(offsets).astype(np.int64, copy=False)
    if offsets[0] < 0 or lengths.min() < 0 or offsets[-1] > len(array.values):
        raise ValueError(f"list offsets run backwards or outside the {len(array.values)} values")
    return lengths


class Spans(NamedTuple):
    """Ranges of values to copy from lists, as a named tuple of arrays that kernels accept.

    Span s consists of the values starts[s] to starts[s] + lengths[s] - 1 of list lists[s], and is copied to places[s].
    """

    lists: NDArray[np.int64]  # (spans,) index of the list in the column
    starts: NDArray[np.int64]  # (spans,) index of the first value within the list
    lengths: NDArray[np.int64]  # (spans,) number of values, 0 or more
    places: NDArray[np.int64]  # (spans,) index of the first value in the output


_AHEAD = 2  # segments to prefetch ahead of the copy


@jit_if_large
def _locate(column: Addresses, number: int, near: int) -> tuple[int, int, int]:
    """Locate a list by index. Returns (chunk, index of its first value, values). Tries chunk `near` first."""
    chunk = np.int64(near)
    if not column.first_rows[chunk] <= number < column.first_rows[chunk + 1]:
        chunk, end = np.int64(0), np.int64(len(column.values))  # np.searchsorted takes a second to compile
        while end - chunk > 1:
            middle = (chunk + end) // 2
            if column.first_rows[middle] <= number:
                chunk = middle
            else:
                end = middle
    index = number - column.first_rows[chunk]
    if column.offset_bytes[chunk] == 4:
        offsets = array_at(column.offsets[chunk] + np.uint64(4 * index), 2, np.int32)
        return chunk, np.int64(offsets[0]), np.int64(offsets[1]) - np.int64(offsets[0])
    if column.offset_bytes[chunk] == 8:
        long_offsets = array_at(column.offsets[chunk] + np.uint64(8 * index), 2, np.int64)
        first = long_offsets[0] >> column.offset_shifts[chunk]
        return chunk, first, (long_offsets[1] >> column.offset_shifts[chunk]) - first
    size = column.list_sizes[chunk]
    return chunk, index * size, size


def gather(column: Addresses, spans: Spans, allowed: int, out: NDArray[np.int32], largest: int = 2**31 - 1) -> int:
    """Copy spans of token ids or labels.

    Each type of values has its own kernel, because most columns have one type and compiling takes long.

    Example: column [[7, 8, 9], [5]], lists [1, 0], starts [0, 1], lengths [1, 2], places [0, 1] -> out [5, 8, 9].

    Args:
        column: addresses of the lists.
        spans: values to copy, and their destinations.
        allowed: the only negative value that is accepted: NO_LOSS for labels; 0 for token ids, to accept none.
        out: flat int32 array, C-contiguous.
        largest: maximum token id.

    Returns:
        The first span with a value that is neither in 0 to `largest` nor `allowed`, or -1. The spans before it are
        copied.
    """
    wrong = list[int]()
    addresses, chunks = find_values(column, spans.lists, spans.starts)
    destinations = np.uint64(out.ctypes.data) + (4 * spans.places).astype(np.uint64)
    codes = column.value_codes[chunks]
    for code in np.flatnonzero(np.bincount(codes)).tolist():
        found = np.where(codes == code, addresses, np.uint64(0))
        wrong.append(_gather(found, np.empty(0, VALUE_TYPES[code]), spans.lengths, allowed, largest, destinations))
    return min((span for span in wrong if span >= 0), default=-1)


@jit_if_large
def find_values(
    column: Addresses, lists: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return (address of value starts[i] of list lists[i], its chunk) for all i, each of shape (lists,).

    All addresses are found before anything is copied, so that the cache misses of several segments overlap.
    """
    addresses, chunks = np.empty(len(lists), np.uint64), np.empty(len(lists), np.int64)
    for i in range(len(lists)):
        chunk, first, _ = _locate(column, lists[i], 0)
        chunks[i] = chunk
        addresses[i] = column.values[chunk] + np.uint64((first + starts[i]) * column.value_bytes[chunk])
    return addresses, chunks


@jit_if_large
def _gather(
    found: NDArray[np.uint64],
    typed: NDArray[Any],
    lengths: NDArray[np.int64],
    allowed: int,
    largest: int,
    destinations: NDArray[np.uint64],
) -> int:
    """Copy values at addresses, of the type of the empty array `typed`, to int32 values; skip spans at address 0."""
    for s in range(len(found)):
        if s + _AHEAD < len(found):
            prefetch(found[s + _AHEAD], 4 * lengths[s + _AHEAD])
        if found[s] == 0:
            continue
        values, own = array_at(found[s], lengths[s], typed.dtype), array_at(destinations[s], lengths[s], np.int32)
        if not copy_ids(values, allowed, largest, own):
            return s
    return -1


@jit_if_large
def gather_bytes(column: Addresses, spans: Spans, width: int, destination: int) -> None:
    """Copy spans of values of any type, unchanged and unchecked.

    Args:
        column: addresses of the lists, all of one type.
        spans: values to copy, and their destinations.
        width: bytes per value.
        destination: address that receives the value with place 0; the others follow.
    """
    addresses, _ = find_values(column, spans.lists, spans.starts)
    for i in range(len(addresses)):
        if spans.lengths[i] > 0:
            copy_bytes(destination + width * spans.places[i], addresses[i], width * spans.lengths[i])


@jit_if_large
def lengths_of(column: Addresses, lists: NDArray[np.int64], out: NDArray[np.int32]) -> None:
    """Write the lengths of lists. The offsets of the column must have been checked.

    Args:
        column: addresses of the lists.
        lists: (lists,) indices of the lists; ascending indices are fastest.
        out: (lists,) receives the number of values of each list.
    """
    chunk = np.int64(0)
    for i in range(len(lists)):
        chunk, _, out[i] = _locate(column, lists[i], chunk)


@jit_if_large
def count_trained(places: NDArray[np.int64], labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the number of trained tokens of each segment, shape (segments,).

    Args:
        places: (segments,) index of the first token of each segment in `labels`, ascending.
        labels: flat int32, negative where there is no loss, and outside the segments.
    """
    counts = np.empty(len(places), np.int32)
    for s in range(len(places)):
        own = labels[places[s] : places[s + 1] if s + 1 < len(places) else len(labels)]
        trained = np.int32(0)
        for i in range(len(own)):  # from 0, so that the compiler rules out negative indices and vectorizes
            trained += np.int32(own[i] >= 0)
        counts[s] = trained
    return counts


def fetched_spans(
    columns: Mapping[str, TokenColumn], lists: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[Mapping[str, TokenColumn], NDArray[np.int64]]:
    """Read spans of columns into memory. Returns columns, and the index of each span's list in them.

    Columns that are in memory are returned unchanged. In other columns, list s of the result has only span s.

    Args:
        columns: columns, whose offsets are in memory.
        lists: (spans,) index of each span's list.
        starts: (spans,) index of its first value within the list.
        lengths: (spans,) number of its values.

    Raises:
        OSError: the store cannot be read.
        PackerError: the disk of temporary files is full.
    """
    if not any(is_mirrored(column.addresses.values) for column in columns.values()):
        return columns, lists
    located = [(column.addresses, *find_values(column.addresses, lists, starts)) for column in columns.values()]
    found = np.array([addresses for _, addresses, _ in located]).astype(np.int64)
    widths = np.array([of.value_bytes[chunks] for of, _, chunks in located])
    moved, memory = read_ranges(found.reshape(-1), (widths * lengths).reshape(-1))
    firsts = moved.reshape(found.shape) - widths * starts  # address where value 0 of each list would be
    codes = [of.value_codes[chunks] for of, _, chunks in located]
    made = {
        name: TokenColumn.of_lists(firsts[i], codes[i], widths[i], (columns[name], memory))
        for i, name in enumerate(columns)
    }
    return made, np.arange(len(lists))
