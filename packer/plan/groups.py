"""Groups of documents, rows of one group only (`together`), and lower bounds for groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.algorithms.open_packs import COUNT, SEGMENTS, OpenPacks, detach, next_key, no_packs, push
from packer.algorithms.patterns import Patterns
from packer.plan.permute import permute, stream_key
from packer.plan.row_kernels import sort_by_extent
from packer.plan.segments import Segments
from packer.plan.whole_plan import Plan, even_cuts
from packer.random_purposes import EQUAL_LENGTHS, ROWS, SEGMENTS_IN_ROW

NO_GROUP = -1
"""Group number of documents without a group."""

MOST_SOLVED = 64
"""Number of the largest groups, which the chosen algorithm packs; one compiled pass packs the others by best fit."""


def deal_together(
    segments: Segments,
    groups: NDArray[np.int32],
    solve: Callable[[NDArray[np.int64]], Patterns],
    *,
    max_segments: int | None,
    rows_per_shard: int,
    seed: int,
) -> Plan:
    """Pack every group on its own, so that no row holds segments of two groups.

    Documents without a group share rows with each other only. The rows of all groups are put in random order and dealt
    to shards; all rows belong to the pool.

    Args:
        segments: segments to place.
        groups: (documents,) group of each document, 0 to groups - 1, or NO_GROUP.
        solve: function that packs the histogram of one of the MOST_SOLVED largest groups.
        max_segments: largest number of segments in a row; None for no limit.
        rows_per_shard: largest number of rows of a shard.
        seed: seed of all permutations, 0 to 2**64 - 1.
    """
    grouped = by_group(segments.extents_of_numbers(), groups_of_numbers(segments, groups), segments.max_len, seed)
    sizes = np.diff(grouped.starts)
    solved = np.argsort(-sizes, kind="stable")[:MOST_SOLVED]
    is_solved = np.zeros(len(sizes), np.bool_)
    is_solved[solved] = True
    limit = segments.max_len if max_segments is None else min(max_segments, segments.max_len)
    rows = np.empty_like(grouped.numbers)
    most = int(sizes[~is_solved].max(initial=0))
    open_rows = no_packs(np.zeros((most, 4), np.int64), segments.max_len + 1)
    packs = pack_groups(grouped, is_solved, segments.max_len, limit, open_rows, rows)
    for group in solved:
        first, last = int(grouped.starts[group]), int(grouped.starts[group + 1])
        if first == last:
            continue
        extents = grouped.extents[grouped.numbers[first:last]].astype(np.int64)
        patterns = solve(np.bincount(extents, minlength=segments.max_len + 1))
        follow_patterns(extents, patterns.offsets, patterns.extents, patterns.counts, packs, rows[first:last])
        packs += patterns.packs
    return collected(grouped.numbers, rows, packs, rows_per_shard=rows_per_shard, seed=seed)


def collected(numbers: NDArray[Any], rows: NDArray[Any], packs: int, *, rows_per_shard: int, seed: int) -> Plan:
    """Make a plan of rows in random order, with segments in random order within each; all rows belong to the pool.

    Args:
        numbers: (segments,) segment numbers.
        rows: (segments,) row of each segment, 0 to packs - 1.
        packs: number of rows.
        rows_per_shard: largest number of rows of a shard.
        seed: seed of the permutations.
    """
    ranks = permuted_ranks(np.empty(packs, numbers.dtype), np.uint64(seed))
    row_starts, slots = np.zeros(packs + 1, np.int64), np.empty_like(numbers)
    collect_rows(numbers, rows, ranks, np.uint64(seed), row_starts, slots)
    return Plan(
        shard_rows=np.array(even_cuts(0, packs, rows_per_shard), np.int64),
        row_starts=row_starts,
        slots=slots,
        pool_packs=packs,
    )


def by_group(extents: NDArray[np.int32], groups: NDArray[np.int32], max_len: int, seed: int) -> GroupedSegments:
    """Sort segments by group, within a group the longest first, and those of equal extent at random.

    Args:
        extents: (segment numbers,) extent of each segment, 0 for a number to leave out.
        groups: (segment numbers,) group of each segment, 0 to groups - 1, or NO_GROUP.
        max_len: length of a row.
        seed: seed of the permutations.
    """
    number_type = np.uint32 if len(extents) < 2**32 else np.int64
    by_extent = np.zeros(max_len + 2, np.int64)
    grouped = np.empty(np.count_nonzero(extents), number_type)
    sort_by_extent(extents, by_extent, grouped)
    starts = np.zeros(int(groups.max(initial=NO_GROUP)) + 3, np.int64)
    numbers = np.empty_like(grouped)
    sort_by_group(by_extent, grouped, groups, np.uint64(seed), starts, numbers)
    return GroupedSegments(numbers=numbers, starts=starts, groups=groups, extents=extents)


def groups_of_numbers(segments: Segments, groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the group of every segment by number: int32, shape (count,)."""
    return np.concatenate([groups, groups[segments.head_documents]]) if len(segments.head_documents) else groups


