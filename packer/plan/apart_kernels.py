"""Numba kernels that keep the segments of a group in different rows: find rows with a clash, and pack them again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.plan.group_kernels import GroupedSegments

NONE = -1
"""No row."""

FILL, DEPTH, ABOVE, BELOW = range(4)
"""Columns of rows: tokens and segments in a row, and its neighbors in the stack of rows with as many tokens."""


@jit
def mark_clashes(
    slots: NDArray[Any],
    row_starts: NDArray[np.int64],
    groups: NDArray[np.int32],
    count: int,
    out: NDArray[np.bool_],
) -> None:
    """Mark the rows that hold two segments of a group.

    Args:
        slots: (segments,) segment numbers, row by row.
        row_starts: (packs + 1,) start of each row in `slots`.
        groups: (numbers,) group of each segment, -1 for none.
        count: number of groups.
        out: (packs,) all False; rows with a clash become True.
    """
    last_rows = np.full(count, NONE)  # last row that held each group
    for row in range(len(row_starts) - 1):
        for slot in range(row_starts[row], row_starts[row + 1]):
            group = groups[slots[slot]]
            if group >= 0:
                out[row] |= last_rows[group] == row
                last_rows[group] = row


@jit
def find_runs(grouped: GroupedSegments, classes: NDArray[np.int64], out_runs: NDArray[Any]) -> Any:
    """Divide groups into runs of segments of one class; write where runs begin, by class and then by group.

    Args:
        grouped: segments by group; each one without a group is a run of its own.
        classes: (max_len + 1,) class of each extent, 0, 1, ... from the longest on.
        out_runs: (segments,) first segment of each run; only the first elements are written.

    Returns:
        The number of runs.
    """
    numbers, starts, _, extents = grouped
    none = len(starts) - 2
    ends = np.zeros(classes[0] + 2, np.int64)
    for group in range(none + 1):
        last = np.int64(-1)
        for i in range(starts[group], starts[group + 1]):
            segment_class = classes[extents[numbers[i]]]
            ends[segment_class + 1] += segment_class != last or group == none
            last = segment_class
    for segment_class in range(1, len(ends)):
        ends[segment_class] += ends[segment_class - 1]
    runs = ends[len(ends) - 1]
    for group in range(none + 1):
        last = np.int64(-1)
        for i in range(starts[group], starts[group + 1]):
            segment_class = classes[extents[numbers[i]]]
            if segment_class != last or group == none:
                out_runs[ends[segment_class]] = i
                ends[segment_class] += 1
                last = segment_class
    return runs


@jit
def spread_runs(
    grouped: GroupedSegments,
    classes: NDArray[np.int64],
    runs: NDArray[Any],
    max_len: int,
    limit: int,
    least: int,
    out_rows: NDArray[Any],
) -> Any:
    """Give every segment the emptiest row that has room and holds no segment of its group, or a new one.

    While a run is placed, rows that hold its group are set aside, so that every other row may be taken. Rows with the
    same number of tokens form a stack. `OpenPacks` is not used, because its calls take several times as long.

    Args:
        grouped: segments by group.
        classes: (max_len + 1,) class of each extent.
        runs: (runs,) first segment of each run in `grouped.numbers`, from `find_runs`.
        max_len: length of a row.
        limit: largest number of segments in a row.
        least: number of rows to begin with, at most the number of segments.
        out_rows: (segments,) row of each segment, from 0 on.

    Returns:
        The number of rows.
    """
    numbers, starts, groups, extents = grouped
    tops = np.full(max_len + 1, NONE)
    rows = np.empty((len(numbers), 4), np.int64)
    count = np.int64(least)
    for row in range(count):
        rows[row, FILL], rows[row, DEPTH] = 0, 0
        rows[row, ABOVE], rows[row, BELOW] = row + 1 if row + 1 < count else NONE, row - 1
    tops[0] = count - 1
    lowest = np.int64(0)  # stacks below it are empty
    for run in range(len(runs)):
        begin = np.int64(runs[run])
        group = groups[numbers[begin]]
        first, last = (starts[group], starts[group + 1]) if group >= 0 else (begin, begin + 1)
        segment_class = classes[extents[numbers[begin]]]
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
            if classes[extent] != segment_class:
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
