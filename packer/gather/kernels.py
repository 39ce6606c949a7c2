"""Numba kernels: copy segments out of a token column into rows, and derive labels and positions.

The copies call libc's memcpy with raw addresses: a plain Numba loop reaches 0.2 to 0.5 of its speed, and Arrow's
`take` less than a tenth. Documents lie anywhere in the source, so what a copy waits for is the first cache lines of a
segment: those of the next segments are fetched ahead, which takes 40% off.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray  # type: ignore[attr-defined]  # its stub does not export it
from numba.core import cgutils, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.gather.columns import Addresses

NO_LOSS = -100
"""The label that every trainer reads as "no loss here" (the ignore_index of cross-entropy)."""

_LARGEST = np.iinfo(np.int32).max
_AHEAD = 2  # segments fetched ahead of the copy
_FETCHED = 512  # bytes of each; the processor itself goes on from there
_LINE = 64  # bytes of a cache line


def array_at(address: int, count: int, dtype: Any) -> NDArray[Any]:
    """View `count` values of `dtype` at a memory address; the kernels use the compiled twin below."""
    size = int(count) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)


def copy_bytes(destination: int, source: int, count: int) -> None:
    """Copy `count` bytes between memory addresses; the kernels call libc's memcpy."""
    ctypes.memmove(int(destination), int(source), int(count))


@intrinsic
def _as_pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), generate


_pointer: Any = _as_pointer  # called without the typing context, which its signature shows


@overload(array_at)
def _array_at(address: Any, count: Any, dtype: Any) -> Any:
    def implementation(address: Any, count: Any, dtype: Any) -> Any:
        return carray(_pointer(np.uint64(address)), count, dtype)

    return implementation


_memcpy = types.ExternalFunction("memcpy", types.voidptr(types.voidptr, types.voidptr, types.uintp))


@overload(copy_bytes)
def _copy_bytes(destination: Any, source: Any, count: Any) -> Any:
    def implementation(destination: Any, source: Any, count: Any) -> Any:
        _memcpy(_pointer(np.uint64(destination)), _pointer(np.uint64(source)), np.uint64(count))

    return implementation