def together_bound(segments: Segments, groups: NDArray[np.int32], max_segments: int | None) -> int:
    """Return a lower bound on rows of one group only: the sum of the bounds of all groups.

    The bound of a group is the largest of its tokens over max_len, its segments over `max_segments`, and its segments
    above half a row.
    """
    facts = np.zeros((int(groups.max(initial=NO_GROUP)) + 2, 3), np.int64)
    limit = segments.max_len if max_segments is None else min(max_segments, segments.max_len)
    bound_of_groups(segments.extents_of_numbers(), groups_of_numbers(segments, groups), segments.max_len, facts)
    tokens, number, large = facts.T
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
def sort_by_group(
    by_extent: NDArray[np.int64],
    out_grouped: NDArray[np.uint32],
    groups: NDArray[np.int32],
    seed: np.uint64,
    out_starts: NDArray[np.int64],
    out_numbers: NDArray[np.uint32],
) -> None:
    """Sort segments by group, within a group the longest first, and those of equal extent at random.

    Args:
        by_extent: (max_len + 2,) start of each extent in `out_grouped`.
        out_grouped: (segments,) segment numbers by extent; permuted within each extent.
        groups: (numbers,) group of each segment, -1 for none.
        seed: seed of all permutations.
        out_starts: (groups + 2,) all zero; afterwards, group g is out_numbers[out_starts[g]:out_starts[g + 1]], and the
            last one holds the segments without a group.
        out_numbers: (segments,) segment numbers by group.
    """
    count = len(out_starts) - 2
    for extent in range(1, len(by_extent) - 1):
        if by_extent[extent + 1] - by_extent[extent] > 1:
            permute(out_grouped, by_extent[extent], by_extent[extent + 1], stream_key(seed, EQUAL_LENGTHS, extent))
    last = by_extent[len(by_extent) - 1]
    for i in range(last):
        group = groups[out_grouped[i]]
        out_starts[group if group >= 0 else count] += 1
    for group in range(1, count + 2):
        out_starts[group] += out_starts[group - 1]
    # Each group is filled from its end, the shortest first, so that its end becomes its start.
    for i in range(last):
        group = np.int64(groups[out_grouped[i]])
        group = group if group >= 0 else count
        out_starts[group] -= 1
        out_numbers[out_starts[group]] = out_grouped[i]


@jit
def pack_groups(
    grouped: GroupedSegments,
    is_left_out: NDArray[np.bool_],
    max_len: int,
    limit: int,
    open_rows: OpenPacks,
    out_rows: NDArray[Any],
) -> Any:
    """Pack every group on its own by best-fit decreasing; return the number of rows.

    Args:
        grouped: segments by group; those without a group are packed as one more group.
        is_left_out: (groups + 1,) groups that are packed elsewhere.
        max_len: length of a row.
        limit: largest number of segments in a row.
        open_rows: no packs, with room for as many as the largest of these groups has segments; and none afterwards.
        out_rows: (segments,) row of each segment, from 0 on.
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
    return rows


@jit
def follow_patterns(
    segment_extents: NDArray[np.int64],
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    counts: NDArray[np.int64],
    first_row: int,
    out_rows: NDArray[np.uint32],
) -> None:
    """Give each segment a row of the patterns, which pack exactly these segments.

    Args:
        segment_extents: (segments,) extents of the segments, descending.
        offsets: (patterns + 1,) field of `Patterns`.
        extents: (offsets[-1],) field of `Patterns`.
        counts: (patterns,) field of `Patterns`.
        first_row: number of the first row.
        out_rows: (segments,) row of each segment.
    """
    taken = np.zeros(segment_extents[0] + 1, np.int64)
    for i in range(len(segment_extents) - 1, -1, -1):
        taken[segment_extents[i]] = i
    row = np.int64(first_row)
    for pattern in range(len(counts)):
        for _ in range(counts[pattern]):
            for e in range(offsets[pattern], offsets[pattern + 1]):
                out_rows[taken[extents[e]]] = row
                taken[extents[e]] += 1
            row += 1


@jit
def permuted_ranks(out: NDArray[np.uint32], seed: np.uint64) -> NDArray[np.uint32]:
    """Write the numbers 0..len(out) - 1 in random order, and return `out`."""
    for rank in range(len(out)):
        out[rank] = rank
    permute(out, 0, len(out), stream_key(seed, ROWS, 0))
    return out


@jit
def collect_rows(
    numbers: NDArray[np.uint32],
    rows: NDArray[np.uint32],
    ranks: NDArray[np.uint32],
    seed: np.uint64,
    out_row_starts: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
) -> None:
    """Write the segments of every row, in random order: row `ranks[row]` on disk is `row` in `rows`.

    Args:
        numbers: (segments,) segment numbers.
        rows: (segments,) row of each segment.
        ranks: (packs,) position of each row on disk.
        seed: seed of all permutations.
        out_row_starts: (packs + 1,) all zero; afterwards, start of each row in `out_slots`, then the end.
        out_slots: (segments,) segment numbers, row by row.
    """
    for i in range(len(rows)):
        out_row_starts[ranks[rows[i]]] += 1
    for row in range(1, len(out_row_starts)):
        out_row_starts[row] += out_row_starts[row - 1]
    for i in range(len(rows) - 1, -1, -1):
        row = np.int64(ranks[rows[i]])
        out_row_starts[row] -= 1
        out_slots[out_row_starts[row]] = numbers[i]
    for row in range(len(out_row_starts) - 1):
        permute(out_slots, out_row_starts[row], out_row_starts[row + 1], stream_key(seed, SEGMENTS_IN_ROW, row))


@jit
def bound_of_groups(
    extents: NDArray[np.int32], groups: NDArray[np.int32], max_len: int, out: NDArray[np.int64]
) -> None:
    """Sum up extents, segments, and segments above half a row for every group.

    Args:
        extents: (segment numbers,) extent of each segment, 0 for a number without a segment.
        groups: (segment numbers,) group of each segment, -1 for none.
        max_len: length of a row.
        out: (groups + 1, 3) all zero; the last line is for segments without a group.
    """
    for number in range(len(extents)):
        extent = np.int64(extents[number])
        if extent == 0:
            continue
        group = np.int64(groups[number])
        group = group if group >= 0 else len(out) - 1
        out[group, 0] += extent
        out[group, 1] += 1
        out[group, 2] += 2 * extent > max_len
