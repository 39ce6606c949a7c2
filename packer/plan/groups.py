"""Rows that hold documents of one group only, and a lower bound on their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.index_arrays import sorted_indices
from packer.algorithms.jit import jit
from packer.algorithms.open_packs import COUNT, SEGMENTS, OpenPacks, detach, next_key, no_packs, push
from packer.algorithms.patterns import Patterns, Rows
from packer.options import RowOptions
from packer.plan.rows import collected_rows, sorted_by_extent
from packer.plan.segments import Segments
from packer.shards.sharing import NO_GROUP

MOST_SOLVED = 16
"""Number of the largest groups, which the chosen algorithm packs; one compiled pass packs the others by best fit."""


def pack_by_group(
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
    grouped = by_group(segments.extents(), groups_of_numbers(segments, groups), max_len, seed)
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
    return np.concatenate([groups, groups[segments.heads]]) if len(segments.heads) else groups


def together_bound(segments: Segments, groups: NDArray[np.int32], max_segments: int | None) -> int:
    """Return a lower bound on rows of one group only: the sum of the bounds of all groups.

    The bound of a group is the largest of its tokens over max_len, its segments over `max_segments`, and its segments
    above half a row.
    """
    limit = segments.max_len if max_segments is None else min(max_segments, segments.max_len)
    extents = segments.extents()
    is_placed = extents > 0
    extents, of_segments = extents[is_placed], groups_of_numbers(segments, groups)[is_placed] - NO_GROUP
    tokens = np.bincount(of_segments, extents).astype(np.int64)  # sums below 2**53 are exact
    large = np.bincount(of_segments[2 * extents.astype(np.int64) > segments.max_len], minlength=len(tokens))
    number = np.bincount(of_segments)
    return int(np.maximum(np.maximum(-(-tokens // segments.max_len), -(-number // limit)), large).sum())


def least_rows(segments: Segments, groups: NDArray[np.int32] | None, options: RowOptions) -> int:
    """Return a lower bound on the rows of any packing of whole segments, without solving.

    `groups` has the group of each document.
    """
    if groups is not None:
        return together_bound(segments, groups, options.max_segments)
    return lower_bound(segments.histogram, options.max_segments)


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
