"""Numba kernels that fill rows with segments of given extents.

They use loops instead of slices: a slice assignment takes seconds to compile and runs no faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.plan.permute import permute, stream_key
from packer.random_purposes import EQUAL_LENGTHS, SEGMENTS_IN_ROW


@jit_if_large
def sort_by_extent(extents: NDArray[np.int32], out_groups: NDArray[np.int64], out_numbers: NDArray[np.uint32]) -> None:
    """Sort segment numbers by extent (counting sort); segments of extent 0 are left out.

    Extents [2, 0, 1, 2] give groups [0, 0, 1, 3] and numbers [2, 0, 3].

    Args:
        extents: (segments,) extent of each segment.
        out_groups: (max_len + 2,) all zero; afterwards, the segments of an extent are
            out_numbers[out_groups[extent]:out_groups[extent + 1]].
        out_numbers: (at least segments with an extent,) segment numbers, ascending within an extent.
    """
    for extent in extents:
        out_groups[extent] += 1
    out_groups[0] = 0
    for extent in range(1, len(out_groups)):
        out_groups[extent] += out_groups[extent - 1]
    # Each extent is filled from its end, so that its end becomes its start.
    for number in range(len(extents) - 1, -1, -1):
        extent = extents[number]
        if extent > 0:
            out_groups[extent] -= 1
            out_numbers[out_groups[extent]] = number


@jit_if_large
def permute_equal(groups: NDArray[np.int64], stream: int, seed: np.uint64, out_numbers: NDArray[np.uint32]) -> None:
    """Permute the segments of each extent; `groups` and `out_numbers` are written by `sort_by_extent`."""
    for extent in range(1, len(groups) - 1):
        if groups[extent + 1] - groups[extent] > 1:
            key = stream_key(seed, EQUAL_LENGTHS, stream * (np.int64(1) << 32) + extent)
            permute(out_numbers, groups[extent], groups[extent + 1], key)


@jit_if_large
def expand_patterns(
    numbers: NDArray[np.int32],
    packs: NDArray[np.int64],
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    out_row_extents: NDArray[np.int32],
    out_row_starts: NDArray[np.int64],
) -> None:
    """Write the extents of all rows that follow patterns, one row after the other.

    Args:
        numbers: (entries,) numbers of the patterns that rows follow.
        packs: (entries,) number of rows that follow each.
        offsets: (patterns + 1,) field of `Patterns`.
        extents: (offsets[-1],) field of `Patterns`.
        out_row_extents: (segments in rows,) extents, row by row.
        out_row_starts: (rows + 1,) start of each row, then the end.
    """
    row, size = 0, 0
    for i in range(len(numbers)):
        for _ in range(packs[i]):
            for e in range(offsets[numbers[i]], offsets[numbers[i] + 1]):
                out_row_extents[size] = extents[e]
                size += 1
            row += 1
            out_row_starts[row] = size


@jit_if_large
def fill_rows(
    row_extents: NDArray[np.int32],
    row_starts: NDArray[np.int64],
    row_order: NDArray[np.uint32],
    out_groups: NDArray[np.int64],
    numbers: NDArray[np.uint32],
    key: Any,
    out_row_starts: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
) -> None:
    """Fill rows with the next segment of each of their extents, in random order within each row.

    Args:
        row_extents: (segments in rows,) extents, row by row.
        row_starts: (rows + 1,) row r takes the extents row_extents[row_starts[r]:row_starts[r + 1]].
        row_order: (rows,) order in which rows are filled and written.
        out_groups: (max_len + 2,) start of each extent in `numbers`; afterwards, the first segment that is left.
        numbers: (segments,) segment numbers by extent, in the order in which they are taken.
        key: key of the draws for the order within rows.
        out_row_starts: (rows + 1,) start of each row in `out_slots`, then the end.
        out_slots: (segments in rows,) segment numbers, row by row.
    """
    slot = 0
    for row in range(len(row_order)):
        begin = slot
        for e in range(row_starts[row_order[row]], row_starts[row_order[row] + 1]):
            extent = row_extents[e]
            out_slots[slot] = numbers[out_groups[extent]]
            out_groups[extent] += 1
            slot += 1
        permute(out_slots, begin, slot, stream_key(key, SEGMENTS_IN_ROW, row))
        out_row_starts[row + 1] = slot
