"""Numba kernels that copy spans of list columns into rows.

Copies call libc's memcpy with raw addresses: a plain Numba loop reaches 0.2 to 0.5 of its speed, and Arrow's `take`
less than a tenth. Documents may be anywhere in the source, so a copy mostly waits for the first cache lines of a
segment. Prefetching those of the next segments saves 40% of the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_helper, jit_if_large
from packer.algorithms.memory import array_at, copy_bytes, prefetch
from packer.gather.token_column import VALUE_TYPES, Addresses


class Spans(NamedTuple):
    """Ranges of values to copy from lists, as a named tuple of arrays that kernels accept.

    Span s is the values starts[s] to starts[s] + lengths[s] - 1 of list lists[s], and is copied to places[s].
    """

    lists: NDArray[np.int64]  # (spans,) number of the list in the column
    starts: NDArray[np.int64]  # (spans,) index of the first value within the list
    lengths: NDArray[np.int64]  # (spans,) number of values, 0 or more
    places: NDArray[np.int64]  # (spans,) index of the first value in the output


_LARGEST = np.iinfo(np.int32).max
_AHEAD = 2  # segments to prefetch ahead of the copy


@jit_helper
def _locate(column: Addresses, number: int) -> tuple[int, int]:
    """Locate a list by number: returns (chunk, index of its first value in the chunk)."""
    chunk, end = np.int64(0), np.int64(len(column.values))  # np.searchsorted takes a second to compile
    while end - chunk > 1:
        middle = (chunk + end) // 2
        if column.first_rows[middle] <= number:
            chunk = middle
        else:
            end = middle
    index = number - column.first_rows[chunk]
    if column.offset_bytes[chunk] == 4:
        return chunk, np.int64(array_at(column.offsets[chunk] + np.uint64(4 * index), 1, np.int32)[0])
    if column.offset_bytes[chunk] == 8:
        return chunk, array_at(column.offsets[chunk] + np.uint64(8 * index), 1, np.int64)[0]
    return chunk, index * column.list_sizes[chunk]


@jit_helper
def _copy_cast(values: NDArray[Any], out: NDArray[np.int32], allowed: int) -> bool:
    """Copy `values` to `out` as int32; returns whether each is a token id or equal to `allowed`."""
    wrong = False
    for i in range(len(values)):
        value = np.int64(values[i])  # a uint64 above int64 becomes negative here and is rejected
        wrong |= (value < 0 and value != allowed) or value > _LARGEST
        out[i] = np.int32(value)
    return not wrong


@jit_helper
def _copy_int32(address: int, out: NDArray[np.int32], allowed: int) -> bool:
    """Variant of `_copy_cast` for int32 values: memcpy, then a check of the signs while they are in cache."""
    copy_bytes(out.ctypes.data, address, 4 * len(out))
    signs = np.int32(0)
    for i in range(len(out)):
        signs |= out[i]
    if signs >= 0:
        return True
    wrong = False
    for i in range(len(out)):
        wrong |= out[i] < 0 and out[i] != allowed
    return not wrong


def gather(column: Addresses, spans: Spans, allowed: int, out: NDArray[np.int32]) -> int:
    """Copy spans of token ids or labels.

    Each type of values has a kernel of its own, because most columns have one type and compiling takes long.

    Example: column [[7, 8, 9], [5]], lists [1, 0], starts [0, 1], lengths [1, 2], places [0, 1] -> out [5, 8, 9].

    Args:
        column: addresses of the lists.
        spans: values to copy, and their destinations.
        allowed: the only negative value that is accepted: NO_LOSS for labels; 0, so none, for token ids.
        out: flat int32 array, C-contiguous.

    Returns:
        The first span with a value that is neither in 0 to 2**31 - 1 nor `allowed`, or -1. The spans before it are
        copied.
    """
    first_wrong = -1
    for code in np.flatnonzero(np.bincount(column.value_codes)).tolist():
        found = np.empty(len(spans.lists), np.uint64)
        _find_values(column, spans, code, found)
        if code == 0:
            wrong = _gather_int32(found, spans.lengths, spans.places, allowed, out)
        else:
            wrong = _gather_cast(found, np.empty(0, VALUE_TYPES[code]), spans.lengths, spans.places, allowed, out)
        if wrong >= 0 and not 0 <= first_wrong < wrong:
            first_wrong = int(wrong)
    return first_wrong


@jit_if_large
def _find_values(column: Addresses, spans: Spans, code: int, out: NDArray[np.uint64]) -> None:
    """Write the address of the first value of each span; 0 for a span of another type.

    All are found before anything is copied, so that the cache misses of several segments overlap.
    """
    lists, starts, _, _ = spans
    for s in range(len(lists)):
        chunk, first = _locate(column, lists[s])
        out[s] = 0
        if column.value_codes[chunk] == code:
            out[s] = column.values[chunk] + np.uint64((first + starts[s]) * column.value_bytes[chunk])


@jit_if_large
def _gather_int32(
    found: NDArray[np.uint64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    allowed: int,
    out: NDArray[np.int32],
) -> int:
    """Copy the int32 values at addresses; spans at address 0 are left out."""
    spans = len(found)
    for s in range(spans):
        if s + _AHEAD < spans:
            prefetch(found[s + _AHEAD], 4 * lengths[s + _AHEAD])
        if found[s] != 0 and not _copy_int32(found[s], out[places[s] : places[s] + lengths[s]], allowed):
            return s
    return -1


@jit_if_large
def _gather_cast(
    found: NDArray[np.uint64],
    like: NDArray[Any],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    allowed: int,
    out: NDArray[np.int32],
) -> int:
    """Copy the values at addresses, which have the type of the empty array `like`."""
    spans = len(found)
    for s in range(spans):
        if s + _AHEAD < spans:
            prefetch(found[s + _AHEAD], 4 * lengths[s + _AHEAD])
        if found[s] != 0:
            values = array_at(found[s], lengths[s], like.dtype)
            if not _copy_cast(values, out[places[s] : places[s] + lengths[s]], allowed):
                return s
    return -1


@jit_if_large
def gather_bytes(column: Addresses, spans: Spans, width: int, out: NDArray[np.uint8]) -> None:
    """Copy spans of values of any type unchanged and unchecked.

    Args:
        column: addresses of the lists, all of one type.
        spans: values to copy, and their destinations.
        width: bytes per value.
        out: flat uint8 array that receives the bytes of the values, C-contiguous.
    """
    lists, starts, lengths, places = spans
    for s in range(len(lists)):
        if lengths[s] > 0:
            chunk, first = _locate(column, lists[s])
            source = column.values[chunk] + np.uint64((first + starts[s]) * width)
            copy_bytes(out.ctypes.data + width * places[s], source, width * lengths[s])


@jit_if_large
def value_ranges(
    column: Addresses,
    lists: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    addresses: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Write where spans of lists are in memory: the address of the first value of each, and its bytes.

    Args:
        column: addresses of the lists.
        lists: (spans,) number of each list.
        starts: (spans,) index of the first value within the list.
        lengths: (spans,) number of values.
        addresses: (spans,) receives addresses.
        sizes: (spans,) receives bytes.
    """
    for s in range(len(lists)):
        chunk, first = _locate(column, lists[s])
        addresses[s] = np.int64(column.values[chunk]) + (first + starts[s]) * column.value_bytes[chunk]
        sizes[s] = lengths[s] * column.value_bytes[chunk]


@jit_if_large
def lengths_of(column: Addresses, lists: NDArray[np.int64], out: NDArray[np.int32]) -> None:
    """Write the lengths of lists; the offsets of the column must have been checked.

    Args:
        column: addresses of the lists.
        lists: (lists,) numbers of the lists; ascending numbers are fastest.
        out: (lists,) receives the number of values in each list.
    """
    chunk = np.int64(0)
    for i in range(len(lists)):
        number = lists[i]
        if not column.first_rows[chunk] <= number < column.first_rows[chunk + 1]:
            chunk, _ = _locate(column, number)
        index = number - column.first_rows[chunk]
        if column.offset_bytes[chunk] == 4:
            offsets = array_at(column.offsets[chunk] + np.uint64(4 * index), 2, np.int32)
            out[i] = offsets[1] - offsets[0]
        elif column.offset_bytes[chunk] == 8:
            long_offsets = array_at(column.offsets[chunk] + np.uint64(8 * index), 2, np.int64)
            out[i] = long_offsets[1] - long_offsets[0]
        else:
            out[i] = column.list_sizes[chunk]
