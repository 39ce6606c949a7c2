"""Numba kernels that copy spans of list columns into rows, and count trained labels.

Copies call libc's memcpy with raw addresses: a plain Numba loop reaches 0.2 to 0.5 of its speed, and Arrow's `take`
less than a tenth. Documents may be anywhere in the source, so a copy mostly waits for the first cache lines of a
segment. Prefetching those of the next segments saves 40% of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.algorithms.memory import array_at, copy_bytes, prefetch
from packer.stores.mirror import is_mirrored, read_ranges
from packer.token_memory.token_column import VALUE_TYPES, Addresses, TokenColumn


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


@jit_if_large
def _locate(column: Addresses, number: int, near: int) -> tuple[int, int, int]:
    """Locate a list by number: returns (chunk, index of its first value, values), trying chunk `near` first."""
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


@jit_if_large
def _copy_cast(values: NDArray[Any], out: NDArray[np.int32], allowed: int) -> bool:
    """Copy `values` to `out` as int32; returns whether each is a token id or equal to `allowed`."""
    wrong = False
    for i in range(len(values)):
        value = np.int64(values[i])  # a uint64 above int64 becomes negative here and is rejected
        wrong |= (value < 0 and value != allowed) or value > _LARGEST
        out[i] = np.int32(value)
    return not wrong


@jit_if_large
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
    addresses, chunks = find_values(column, spans.lists, spans.starts)
    codes = column.value_codes[chunks]
    for code in np.flatnonzero(np.bincount(codes)).tolist():
        found = np.where(codes == code, addresses, np.uint64(0))
        other = None if VALUE_TYPES[code] is np.int32 else np.empty(0, VALUE_TYPES[code])
        may_be_allowed = allowed if np.issubdtype(VALUE_TYPES[code], np.signedinteger) else 0
        wrong = _gather(found, other, spans.lengths, spans.places, may_be_allowed, out)
        if wrong >= 0 and not 0 <= first_wrong < wrong:
            first_wrong = int(wrong)
    return first_wrong


@jit_if_large
def find_values(
    column: Addresses, lists: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the address of value starts[i] of list lists[i], and the chunk that it is in: each of shape (lists,).

    All are found before anything is copied, so that the cache misses of several segments overlap.
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
    other: NDArray[Any] | None,
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    allowed: int,
    out: NDArray[np.int32],
) -> int:
    """Copy the values at addresses; spans at address 0 are left out.

    Values have the type of the empty array `other`, or int32 without one: only one of the two branches is compiled.
    """
    spans = len(found)
    for s in range(spans):
        if s + _AHEAD < spans:
            prefetch(found[s + _AHEAD], 4 * lengths[s + _AHEAD])
        if found[s] == 0:
            continue
        own = out[places[s] : places[s] + lengths[s]]
        if other is None:
            is_valid = _copy_int32(found[s], own, allowed)
        else:
            is_valid = _copy_cast(array_at(found[s], lengths[s], other.dtype), own, allowed)
        if not is_valid:
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
    addresses, _ = find_values(column, spans.lists, spans.starts)
    for i in range(len(addresses)):
        if spans.lengths[i] > 0:
            copy_bytes(out.ctypes.data + width * spans.places[i], addresses[i], width * spans.lengths[i])


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
        chunk, _, out[i] = _locate(column, lists[i], chunk)


@jit_if_large
def count_trained(
    places: NDArray[np.int64], lengths: NDArray[np.int64], labels: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the number of trained tokens of each segment, shape (segments,).

    Args:
        places: (segments,) position of each segment in `labels`.
        lengths: (segments,) number of its tokens, or of positions it takes.
        labels: flat int32, negative where there is no loss.
    """
    counts = np.empty(len(places), np.int32)
    for s in range(len(places)):
        own = labels[places[s] : places[s] + lengths[s]]
        trained = np.int32(0)
        for i in range(len(own)):  # from 0, so that the compiler rules out negative indices and vectorizes
            trained += np.int32(own[i] >= 0)
        counts[s] = trained
    return counts


def fetched_spans(
    columns: Mapping[str, TokenColumn], lists: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[Mapping[str, TokenColumn], NDArray[np.int64]]:
    """Return columns with spans of lists in memory, and the number of each span's list in them.

    Columns in memory are returned as they are. Of others, spans are read, and list s of the result has only span s.

    Args:
        columns: columns, whose offsets are in memory.
        lists: (spans,) number of each span's list.
        starts: (spans,) index of its first value within the list.
        lengths: (spans,) number of its values.

    Raises:
        OSError: the store cannot be read.
        PackerError: the disk of temporary files is full.
    """
    if not any(map(lies_in_store, columns.values())):
        return columns, lists
    located = [(column.addresses, *find_values(column.addresses, lists, starts)) for column in columns.values()]
    found = np.array([addresses for _, addresses, _ in located]).astype(np.int64)
    widths = np.array([of.value_bytes[chunks] for of, _, chunks in located])
    moved, memory = read_ranges(found.reshape(-1), (widths * lengths).reshape(-1))
    firsts = moved.reshape(found.shape) - widths * starts  # where value 0 of each list would be
    codes = [of.value_codes[chunks] for of, _, chunks in located]
    made = {
        name: TokenColumn.of_lists(firsts[i], codes[i], widths[i], (columns[name], memory))
        for i, name in enumerate(columns)
    }
    return made, np.arange(len(lists))


def lies_in_store(column: TokenColumn) -> bool:
    """Whether values of a column lie in object storage."""
    return is_mirrored(column.addresses.values)
