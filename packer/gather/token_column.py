"""A list column of integers that lies in memory as Arrow chunks, described by addresses."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, numpy_dtype
from packer.gather.memory import array_at

# The integer types a token may have on disk; a chunk's `value_code` is the position in this tuple,
# and `gather_kernels.py` has one branch for each.
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


class Addresses(NamedTuple):
    """Where the lists of each chunk lie; a named tuple of arrays, as the kernels take it.

    List `row` of the column is list `row - first_rows[chunk]` of its chunk. Its first value is number
    `offset[list]` of the chunk's values, or number `list * list_sizes[chunk]` in a chunk of fixed-size lists.
    """

    first_rows: NDArray[np.int64]  # (chunks + 1,) first list of each chunk, then the number of lists
    offsets: NDArray[np.uint64]  # (chunks,) address of the first list's offset; 0 for fixed-size lists
    offset_bytes: NDArray[np.int64]  # (chunks,) width of an offset: 4, 8, or 0 for fixed-size lists
    list_sizes: NDArray[np.int64]  # (chunks,) length of every list of a fixed-size chunk, else 0
    values: NDArray[np.uint64]  # (chunks,) address of value number 0
    value_codes: NDArray[np.int64]  # (chunks,) index into VALUE_TYPES; -1 for values that are no integers
    value_bytes: NDArray[np.int64]  # (chunks,) width of a value


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenColumn:
    """A list column addressed by row number, whatever chunks, files and integer types it consists of.

    Lists are never taken or combined (both corrupt offsets past 2^31 values): a chunk keeps its own offsets,
    and what is resident is 56 bytes per chunk, nothing per list.
    """

    addresses: Addresses
    """Where the lists are."""

    owners: tuple[object, ...]
    """Whatever keeps the memory at these addresses alive: Arrow arrays, or the buffers of mapped files."""

    @classmethod
    def from_arrow(cls, chunks: Iterable[pa.Array], owners: tuple[object, ...] | None = None) -> TokenColumn:
        """Describe Arrow list arrays (list, large_list or fixed_size_list of numbers of whole bytes), in order.

        The arrays must hold no nulls, and their offsets must have been checked by `list_lengths`.

        Args:
            chunks: the arrays.
            owners: what keeps their memory alive; None for the arrays themselves.
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
    def joined(cls, columns: Sequence[TokenColumn]) -> TokenColumn:
        """Put columns one after the other; a single one is returned as it is."""
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

    def __reduce__(self) -> Any:
        raise TypeError("a column of addresses is of use in its own process only: pickle the source instead")

    def list_at(self, row: int) -> pa.Array:
        """Return a copy of the values of one list of integers, as they are on disk; for error messages."""
        of = self.addresses
        chunk = int(np.searchsorted(of.first_rows, row, side="right")) - 1
        index, size, width = row - int(of.first_rows[chunk]), int(of.list_sizes[chunk]), int(of.offset_bytes[chunk])
        first, last = index * size, (index + 1) * size
        if width:
            offsets = array_at(int(of.offsets[chunk]) + index * width, 2, np.dtype(f"i{width}"))
            first, last = map(int, offsets)
        address = int(of.values[chunk]) + first * int(of.value_bytes[chunk])
        return as_arrow(array_at(address, last - first, VALUE_TYPES[of.value_codes[chunk]]).copy())


class _Layout(NamedTuple):
    """What the type of a chunk tells of its memory; see `Addresses`."""

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
        self._layouts: list[tuple[int, _Layout]] = []  # (the first chunk that has it, layout), ascending

    def add(self, chunk: pa.Array, buffers: Sequence[pa.Buffer | None]) -> None:
        """Append a chunk; one without lists adds nothing.

        Args:
            chunk: as `TokenColumn.from_arrow` takes them.
            buffers: those of the chunk, which take some time to ask for.
        """
        if not len(chunk):
            return
        if self._type is None or not chunk.type.equals(self._type):
            self._type = chunk.type
            self._layouts.append((len(self._values), _layout(chunk.type)))
        offset_bytes, list_size, _, value_bytes = self._layouts[-1][1]
        offsets, values = buffers[1], buffers[-1]  # of a list: validity, offsets, validity of the values, values
        self._first_rows.append(self._first_rows[-1] + len(chunk))
        self._offsets.append(
            offsets.address + chunk.offset * offset_bytes if offset_bytes and offsets is not None else 0
        )
        first = chunk.values.offset + chunk.offset * list_size  # `values` is the whole child: it ignores the slice
        self._values.append(values.address + first * value_bytes if values is not None else 0)

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
            list_sizes=np.ascontiguousarray(list_sizes),
            values=np.array(self._values, np.uint64),
            value_codes=np.ascontiguousarray(value_codes),
            value_bytes=np.ascontiguousarray(value_bytes),
        )


def _layout(kind: pa.DataType) -> _Layout:
    dtype = numpy_dtype(kind.value_type)
    code = VALUE_TYPES.index(dtype.type) if dtype.type in VALUE_TYPES else -1
    if pa.types.is_fixed_size_list(kind):
        return _Layout(0, kind.list_size, code, dtype.itemsize)
    return _Layout(8 if pa.types.is_large_list(kind) else 4, 0, code, dtype.itemsize)


def list_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Lengths of the lists of one Arrow array, shape (len(array),), after checking its offsets.

    `validate`, which the array has passed, looks at the first and the last of them, and at fixed-size lists.

    Raises:
        ValueError: an offset runs backwards or points outside the values.
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
