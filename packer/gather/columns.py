"""A list column of integers that lies in memory as Arrow chunks, described by addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_numpy, numpy_dtype

# The integer types a token may have on disk; a chunk's `value_code` is the position in this tuple,
# and `kernels.py` has one branch for each.
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
    and what is resident is a few words per chunk, nothing per list.
    """

    addresses: Addresses
    """Where the lists are."""

    owners: tuple[pa.Array, ...]
    """The Arrow array of each chunk; they keep the memory mapped."""

    @classmethod
    def from_arrow(cls, chunks: Sequence[pa.Array]) -> TokenColumn:
        """Describe Arrow list arrays (list, large_list or fixed_size_list of numbers of whole bytes), in order.

        The arrays must hold no nulls, and their offsets must have been checked by `list_lengths`.
        """
        filled = tuple(chunk for chunk in chunks if len(chunk))
        described = [_describe(chunk) for chunk in filled]
        offsets, offset_bytes, list_sizes, values, codes = zip(*described, strict=True) if described else ((),) * 5
        addresses = Addresses(
            first_rows=np.concatenate([[0], np.cumsum([len(chunk) for chunk in filled], dtype=np.int64)]).astype(
                np.int64
            ),
            offsets=np.array(offsets, np.uint64),
            offset_bytes=np.array(offset_bytes, np.int64),
            list_sizes=np.array(list_sizes, np.int64),
            values=np.array(values, np.uint64),
            value_codes=np.array(codes, np.int64),
            value_bytes=np.array([numpy_dtype(chunk.type.value_type).itemsize for chunk in filled], np.int64),
        )
        return cls(addresses=addresses, owners=filled)

    def __len__(self) -> int:
        return int(self.addresses.first_rows[-1])

    def list_at(self, row: int) -> pa.Array:
        """Return the values of one list, as they are on disk; for error messages."""
        chunk = int(np.searchsorted(self.addresses.first_rows, row, side="right")) - 1
        return self.owners[chunk][row - int(self.addresses.first_rows[chunk])].values


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


def _describe(array: pa.Array) -> tuple[int, int, int, int, int]:
    """(offsets address, bytes per offset, list size, values address, value code) of one Arrow list array."""
    values = array.values  # the whole child: ignores the slice, so the offsets count from its start
    value_type = numpy_dtype(values.type)
    code = VALUE_TYPES.index(value_type.type) if value_type.type in VALUE_TYPES else -1
    buffer = values.buffers()[1]
    address = buffer.address + values.offset * value_type.itemsize if buffer is not None else 0
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return 0, 0, size, address + array.offset * size * value_type.itemsize, code
    offsets = array.offsets  # respects the slice
    width = offsets.type.bit_width // 8
    return offsets.buffers()[1].address + offsets.offset * width, width, 0, address, code
