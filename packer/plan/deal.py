"""Deal patterns to partitions: which segment goes to which row, with the pack count of the global solution.

Documents of equal extent are interchangeable. Each partition (contiguous documents, one shard) gets the patterns
that its own documents fill; what is left, patterns and documents alike, is the pool, cut into shards of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.plan.kernels import fill_rows, share_patterns
from packer.plan.segments import Segments
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


def partition_starts(segments: Segments, partitions: int) -> NDArray[np.int64]:
    """First document of each partition, then the number of documents: int64, shape (partitions + 1,).

    Partitions hold about the same number of tokens: each ends with the document that reaches its share.
    """
    total = sum(int(tokens.sum()) for _, tokens in segments.blocks())
    targets = (np.arange(1, partitions, dtype=np.float64) / partitions * total).astype(np.int64)
    starts = [np.zeros(1, np.int64)]
    before = 0
    for first, tokens in segments.blocks():
        ends = before + np.cumsum(tokens)
        here = targets[(targets > before) & (targets <= ends[-1])]
        starts.append(first + np.searchsorted(ends, here, side="left") + 1)
        before = int(ends[-1])
    found = np.concatenate(starts)
    # one document may cross several shares: the partitions between are empty
    return np.concatenate([found, np.full(partitions + 1 - len(found), segments.documents)]).astype(np.int64)


def deal(
    segments: Segments, patterns: Patterns, *, rows_per_shard: int, seed: int, progress: Progress = silent
) -> Plan:
    """Turn patterns into rows. `patterns` packs exactly the histogram of `segments`.

    Args:
        segments: what is to be placed.
        patterns: the global solution.
        rows_per_shard: the most rows of a shard; there are as many partitions as such shards.
        seed: 0..2^64-1; another seed is another packing of as many packs.
        progress: told of "plan" in segments.
    """
    packs = patterns.packs
    partitions = -(-packs // rows_per_shard)
    starts = partition_starts(segments, partitions)
    histograms = _partition_histograms(segments, starts)
    slots = np.empty(int(histograms.sum()), np.uint32 if segments.count < 2**32 else np.int64)
    row_starts = np.zeros(packs + 1, np.int64)
    own = share_patterns(histograms, patterns.offsets, patterns.extents, patterns.counts, np.uint64(seed))
    own_partitions, own_patterns, own_counts, pool_counts = own
    by_partition = np.argsort(own_partitions, kind="stable")
    bounds = np.searchsorted(own_partitions[by_partition], np.arange(partitions + 1))

    # What a partition leaves to the pool waits at the far end of `slots`, which the rows have not reached yet.
    row = 0
    far = len(slots)
    shard_rows = [0]
    for partition in range(partitions):
        mine = by_partition[bounds[partition] : bounds[partition + 1]]
        numbers, extents = _partition_segments(
            segments, int(starts[partition]), int(starts[partition + 1]), slots.dtype
        )
        left = fill_rows(
            numbers,
            extents,
            np.repeat(own_patterns[mine], own_counts[mine]),
            patterns.offsets,
            patterns.extents,
            row,
            partition,
            np.uint64(seed),
            row_starts,
            slots,
        )
        row += int(own_counts[mine].sum())
        far -= len(left)
        slots[far : far + len(left)] = left
        shard_rows.append(row)
        progress("plan", len(slots) - far + int(row_starts[row]), len(slots))

    pool_packs = packs - row
    if pool_packs:
        numbers = slots[far:]
        left = fill_rows(
            numbers,
            segments.locate_lengths(numbers),
            np.repeat(np.arange(len(pool_counts)), pool_counts),
            patterns.offsets,
            patterns.extents,
            row,
            partitions,
            np.uint64(seed),
            row_starts,
            slots,
        )
        assert len(left) == 0
        pool_shards = -(-pool_packs // rows_per_shard)
        shard_rows += [row + pool_packs * (shard + 1) // pool_shards for shard in range(pool_shards)]
    return Plan(
        shard_rows=np.unique(np.array(shard_rows, np.int64)),  # a partition without rows has no shard
        row_starts=row_starts,
        slots=slots,
        pool_packs=pool_packs,
    )


def _partition_segments(
    segments: Segments, first: int, last: int, dtype: np.dtype[np.generic]
) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """(numbers, extents) of the segments of documents first..last-1: tails, then heads."""
    begin, end = segments.heads_of(first, last)
    heads = np.arange(segments.documents + begin, segments.documents + end)
    numbers = np.concatenate([np.arange(first, last), heads]).astype(dtype)
    extents = np.concatenate([segments.tail_lengths(first, last), np.full(len(heads), segments.max_len, np.int32)])
    return numbers, extents


def _partition_histograms(segments: Segments, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the segments of every extent in each partition: int64, shape (partitions, max_len + 1)."""
    histograms = np.zeros((len(starts) - 1, segments.max_len + 1), np.int64)
    for partition, (first, last) in enumerate(pairwise(starts)):
        tails = segments.tail_lengths(int(first), int(last))
        histograms[partition] = np.bincount(tails, minlength=segments.max_len + 1)
        begin, end = segments.heads_of(int(first), int(last))
        histograms[partition, -1] += end - begin
    histograms[:, 0] = 0
    return histograms
