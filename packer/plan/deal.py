"""Deal patterns to partitions: which segment goes to which row, with the pack count of the global solution.

Documents of equal extent are interchangeable. Each partition (contiguous documents, one shard) gets the patterns
that its own documents fill; what is left, patterns and documents alike, is the pool, cut into shards of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.algorithms.patterns import Patterns
from packer.plan.permute import DEAL_ROTATION, EQUAL_LENGTHS, ROWS, SEGMENTS_IN_ROW, draw_below, permute, stream_key
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
    own = _deal_patterns(histograms, patterns.offsets, patterns.extents, patterns.counts, np.uint64(seed))
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
        left = _fill_rows(
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
        left = _fill_rows(
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


@jit
def _filled_packs(histogram: NDArray[np.int64], extents: NDArray[np.int32]) -> Any:
    """How often a partition's segments fill a pattern (extents in descending order)."""
    packs = np.int64(1) << 62
    begin = 0
    while begin < len(extents):
        end = begin
        while end < len(extents) and extents[end] == extents[begin]:
            end += 1
        packs = min(packs, histogram[extents[begin]] // (end - begin))
        begin = end
    return packs


@jit
def _deal_patterns(
    histograms: NDArray[np.int64],
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    counts: NDArray[np.int64],
    seed: np.uint64,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Give each partition patterns that its own segments fill.

    Two sweeps over the patterns: first every partition takes an even share of each, then what some could not take
    goes to those that still can. A sweep begins at another partition for every pattern, so that no partition gets
    all the odd ones.

    Args:
        histograms: (partitions, max_len + 1) segments of every extent; not changed.
        offsets: (patterns + 1,) see `Patterns`.
        extents: (offsets[-1],)
        counts: (patterns,)
        seed: of the pack.

    Returns:
        (partition, pattern, count) of every gift, and what is left of `counts`: the pool's.
    """
    histograms = histograms.copy()
    left = counts.copy()
    partitions = len(histograms)
    given_to = np.empty(max(16, len(counts)), np.int64)
    given_patterns = np.empty_like(given_to)
    given_counts = np.empty_like(given_to)
    size = 0
    for even in (True, False):
        for pattern in range(len(counts)):
            share = -(-counts[pattern] // partitions) if even else counts[pattern]
            turn = draw_below(stream_key(seed, DEAL_ROTATION, pattern), 0, partitions)
            members = extents[offsets[pattern] : offsets[pattern + 1]]
            for step in range(partitions):
                if left[pattern] == 0:
                    break
                partition = (turn + step) % partitions
                packs = min(share, left[pattern], _filled_packs(histograms[partition], members))
                if packs == 0:
                    continue
                left[pattern] -= packs
                for extent in members:
                    histograms[partition, extent] -= packs
                if size == len(given_to):
                    given_to, given_patterns, given_counts = (
                        _grown(given_to),
                        _grown(given_patterns),
                        _grown(given_counts),
                    )
                given_to[size], given_patterns[size], given_counts[size] = partition, pattern, packs
                size += 1
    return given_to[:size], given_patterns[:size], given_counts[:size], left


@jit
def _grown(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Copy an array into one of twice the length."""
    grown = np.empty(2 * len(array), array.dtype)
    for i in range(len(array)):  # a slice assignment takes seconds to compile
        grown[i] = array[i]
    return grown


@jit
def _fill_rows(
    numbers: NDArray[np.uint32],
    extents: NDArray[np.int32],
    row_patterns: NDArray[np.int64],
    offsets: NDArray[np.int64],
    pattern_extents: NDArray[np.int32],
    first_row: int,
    stream: int,
    seed: np.uint64,
    out_row_starts: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
) -> NDArray[np.uint32]:
    """Fill rows with segments at random: which of equal extent, the order of rows, the order within a row.

    Args:
        numbers: (segments,) segment numbers; may be the part of `out_slots` that is written here.
        extents: (segments,) their extents; those of extent 0 are not placed.
        row_patterns: (rows,) the pattern each row follows, in any order.
        offsets: (patterns + 1,) see `Patterns`.
        pattern_extents: (offsets[-1],)
        first_row: number of the first row; its slots begin at out_row_starts[first_row].
        stream: number of the partition (the pool: the number of partitions).
        seed: of the pack.
        out_row_starts: written from first_row + 1 on.
        out_slots: written from out_row_starts[first_row] on.

    Returns:
        The numbers of the segments that no row took, by extent.
    """
    # Group the segments by extent (counting sort), and shuffle each group. Loops, where slices would take seconds
    # to compile.
    longest = np.int64(0)
    for extent in extents:
        longest = max(longest, np.int64(extent))
    group = np.zeros(longest + 2, np.int64)
    for extent in extents:
        if extent > 0:
            group[extent + 1] += 1
    for extent in range(1, longest + 1):
        group[extent + 1] += group[extent]
    grouped = np.empty(group[longest + 1], numbers.dtype)
    taken = group.copy()
    for s in range(len(numbers)):
        extent = extents[s]
        if extent > 0:
            grouped[taken[extent]] = numbers[s]
            taken[extent] += 1
    for extent in range(1, longest + 1):
        taken[extent] = group[extent]
        key = stream_key(seed, EQUAL_LENGTHS, stream * (np.int64(1) << 32) + extent)
        permute(grouped, group[extent], group[extent + 1], key)

    # Rows in random order take the next segment of every extent that their pattern asks for.
    rows = row_patterns.copy()
    permute(rows, 0, len(rows), stream_key(seed, ROWS, stream))
    slot = out_row_starts[first_row]
    for r in range(len(rows)):
        first_slot = slot
        for e in range(offsets[rows[r]], offsets[rows[r] + 1]):
            extent = pattern_extents[e]
            out_slots[slot] = grouped[taken[extent]]
            taken[extent] += 1
            slot += 1
        permute(out_slots, first_slot, slot, stream_key(seed, SEGMENTS_IN_ROW, first_row + r))
        out_row_starts[first_row + r + 1] = slot

    left = np.empty(len(grouped) - (slot - out_row_starts[first_row]), numbers.dtype)
    end = 0
    for extent in range(1, longest + 1):
        for i in range(taken[extent], group[extent + 1]):
            left[end] = grouped[i]
            end += 1
    return left
