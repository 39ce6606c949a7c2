"""Keep groups apart: dissolve rows with two segments of a group, and pack their segments again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import sorted_indices
from packer.algorithms.jit import jit, jit_if_large
from packer.plan.groups import NO_GROUP, GroupedSegments, apart_bound_of_extents, by_group, groups_of_numbers
from packer.plan.rows import PlacedRows, collected_rows
from packer.plan.segments import Segments

EXTRA = 0.006
"""Extra rows to pack the segments of dissolved rows into, as a share of these rows."""

GROWTH = 1.5
"""Factor by which the number of dissolved rows grows while the largest group needs more rows."""

CLASS_RATIO, SHORTEST = 1.1, 256
"""Extents of a class differ at most by the factor CLASS_RATIO. Exceptions are the class of all extents above half a
row, and the class of all below 1 / SHORTEST of a row."""


def keep_apart(
    placed: PlacedRows,
    segments: Segments,
    groups: NDArray[np.int32],
    *,
    least: int,
    max_segments: int | None,
    seed: int,
) -> PlacedRows:
    """Change rows so that no row holds two segments of a group; pieces of one document are in one group.

    Rows that hold two segments of a group are dissolved, and as many others as the largest group needs. Their
    segments, the longest first, are spread over the same number of rows and a few extra ones: each goes to the
    emptiest row without its group, or to a new row. If this adds more than the share EXTRA to all rows, or the
    largest group needs all rows, every row is dissolved. The fewest rows are kept.

    `placed` has rows of all segments in random order; it is returned unchanged if none holds two segments of a
    group. `groups`, shape (documents,), are 0 to groups - 1, or NO_GROUP for documents that may share any row.
    `least` is a lower bound on the rows, from `apart_bound`.
    """
    of_numbers, extents = groups_of_numbers(segments, groups), segments.extents_of_numbers()
    is_clash = _clashes(placed, of_numbers)
    if not is_clash.any():
        return placed
    order = np.argsort(~is_clash, kind="stable")  # rows with a clash, then the others, whose order is random
    depths = np.diff(placed.row_starts)

    def first_segments(rows: int) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
        """Return which segments are in the first rows of `order`, and extents by number that are 0 for all others."""
        is_in_row = np.zeros(len(placed), np.bool_)
        is_in_row[order[:rows]] = True
        is_in = np.repeat(is_in_row, depths)
        chosen = np.zeros_like(extents)
        chosen[placed.numbers[is_in]] = extents[placed.numbers[is_in]]
        return is_in, chosen

    def dissolve(rows: int, least: int) -> PlacedRows:
        """Pack the segments in the first rows of `order` again, into at least `least` rows, and keep the other rows."""
        is_in, chosen = first_segments(rows)
        grouped = by_group(chosen, of_numbers, segments.max_len, seed)
        least = max(least, rows + int(EXTRA * rows))
        new_rows, packs = _spread(grouped, segments.max_len, max_segments, least)
        kept = np.sort(order[rows:])
        kept_rows = np.repeat(np.arange(packs, packs + len(kept), dtype=new_rows.dtype), depths[kept])
        numbers = np.concatenate([grouped.numbers, placed.numbers[~is_in]])
        return collected_rows(numbers, np.concatenate([new_rows, kept_rows]), packs + len(kept), seed=seed)

    rows, found = int(np.count_nonzero(is_clash)), None
    while rows < len(placed):
        needed = apart_bound_of_extents(first_segments(rows)[1], of_numbers, segments.max_len)
        if needed <= (1 + EXTRA) * rows:
            found = dissolve(rows, needed)
            break
        rows = math.ceil(GROWTH * rows)
    if found is None or len(found) > (1 + EXTRA) * len(placed):
        repacked = dissolve(len(placed), least)
        found = repacked if found is None or len(repacked) < len(found) else found
    return found


def _clashes(placed: PlacedRows, groups: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which rows hold two segments of a group, shape (rows,); `groups` is that of each segment number."""
    of_segments = groups[placed.numbers]
    starts, order = sorted_indices(of_segments - NO_GROUP, int(groups.max(initial=NO_GROUP)) - NO_GROUP + 1)
    order = order[starts[1] :]  # segments by group, and in each by row
    row_of, of_segments = np.repeat(np.arange(len(placed)), np.diff(placed.row_starts))[order], of_segments[order]
    is_clash = np.zeros(len(placed), np.bool_)
    is_clash[row_of[1:][(np.diff(row_of) == 0) & (np.diff(of_segments) == 0)]] = True
    return is_clash