@intrinsic
def _prefetch_line(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        takes = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        find: Any = cgutils.get_or_insert_function  # untyped
        prefetch = find(builder.module, takes, "llvm.prefetch.p0")
        read, keep, data = word(0), word(3), word(1)
        builder.call(prefetch, [builder.inttoptr(arguments[0], cgutils.voidptr_t), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


def prefetch(address: int, count: int) -> None:
    """Have the processor fetch the first cache lines of `count` bytes; nothing happens where nothing is mapped."""


_fetch_line: Any = _prefetch_line


@overload(prefetch)
def _prefetch(address: Any, count: Any) -> Any:
    def implementation(address: Any, count: Any) -> Any:
        for ahead in range(0, min(np.int64(count), _FETCHED), _LINE):
            _fetch_line(np.uint64(address) + np.uint64(ahead))

    return implementation


@jit
def _locate(column: Addresses, row: int) -> tuple[int, int]:
    """(chunk, number of the first value in that chunk) of a list."""
    chunk, end = np.int64(0), np.int64(len(column.values))  # by hand: np.searchsorted takes a second to compile
    while end - chunk > 1:
        middle = (chunk + end) // 2
        if column.first_rows[middle] <= row:
            chunk = middle
        else:
            end = middle
    index = row - column.first_rows[chunk]
    if column.offset_bytes[chunk] == 4:
        return chunk, np.int64(array_at(column.offsets[chunk], index + 1, np.int32)[index])
    if column.offset_bytes[chunk] == 8:
        return chunk, np.int64(array_at(column.offsets[chunk], index + 1, np.int64)[index])
    return chunk, index * column.list_sizes[chunk]


@jit
def _copy_cast(values: NDArray[Any], out: NDArray[np.int32], allowed: int) -> bool:
    """Copy `values` to `out` as int32; whether all are token ids or equal to `allowed`."""
    wrong = False
    for i in range(len(values)):
        value = np.int64(values[i])  # a uint64 above int64 turns negative here, and is refused as it should be
        wrong |= (value < 0 and value != allowed) or value > _LARGEST
        out[i] = np.int32(value)
    return not wrong


@jit
def _copy_int32(address: int, out: NDArray[np.int32], allowed: int) -> bool:
    """Twin of `_copy_cast` for int32 values: memcpy, then a look at the signs while they are in cache."""
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


@jit
def gather(
    column: Addresses,
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    allowed: int,
    out: NDArray[np.int32],
) -> int:
    """Copy values `starts[s]:starts[s] + lengths[s]` of list `rows[s]` to `out[places[s]:]`, for every segment s.

    Example: column [[7, 8, 9], [5]], rows [1, 0], starts [0, 1], lengths [1, 2], places [0, 1] -> out [5, 8, 9].

    Args:
        column: where the lists are.
        rows: (segments,) number of the list each segment comes from.
        starts: (segments,) its first value within that list.
        lengths: (segments,) how many values; may be 0.
        places: (segments,) where in `out` it goes.
        allowed: the one negative value that is right (NO_LOSS for labels; 0 for token ids: none).
        out: flat int32 array, C-contiguous.

    Returns:
        The first segment with a value that is neither in 0..2^31-1 nor `allowed`, or -1. The copy is finished only
        up to it.
    """
    segments = len(rows)
    codes = np.empty(segments, np.int64)
    found = np.empty(segments, np.uint64)  # looked up beforehand: the processor overlaps misses of different segments
    for s in range(segments):
        chunk, first = _locate(column, rows[s])
        codes[s] = column.value_codes[chunk]
        found[s] = column.values[chunk] + np.uint64((first + starts[s]) * column.value_bytes[chunk])
    for s in range(segments):
        if s + _AHEAD < segments:
            prefetch(found[s + _AHEAD], 4 * lengths[s + _AHEAD])
        count = lengths[s]
        values = found[s]
        code = codes[s]
        place = out[places[s] : places[s] + count]
        if code == 0:
            right = _copy_int32(values, place, allowed)
        elif code == 1:
            right = _copy_cast(array_at(values, count, np.int64), place, allowed)
        elif code == 2:
            right = _copy_cast(array_at(values, count, np.uint16), place, allowed)
        elif code == 3:
            right = _copy_cast(array_at(values, count, np.uint32), place, allowed)
        elif code == 4:
            right = _copy_cast(array_at(values, count, np.int16), place, allowed)
        elif code == 5:
            right = _copy_cast(array_at(values, count, np.uint8), place, allowed)
        elif code == 6:
            right = _copy_cast(array_at(values, count, np.int8), place, allowed)
        else:
            right = _copy_cast(array_at(values, count, np.uint64), place, allowed)
        if not right:
            return s
    return -1


@jit
def fill_gaps(
    places: NDArray[np.int64],
    lengths: NDArray[np.int64],
    extents: NDArray[np.int64],
    ends: NDArray[np.int64],
    max_len: int,
    value: int,
    out: NDArray[np.int32],
) -> None:
    """Write `value` wherever a row has no token: behind the tokens of each extent, and behind its last segment.

    Args:
        places: (segments,) where each segment begins in `out`.
        lengths: (segments,) its tokens.
        extents: (segments,) the place it takes.
        ends: (rows,) where the extents of each row end; row r is `out[r * max_len:(r + 1) * max_len]`.
        max_len: tokens and padding of a row.
        value: pad_id, or "no loss".
        out: flat int32 array, C-contiguous.
    """
    for s in range(len(places)):
        for i in range(places[s] + lengths[s], places[s] + extents[s]):
            out[i] = value
    for r in range(len(ends)):
        for i in range(r * max_len + ends[r], (r + 1) * max_len):
            out[i] = value


@jit
def mask_context(places: NDArray[np.int64], context: NDArray[np.int64], no_loss: int, out: NDArray[np.int32]) -> None:
    """Set "no loss" at the head of every segment: at its first token, and at what it repeats of the piece before.

    The label of a segment's first token would train the last token of the document before it: labels are stored
    unshifted, and every trainer predicts token t from what stands before it in the row.

    Args:
        places: (segments,) where each segment begins in `out`.
        context: (segments,) tokens at its head without loss.
        no_loss: what to write.
        out: flat int32 labels, C-contiguous.
    """
    for s in range(len(places)):
        for i in range(places[s], places[s] + context[s]):
            out[i] = no_loss


@jit
def count_trained(places: NDArray[np.int64], extents: NDArray[np.int64], labels: NDArray[np.int32]) -> tuple[int, int]:
    """Count the tokens that are trained, and the segments without any.

    Args:
        places: (segments,) where each segment begins in `labels`.
        extents: (segments,) the place it takes.
        labels: flat int32, NO_LOSS where there is no loss.
    """
    tokens = 0
    without = 0
    for s in range(len(places)):
        trained = 0
        for i in range(places[s], places[s] + extents[s]):
            trained += labels[i] >= 0
        tokens += trained
        without += trained == 0
    return tokens, without


@jit
def restart_positions(places: NDArray[np.int64], ends: NDArray[np.int64], max_len: int, out: NDArray[np.int32]) -> None:
    """Number the tokens of every segment from 0, and the padding of every row, too.

    Example: max_len 6, places [0, 2, 6], ends [5, 3] -> out [0, 1, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2].
    Arguments as in `fill_gaps`; the first segment of each row begins the row.
    """
    for s in range(len(places)):
        row = places[s] // max_len
        end = row * max_len + ends[row]
        if s + 1 < len(places) and places[s + 1] < end:
            end = places[s + 1]
        for i in range(places[s], end):
            out[i] = i - places[s]
    for r in range(len(ends)):
        tail = r * max_len + ends[r]
        for i in range(tail, (r + 1) * max_len):
            out[i] = i - tail
