"""Numba kernels that pack segments anew with groups apart: the largest first, each in the emptiest row it may go to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit

NONE = -1
"""No row."""

FILL, DEPTH, ABOVE, BELOW = range(4)
"""Columns of rows: tokens and segments in it, and its neighbours in the stack of its fill."""


@jit
def find_runs(
    numbers: NDArray[np.uint32],
    starts: NDArray[np.int64],
    classes: NDArray[np.int64],
    extents: NDArray[np.int32],
    out_runs: NDArray[np.uint32],
) -> Any:
    """Cut groups into runs of segments of a class; write where each begins, by class and then by group.

    Args:
        numbers: (segments,) by group, in each the longest first.
        starts: (groups + 2,) where each group begins; the last is of segments without one, each a run of its own.
        classes: (max_len + 1,) the class of each extent, 0, 1, ... from the longest on.
        extents: (numbers,) the extent of each segment.
        out_runs: (segments,) of which the first are written.

    Returns:
        The number of runs.
    """
    none = len(starts) - 2
    ends = np.zeros(classes[0] + 2, np.int64)
    for group in range(none + 1):
        last = np.int64(-1)
        for i in range(starts[group], starts[group + 1]):
            of = classes[extents[numbers[i]]]
            ends[of + 1] += of != last or group == none
            last = of
    for of in range(1, len(ends)):
        ends[of] += ends[of - 1]
    runs = ends[len(ends) - 1]
    for group in range(none + 1):
        last = np.int64(-1)
        for i in range(starts[group], starts[group + 1]):
            of = classes[extents[numbers[i]]]
            if of != last or group == none:
                out_runs[ends[of]] = i
                ends[of] += 1
                last = of
    return runs


@jit
def spread_runs(
    runs: NDArray[np.uint32],
    numbers: NDArray[np.uint32],
    starts: NDArray[np.int64],
    groups: NDArray[np.int32],
    classes: NDArray[np.int64],
    extents: NDArray[np.int32],
    max_len: int,
    limit: int,
    least: int,
    out_rows: NDArray[np.uint32],
) -> Any:
    """Give every segment the emptiest row that has room and holds nothing of its group, or a new one.

    While a run is placed, the rows that hold its group are set aside, so that whatever is left may be taken and none
    is looked at in vain. Rows of the same fill lie in a stack. The stacks are kept here and not in `OpenPacks`, whose
    calls take several times as long as what they do.

    Args:
        runs: (runs,) where each begins in `numbers`, as of `find_runs`.
        numbers: (segments,) by group, in each the longest first.
        starts: (groups + 2,) where each group begins; the last is of segments without one.
        groups: (numbers,) the group of each segment, -1 for none.
        classes: (max_len + 1,) the class of each extent.
        extents: (numbers,) the extent of each segment.
        max_len: tokens of a row.
        limit: the most segments in a row.
        least: rows to begin with, at most as many as segments.
        out_rows: (segments,) the row of each segment, from 0 on.

    Returns:
        How many rows there are.
    """
    tops = np.full(max_len + 1, NONE)
    rows = np.empty((len(numbers), 4), np.int64)
    count = np.int64(least)
    for row in range(count):
        rows[row, FILL], rows[row, DEPTH] = 0, 0
        rows[row, ABOVE], rows[row, BELOW] = row + 1 if row + 1 < count else NONE, row - 1
    tops[0] = count - 1
    lowest = np.int64(0)  # no stack below it holds a row
    for run in range(len(runs)):
        begin = np.int64(runs[run])
        group = groups[numbers[begin]]
        first, last = (starts[group], starts[group + 1]) if group >= 0 else (begin, begin + 1)
        of = classes[extents[numbers[begin]]]
        for i in range(first, begin):
            row = np.int64(out_rows[i])
            if rows[row, FILL] == max_len or rows[row, DEPTH] == limit:
                continue
            above, below = rows[row, ABOVE], rows[row, BELOW]
            if above == NONE:
                tops[rows[row, FILL]] = below
            else:
                rows[above, BELOW] = below
            if below != NONE:
                rows[below, ABOVE] = above
        end = begin
        while end < last:
            extent = np.int64(extents[numbers[end]])
            if classes[extent] != of:
                break
            while lowest < max_len and tops[lowest] == NONE:
                lowest += 1
            if lowest + extent <= max_len:
                row = tops[lowest]
                below = rows[row, BELOW]
                tops[lowest] = below
                if below != NONE:
                    rows[below, ABOVE] = NONE
            else:
                row = count
                rows[row, FILL], rows[row, DEPTH] = 0, 0
                count += 1
            rows[row, FILL] += extent
            rows[row, DEPTH] += 1
            out_rows[end] = row
            end += 1
        for i in range(first, end):
            row = np.int64(out_rows[i])
            fill = rows[row, FILL]
            if fill == max_len or rows[row, DEPTH] == limit:
                continue
            below = tops[fill]
            rows[row, ABOVE], rows[row, BELOW] = NONE, below
            if below != NONE:
                rows[below, ABOVE] = row
            tops[fill] = row
            lowest = min(lowest, fill)
    return count
