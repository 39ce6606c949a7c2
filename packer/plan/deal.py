"""Deal patterns to partitions: which segment goes to which row, with the pack count of the global solution.

Documents of equal extent are interchangeable. Each partition (contiguous documents, one shard) gets the patterns
that its own documents fill; what is left, patterns and documents alike, is the pool, cut into shards of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.plan.extents import BLOCK, share_end
from packer.plan.kernels import even_share, fill_rows, first_turns, further_share, group_documents, group_numbers
from packer.plan.segments import Segments
from packer.plan.threads import each_in_threads, in_threads
from packer.progress import Progress, silent


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Which segment goes to which row of which shard, in the order on disk.

    Rows 0 and 1 of one shard, [7, 2] and [5]: shard_rows [0, 2], row_starts [0, 2, 3], slots [7, 2, 5].
    """

    shard_rows: NDArray[np.int64]
    """Shape (shards + 1,): shard s holds rows shard_rows[s]..shard_rows[s + 1] - 1; no shard is empty."""

    row_starts: NDArray[np.int64]
    """Shape (packs + 1,): row r holds slots[row_starts[r]:row_starts[r + 1]]."""

    slots: NDArray[np.uint32] | NDArray[np.int64]
    """Shape (segments,): segment numbers (see `Segments`); each number that has tokens stands here once."""

    pool_packs: int
    """Rows whose segments come from the common pool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Share:
    """The packs that a partition is given."""

    patterns: NDArray[np.int32]
    """Shape (patterns given,): which patterns."""

    packs: NDArray[np.int64]
    """Shape (patterns given,): how many packs of each."""

    segments: int
    """Segments that the partition has, in those packs and left over."""

    @property
    def rows(self) -> int:
        """All packs."""
        return int(self.packs.sum())


def partition_starts(segments: Segments, partitions: int) -> NDArray[np.int64]:
    """First document of each partition, then the number of documents: int64, shape (partitions + 1,).

    Partitions take about the same place: each ends with the document that reaches its share.
    """
    ends = np.cumsum(segments.block_places)
    targets = [int(ends[-1]) * partition // partitions for partition in range(1, partitions)]
    blocks = np.searchsorted(ends, targets, side="left")
    before = ends - segments.block_places
    first_heads = np.searchsorted(segments.head_documents, blocks * BLOCK)
    pieces = segments.tails, segments.head_documents, segments.head_lengths
    inner = [
        share_end(*pieces, int(block) * BLOCK, int(head), target - int(before[block]), segments.align)
        for block, head, target in zip(blocks, first_heads, targets, strict=True)
    ]
    # one document may cross several shares: the partitions between are empty
    return np.array([0, *inner, segments.documents], np.int64)


def deal(
    segments: Segments,
    patterns: Patterns,
    *,
    rows_per_shard: int,
    seed: int,
    threads: int = 1,
    progress: Progress = silent,
) -> Plan:
    """Turn patterns into rows. `patterns` packs exactly the histogram of `segments`.

    Args:
        segments: what is to be placed, as `cut_documents` made it.
        patterns: the global solution.
        rows_per_shard: the most rows of a shard; there are as many partitions as such shards.
        seed: 0..2^64-1; another seed is another packing of as many packs.
        threads: partitions worked on at a time; the plan is the same for any number.
        progress: told of "plan" in segments.
    """
    partitions = -(-patterns.packs // rows_per_shard)
    starts = partition_starts(segments, partitions)
    heads = np.searchsorted(segments.head_documents, starts)
    shares, pool = _share_patterns(segments, patterns, starts, heads, rows_per_shard, seed, threads)
    depths = np.diff(patterns.offsets)
    first_rows = np.cumsum([0, *(share.rows for share in shares)])
    first_slots = np.cumsum([0, *(int(share.packs @ depths[share.patterns]) for share in shares)])
    # what the partitions leave to the pool waits where the pool's own rows will be
    left_ends = first_slots[-1] + np.cumsum([share.segments for share in shares]) - first_slots[1:]
    slots = np.empty(int(segments.histogram.sum()), np.uint32 if segments.count < 2**32 else np.int64)
    row_starts = np.zeros(patterns.packs + 1, np.int64)

    def fill(partition: int) -> int:
        first, last = (int(start) for start in starts[partition : partition + 2])
        first_head, last_head = (int(head) for head in heads[partition : partition + 2])
        groups = np.zeros(segments.max_len + 2, np.int64)
        grouped = np.empty(last - first + last_head - first_head, slots.dtype)
        group_documents(
            segments.tails, first, last, segments.head_lengths, first_head, last_head, segments.align, groups, grouped
        )
        share = shares[partition]
        left = share.segments - int(first_slots[partition + 1] - first_slots[partition])
        fill_rows(
            groups, grouped, share.patterns, share.packs, patterns.offsets, patterns.extents,
            int(first_rows[partition]), int(first_slots[partition]), partition, np.uint64(seed),
            row_starts, slots, slots[int(left_ends[partition]) - left : int(left_ends[partition])],
        )  # fmt: skip
        return share.segments

    done = 0
    for placed in each_in_threads(fill, range(partitions), threads):
        done += placed
        progress("plan", done, len(slots))

    pool_packs = int(pool.sum())
    row = int(first_rows[-1])
    if pool_packs:
        numbers = slots[int(first_slots[-1]) :]
        groups = np.zeros(segments.max_len + 2, np.int64)
        grouped = np.empty_like(numbers)
        group_numbers(numbers, segments.tails, segments.head_lengths, segments.align, groups, grouped)
        given = np.flatnonzero(pool)
        fill_rows(
            groups, grouped, given.astype(np.int32), pool[given], patterns.offsets, patterns.extents,
            row, int(first_slots[-1]), partitions, np.uint64(seed), row_starts, slots, slots[:0],
        )  # fmt: skip
    pool_rows = even_cuts(row, pool_packs, rows_per_shard)
    return Plan(
        shard_rows=np.unique(np.array([*first_rows, *pool_rows], np.int64)),  # a partition without rows has no shard
        row_starts=row_starts,
        slots=slots,
        pool_packs=pool_packs,
    )


def even_cuts(first_row: int, rows: int, rows_per_shard: int) -> list[int]:
    """Where shards of about the same size begin, and where the last ends: 0, 7, 3 -> 0, 2, 4, 7."""
    shards = -(-rows // rows_per_shard)
    return [first_row, *(first_row + rows * (shard + 1) // shards for shard in range(shards))]


def _share_patterns(
    segments: Segments,
    patterns: Patterns,
    starts: NDArray[np.int64],
    heads: NDArray[np.int64],
    rows_per_shard: int,
    seed: int,
    threads: int,
) -> tuple[list[_Share], NDArray[np.int64]]:
    """Say what each partition is given, and how many packs of every pattern are left to the pool.

    First every partition takes an even share of each pattern, then, in turn, whatever is left that it still fills.
    """
    partitions = len(starts) - 1
    turns = first_turns(len(patterns.counts), partitions, np.uint64(seed))

    def even(partition: int) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        first, last = (int(start) for start in starts[partition : partition + 2])
        first_head, last_head = (int(head) for head in heads[partition : partition + 2])
        return even_share(
            segments.tails, first, last, segments.head_lengths, first_head, last_head, segments.align,
            segments.max_len, patterns.offsets, patterns.extents, patterns.counts, turns, partition, partitions,
            rows_per_shard,
        )  # fmt: skip

    left = patterns.counts.copy()
    evens = in_threads(even, range(partitions), threads)
    for given, packs, _, _ in evens:
        left[given] -= packs
    histogram = np.zeros(segments.max_len + 1, np.int64)
    shares = []
    for given, packs, left_extents, left_counts in evens:
        room = rows_per_shard - int(packs.sum())
        more = further_share(left_extents, left_counts, patterns.offsets, patterns.extents, left, room, histogram)
        depths = np.diff(patterns.offsets)[given]
        shares.append(
            _Share(
                patterns=np.concatenate([given, more[0]]),
                packs=np.concatenate([packs, more[1]]),
                segments=int(packs @ depths) + int(left_counts.sum()),
            )
        )
    return shares, left
