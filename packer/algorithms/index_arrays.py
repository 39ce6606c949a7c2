"""Functions of index arrays: joined ranges, positions, a stable sort by small integers, and extents."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large

Integer = TypeVar("Integer", bound=np.integer[Any])


def joined_ranges(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return the indices of all ranges as one int64 array: starts [5, 2] and lengths [3, 2] -> [5, 6, 7, 2, 3]."""
    ends = np.cumsum(lengths, dtype=np.int64)
    indices = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    indices += np.repeat(starts - (ends - lengths), lengths)
    return indices


def cu_seqlens_of(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the cumulative segment lengths, shape (segments + 1,), starting at 0: [3, 1] -> [0, 3, 4]."""
    cu_seqlens = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=cu_seqlens[1:])
    return cu_seqlens


def restart_positions(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Number the tokens of each segment from 0: [3, 1, 2] -> [0, 1, 2, 0, 0, 1]."""
    starts = cu_seqlens_of(lengths)[:-1].repeat(lengths)
    return np.subtract(np.arange(len(starts)), starts, out=starts)


def sorted_indices(keys: NDArray[Any], count: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Sort indices stably by key; keys are integers from 0 to count - 1.

    Returns (starts, indices). starts: int64, shape (count + 1,), the start of each key's indices, and the end of all
    indices. indices: uint32 if there are fewer than 2**32 keys, otherwise int64. Keys [2, 0, 2] and count 3 give [0, 1,
    1, 3] and [1, 0, 2].
    """
    starts = np.zeros(count + 1, np.int64)
    indices = np.empty(len(keys), np.uint32 if len(keys) < 2**32 else np.int64)
    _counting_sort(keys, starts, indices)
    return starts, indices


@jit_if_large
def _counting_sort(keys: NDArray[Any], out_starts: NDArray[np.int64], out_indices: NDArray[Any]) -> None:
    """Write the result of `sorted_indices`; `out_starts` must be all zero."""
    for key in keys:
        out_starts[key] += 1
    for key in range(1, len(out_starts)):
        out_starts[key] += out_starts[key - 1]
    # The indices of each key are filled in from the end, so the end of each key becomes its start.
    for i in range(len(keys) - 1, -1, -1):
        key = keys[i]
        out_starts[key] -= 1
        out_indices[out_starts[key]] = i


def extents_of(lengths: NDArray[Integer], align: int) -> NDArray[Integer]:
    """Return the number of places that each segment takes in a row: its length rounded up to a multiple of `align`."""
    extents: NDArray[Integer] = lengths if align == 1 else -(-lengths // align) * align
    return extents
