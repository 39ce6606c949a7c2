"""Rows of one group only (`together`), rows without two segments of a group (`apart`), and lower bounds for both."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import sorted_indices
from packer.algorithms.jit import jit, jit_if_large
from packer.algorithms.open_packs import COUNT, SEGMENTS, OpenPacks, detach, next_key, no_packs, push
from packer.algorithms.patterns import Patterns, Rows
from packer.plan.rows import collected_rows, sorted_by_extent
from packer.plan.segments import Segments

NO_GROUP = -1
"""Group number of documents without a group."""

MOST_SOLVED = 64
"""Number of the largest groups, which the chosen algorithm packs; one compiled pass packs the others by best fit."""

EXTRA = 0.006
"""Extra rows to pack the segments of dissolved rows into, as a share of these rows."""

GROWTH = 1.5
"""Factor by which the number of dissolved rows grows while the largest group needs more rows."""

CLASS_RATIO, SHORTEST = 1.1, 256
"""Extents of a class differ at most by the factor CLASS_RATIO. Exceptions are the class of all extents above half a
row, and the class of all below 1 / SHORTEST of a row."""


def deal_together(
    segments: Segments,
    groups: NDArray[np.int32],
    solve: Callable[[NDArray[np.int64]], Patterns],
    *,
    max_segments: int | None,
    seed: int,
) -> Rows:
    """Pack every group on its own, so that no row holds segments of two groups.

    Documents without a group (NO_GROUP in `groups`, shape (documents,)) share rows with each other only. `solve`
    packs the histograms of the MOST_SOLVED largest groups. The rows of all groups are put in random order.
    """
    max_len = segments.max_len
    grouped = by_group(segments.extents_of_numbers(), groups_of_numbers(segments, groups), max_len, seed)
    sizes = np.diff(grouped.starts)
    solved = np.argsort(-sizes, kind="stable")[:MOST_SOLVED]
    is_solved = np.zeros(len(sizes), np.bool_)
    is_solved[solved] = True
    limit = max_len if max_segments is None else min(max_segments, max_len)
    rows = np.empty_like(grouped.numbers)
    most = int(sizes[~is_solved].max(initial=0))
    open_rows = no_packs(np.zeros((most, 4), np.int64), max_len + 1)
    packs = pack_groups(grouped, is_solved, max_len, limit, open_rows, rows)
    for group in solved:
        first, last = int(grouped.starts[group]), int(grouped.starts[group + 1])
        if first == last:
            continue
        patterns = solve(np.bincount(grouped.extents[grouped.numbers[first:last]], minlength=max_len + 1))
        # The segments of the group and those of the patterns are the same, both with the longest first.
        followed = patterns.rows()
        row_of = np.repeat(np.arange(packs, packs + len(followed)), np.diff(followed.row_starts))
        rows[first:last] = row_of[sorted_indices(max_len - followed.values, max_len + 1)[1]]
        packs += patterns.packs
    return collected_rows(grouped.numbers, rows, packs, seed=seed)


def by_group(extents: NDArray[np.int32], groups: NDArray[np.int32], max_len: int, seed: int) -> GroupedSegments:
    """Sort segments by group, within a group the longest first, and those of equal extent at random.

    Extents, 0 for a number to leave out, and groups, or NO_GROUP, have the shape (segment numbers,).
    """
    by_extent, numbers = sorted_by_extent(extents, max_len, seed=seed)
    numbers = numbers[by_extent[1] :][::-1]
    none = int(groups.max(initial=NO_GROUP)) + 1
    of_numbers = groups[numbers]
    of_numbers[of_numbers == NO_GROUP] = none
    starts, order = sorted_indices(of_numbers, none + 1)
    return GroupedSegments(numbers=numbers[order], starts=starts, groups=groups, extents=extents)


def groups_of_numbers(segments: Segments, groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the group of every segment by number: int32, shape (count,)."""
    return np.concatenate([groups, groups[segments.head_documents]]) if len(segments.head_documents) else groups


