"""Groups of documents, rows of one group only (`together`), and lower bounds for groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.open_packs import no_packs
from packer.algorithms.patterns import Patterns
from packer.plan.group_kernels import (
    GroupedSegments,
    bound_of_groups,
    collect_rows,
    follow_patterns,
    pack_groups,
    permuted_ranks,
    sort_by_group,
)
from packer.plan.row_kernels import sort_by_extent
from packer.plan.segments import Segments
from packer.plan.whole_plan import Plan, even_cuts

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