def _spread(grouped: GroupedSegments, max_len: int, max_segments: int | None, least: int) -> tuple[NDArray[Any], int]:
    """Return the row of each segment, and the number of rows, at least `least` if there are as many segments.

    Segments are packed class of extents by class, the longest first, and within a class group by group, so that rows
    with a segment of the group are set aside once for all its segments.
    """
    numbers, starts, _, extents = grouped
    classes = _classes(max_len)
    of_segments, none = classes[extents[numbers]].astype(np.int16), len(starts) - 2
    is_first = np.diff(of_segments, prepend=np.int16(-1)) != 0
    is_first[starts[:-1][starts[:-1] < len(numbers)]] = True
    is_first[starts[none] :] = True  # each segment without a group is a run of its own
    runs = np.flatnonzero(is_first)
    runs = runs[np.argsort(of_segments[runs], kind="stable")]
    rows = np.empty_like(numbers)
    limit = max_len if max_segments is None else min(max_segments, max_len)
    return rows, spread_runs(grouped, classes, runs, max_len, limit, min(least, len(numbers)), rows)


def _classes(max_len: int) -> NDArray[np.int64]:
    """Return the class of each extent, shape (max_len + 1,): 0 above half a row, where no two can share a row."""
    steps = math.ceil(math.log(SHORTEST / 2, CLASS_RATIO))
    edges = max_len / 2 / CLASS_RATIO ** np.arange(steps + 1)
    return np.searchsorted(-edges, -np.arange(max_len + 1), side="left")


NONE = -1
"""No row."""

FILL, DEPTH, ABOVE, BELOW = range(4)
"""Columns of rows: tokens and segments in a row, and its neighbors in the stack of rows with as many tokens."""


@jit
def spread_runs(
    grouped: GroupedSegments,
    classes: NDArray[np.int64],
    runs: NDArray[Any],
    max_len: int,
    limit: int,
    least: int,
    out_rows: NDArray[Any],
) -> int:
    """Give every segment the emptiest row that has room and holds no segment of its group, or a new one.

    While a run is placed, rows that hold its group are set aside, so that every other row may be taken. Rows with the
    same number of tokens form a stack. `OpenPacks` is not used, because its calls take several times as long.

    Classes are those of each extent, shape (max_len + 1,), and runs the first segment of each run, by class. There
    are `least` rows to begin with, and at most `limit` segments in each. Writes the row of each segment, shape
    (segments,), from 0 on, and returns the number of rows.
    """
    numbers, starts, groups, extents = grouped
    tops = np.full(max_len + 1, NONE)
    rows = np.empty((len(numbers), 4), np.int64)
    count = np.int64(least)
    for row in range(count):
        rows[row, FILL], rows[row, DEPTH] = 0, 0
        _put_on_top(rows, tops, row)
    lowest = np.int64(0)  # stacks below it are empty
    for run in range(len(runs)):
        begin = np.int64(runs[run])
        group = groups[numbers[begin]]
        first, last = (starts[group], starts[group + 1]) if group >= 0 else (begin, begin + 1)
        segment_class = classes[extents[numbers[begin]]]
        for i in range(first, begin):
            row = np.int64(out_rows[i])
            if rows[row, FILL] < max_len and rows[row, DEPTH] < limit:
                _take_out(rows, tops, row)
        end = begin
        while end < last:
            extent = np.int64(extents[numbers[end]])
            if classes[extent] != segment_class:
                break
            while lowest < max_len and tops[lowest] == NONE:
                lowest += 1
            if lowest + extent <= max_len:
                row = tops[lowest]
                _take_out(rows, tops, row)
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
            if rows[row, FILL] < max_len and rows[row, DEPTH] < limit:
                _put_on_top(rows, tops, row)
                lowest = min(lowest, rows[row, FILL])
    return int(count)


@jit_if_large
def _put_on_top(out_rows: NDArray[np.int64], out_tops: NDArray[np.int64], row: int) -> None:
    """Put a row on the stack of the rows with as many tokens."""
    below = out_tops[out_rows[row, FILL]]
    out_rows[row, ABOVE], out_rows[row, BELOW] = NONE, below
    if below != NONE:
        out_rows[below, ABOVE] = row
    out_tops[out_rows[row, FILL]] = row


@jit_if_large
def _take_out(out_rows: NDArray[np.int64], out_tops: NDArray[np.int64], row: int) -> None:
    """Take a row out of its stack, wherever it lies there."""
    above, below = out_rows[row, ABOVE], out_rows[row, BELOW]
    if above == NONE:
        out_tops[out_rows[row, FILL]] = below
    else:
        out_rows[above, BELOW] = below
    if below != NONE:
        out_rows[below, ABOVE] = above