def together_bound(segments: Segments, groups: NDArray[np.int32], max_segments: int | None) -> int:
    """Return a lower bound on rows of one group only: the sum of the bounds of all groups.

    The bound of a group is the largest of its tokens over max_len, its segments over `max_segments`, and its segments
    above half a row.
    """
    limit = segments.max_len if max_segments is None else min(max_segments, segments.max_len)
    extents = segments.extents_of_numbers()
    is_placed = extents > 0
    extents, of_segments = extents[is_placed], groups_of_numbers(segments, groups)[is_placed] - NO_GROUP
    tokens = np.bincount(of_segments, extents).astype(np.int64)  # sums below 2**53 are exact
    large = np.bincount(of_segments[2 * extents.astype(np.int64) > segments.max_len], minlength=len(tokens))
    number = np.bincount(of_segments)
    return int(np.maximum(np.maximum(-(-tokens // segments.max_len), -(-number // limit)), large).sum())


def apart_bound(segments: Segments, groups: NDArray[np.int32]) -> int:
    """Return a lower bound on rows with groups kept apart, from the largest group.

    Each segment of this group has a row of its own. A long segment of the others can share a row only with one of these
    that is short enough; the long ones left over have rows of their own, too. For max_len 9, a group of [4, 4, 1] and
    others of [8, 8, 8] need 3 rows for the group, one of which also takes an 8, and 2 more.
    """
    return apart_bound_of_extents(segments.extents_of_numbers(), groups_of_numbers(segments, groups), segments.max_len)


def apart_bound_of_extents(extents: NDArray[np.int32], groups: NDArray[np.int32], max_len: int) -> int:
    """Return `apart_bound` from the extent and the group of each segment number; those of extent 0 do not count."""
    sizes = np.bincount(groups[(groups != NO_GROUP) & (extents > 0)])
    if not len(sizes):
        return 0
    largest = int(np.argmax(sizes))
    own = np.bincount(extents[groups == largest], minlength=max_len + 1)
    others = np.bincount(extents, minlength=max_len + 1) - own
    own[0] = 0
    # For k below half a row, count other segments of at least max_len - k tokens, and the group's of at most k tokens.
    long = np.cumsum(others[::-1])
    short = np.cumsum(own)
    half = (max_len + 1) // 2
    return int(sizes[largest] + max(0, (long[:half] - short[:half]).max()))


class GroupedSegments(NamedTuple):
    """Segments sorted by group, within a group the longest first; a named tuple of arrays, as the kernels take it.

    Groups [1, 0, -1, 1] and extents [3, 5, 2, 4] of segments 0 to 3 give numbers [1, 3, 0, 2] and starts [0, 1, 3, 4].
    """

    numbers: NDArray[Any]  # (segments,) segment numbers, uint32 or int64
    starts: NDArray[np.int64]  # (groups + 2,) group g is numbers[starts[g]:starts[g + 1]]; the last one is no group
    groups: NDArray[np.int32]  # (segment numbers,) group of each segment, -1 for none
    extents: NDArray[np.int32]  # (segment numbers,) extent of each segment, 0 if it is not in `numbers`


@jit
def pack_groups(
    grouped: GroupedSegments,
    is_left_out: NDArray[np.bool_],
    max_len: int,
    limit: int,
    open_rows: OpenPacks,
    out_rows: NDArray[Any],
) -> int:
    """Pack every group on its own by best-fit decreasing; write the row of each segment, and return how many there are.

    Segments without a group are one more group. Groups in `is_left_out`, shape (groups + 1,), are packed elsewhere. No
    row has more than `limit` segments. There are no `open_rows`, before and afterwards, but room for as many as the
    largest of these groups has segments.
    """
    numbers, starts, _, extents = grouped
    rows = np.int64(0)
    for group in range(len(starts) - 1):
        if is_left_out[group]:
            continue
        first_row = rows
        for i in range(starts[group], starts[group + 1]):
            extent = np.int64(extents[numbers[i]])
            room = next_key(open_rows, extent)
            if room <= max_len:
                row = detach(open_rows, room, 1, 0)
                open_rows.groups[row, SEGMENTS] += 1
            else:
                room = max_len
                row = rows - first_row
                open_rows.groups[row, COUNT] = 1
                open_rows.groups[row, SEGMENTS] = 1
                rows += 1
            out_rows[i] = first_row + row
            if room > extent and open_rows.groups[row, SEGMENTS] < limit:
                push(open_rows, room - extent, row)
        room = next_key(open_rows, 0)
        while room <= max_len:
            detach(open_rows, room, 1, 0)
            room = next_key(open_rows, room)
    return int(rows)


def keep_apart(
    placed: Rows,
    segments: Segments,
    groups: NDArray[np.int32],
    *,
    least: int,
    max_segments: int | None,
    seed: int,
) -> Rows:
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
        chosen[placed.values[is_in]] = extents[placed.values[is_in]]
        return is_in, chosen

    def dissolve(rows: int, least: int) -> Rows:
        """Pack the segments in the first rows of `order` again, into at least `least` rows, and keep the other rows."""
        is_in, chosen = first_segments(rows)
        grouped = by_group(chosen, of_numbers, segments.max_len, seed)
        least = max(least, rows + int(EXTRA * rows))
        new_rows, packs = _spread(grouped, segments.max_len, max_segments, least)
        kept = np.sort(order[rows:])
        kept_rows = np.repeat(np.arange(packs, packs + len(kept), dtype=new_rows.dtype), depths[kept])
        numbers = np.concatenate([grouped.numbers, placed.values[~is_in]])
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


def _clashes(placed: Rows, groups: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which rows hold two segments of a group, shape (rows,); `groups` is that of each segment number."""
    of_segments = groups[placed.values]
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
