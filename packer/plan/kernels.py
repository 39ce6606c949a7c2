"""Numba kernels of the deal: patterns to partitions, segments to rows.

They loop where NumPy would slice: a slice assignment takes seconds to compile, and no less time to run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.plan.permute import DEAL_ROTATION, EQUAL_LENGTHS, ROWS, SEGMENTS_IN_ROW, draw_below, permute, stream_key


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
def share_patterns(
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
    for i in range(len(array)):
        grown[i] = array[i]
    return grown


@jit
def fill_rows(
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
    # Group the segments by extent (counting sort), and shuffle each group.
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
