"""List columns of integers in Arrow memory, described by addresses."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.memory import array_at
from packer.arrow import as_numpy, numpy_dtype

# Integer types that tokens may have on disk. The `value_code` of a chunk is an index into this tuple.
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
"""Type of the values of lists of which only the lengths are known; any number of these values takes no memory."""


class Addresses(NamedTuple):
    """Addresses of the lists of each chunk, as a named tuple of arrays that kernels accept.

    List i of the column is list j = i - first_rows[chunk] of its chunk. Its first value has index
    offsets[j] >> offset_shifts[chunk] among the values of the chunk, or index j * list_sizes[chunk] in a chunk of
    fixed-size lists.
    """

    first_rows: NDArray[np.int64]  # (chunks + 1,) number of the first list, then the number of all lists
    offsets: NDArray[np.uint64]  # (chunks,) address of the offset of the first list; 0 for fixed-size lists
    offset_bytes: NDArray[np.int64]  # (chunks,) bytes per offset: 4, 8, or 0 for fixed-size lists
    offset_shifts: NDArray[np.int64]  # (chunks,) 0 for offsets that count values; 1, 2 or 3 if they count bytes
    list_sizes: NDArray[np.int64]  # (chunks,) length of fixed-size lists, otherwise 0
    values: NDArray[np.uint64]  # (chunks,) address of the value with index 0
    value_codes: NDArray[np.int64]  # (chunks,) index into VALUE_TYPES; -1 for other types
    value_bytes: NDArray[np.int64]  # (chunks,) bytes per value


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenColumn:
    """A list column addressed by list number, across chunks, files and integer types.

    It holds 64 bytes per chunk and nothing per list. Chunks keep their own offsets, since Arrow's `take` and
    `combine_chunks` corrupt offsets beyond 2**31 values.
    """

    addresses: Addresses

    owners: tuple[object, ...]
    """Objects that keep the memory alive: Arrow arrays, or the buffers of mapped files."""

    @classmethod
    def from_arrow(cls, chunks: Iterable[pa.Array], owners: tuple[object, ...] | None = None) -> TokenColumn:
        """Describe Arrow list arrays (list, large_list or fixed_size_list of values with a `numpy_dtype`), in order.

        The arrays must hold no nulls, and their offsets must have been checked by `list_lengths`.

        Args:
            chunks: arrays to describe.
            owners: objects that keep their memory alive; None for the arrays themselves.
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
        cls,
        firsts: NDArray[np.int64],
        codes: NDArray[np.int64],
        widths: NDArray[np.int64],
        owners: tuple[object, ...],
    ) -> TokenColumn:
        """Describe lists of unknown lengths one by one; of each, only a span of values need be in memory.

        Args:
            firsts: (lists,) address that the value with index 0 of each list has, or would have before its span.
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
    """Memory layout of a chunk, given by its type; see `Addresses`."""

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
        offsets, values = buffers[1], buffers[-1]  # of a list array: validity, offsets, those of the values, values
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

    The array must have passed `validate`, which checks only the first and last offsets, and fixed-size lists.

    Raises:
        ValueError: an offset is smaller than the one before it, or outside the values.
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
