"""Keep groups apart: dissolve rows with two segments of a group, and pack their segments again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    of_numbers = groups_of_numbers(segments, groups)
    is_clash = np.zeros(len(placed), np.bool_)
    mark_clashes(placed.numbers, placed.row_starts, of_numbers, int(groups.max(initial=NO_GROUP)) + 1, is_clash)
    clashes = int(np.count_nonzero(is_clash))
    if not clashes:
        return placed
    repair = _Repair(
        placed=placed,
        extents=segments.extents_of_numbers(),
        groups=of_numbers,
        order=np.argsort(~is_clash, kind="stable"),
        max_len=segments.max_len,
        limit=segments.max_len if max_segments is None else min(max_segments, segments.max_len),
        seed=seed,
    )
    rows, found = clashes, None
    while rows < len(placed):
        needed = apart_bound_of_extents(repair.extents_in(rows), of_numbers, segments.max_len)
        if needed <= (1 + EXTRA) * rows:
            found = repair.dissolve(rows, needed)
            break
        rows = math.ceil(GROWTH * rows)
    if found is None or len(found) > (1 + EXTRA) * len(placed):
        repacked = repair.dissolve(len(placed), least)
        found = repacked if found is None or len(repacked) < len(found) else found
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repair:
    """Rows of which some hold two segments of a group."""

    placed: PlacedRows

    extents: NDArray[np.int32]
    """Shape (segment numbers,): extent of each segment."""

    groups: NDArray[np.int32]
    """Shape (segment numbers,): group of each segment, -1 for none."""

    order: NDArray[np.int64]
    """Shape (packs,): rows with a clash, then the others, whose order is random."""

    max_len: int
    limit: int
    seed: int

    def extents_in(self, rows: int) -> NDArray[np.int32]:
        """Return the extents of the segments in the first rows of `order`, by segment number; 0 for all others."""
        numbers = self.placed.numbers[self._is_in(rows)]
        chosen = np.zeros_like(self.extents)
        chosen[numbers] = self.extents[numbers]
        return chosen

    def dissolve(self, rows: int, least: int) -> PlacedRows:
        """Pack the segments in the first rows of `order` again, into at least `least` rows, and keep the other rows.

        Segments are packed class of extents by class, the longest first, and within a class group by group, so that
        rows with a segment of the group are set aside once for all its segments.
        """
        grouped = by_group(self.extents_in(rows), self.groups, self.max_len, self.seed)
        begin = min(max(least, rows + int(EXTRA * rows)), len(grouped.numbers))
        classes = _classes(self.max_len)
        runs = np.empty_like(grouped.numbers)
        runs = runs[: find_runs(grouped, classes, runs)]
        new_rows = np.empty_like(grouped.numbers)
        packs = spread_runs(grouped, classes, runs, self.max_len, self.limit, begin, new_rows)
        # Rows that are kept get the numbers from `packs` on.
        kept = np.sort(self.order[rows:])
        depths = np.diff(self.placed.row_starts)[kept]
        kept_rows = np.repeat(np.arange(packs, packs + len(kept), dtype=new_rows.dtype), depths)
        numbers = np.concatenate([grouped.numbers, self.placed.numbers[~self._is_in(rows)]])
        return collected_rows(numbers, np.concatenate([new_rows, kept_rows]), packs + len(kept), seed=self.seed)

    def _is_in(self, rows: int) -> NDArray[np.bool_]:
        """Return which segments are in the first rows of `order`: bool, shape (segments,)."""
        is_chosen = np.zeros(len(self.placed), np.bool_)
        is_chosen[self.order[:rows]] = True
        return np.repeat(is_chosen, np.diff(self.placed.row_starts))


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
def find_runs(grouped: GroupedSegments, classes: NDArray[np.int64], out_runs: NDArray[Any]) -> int:
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
    return int(runs)


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

    Classes are those of each extent, shape (max_len + 1,), and runs, from `find_runs`, the first segment of each. There
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
