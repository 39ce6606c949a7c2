"""Numba kernels of the deal: patterns to partitions, segments to rows.

They loop where NumPy would slice: a slice assignment takes seconds to compile, and no less time to run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.plan.extents import extent_of
from packer.plan.permute import DEAL_ROTATION, EQUAL_LENGTHS, ROWS, SEGMENTS_IN_ROW, draw_below, permute, stream_key


@jit
def _filled_packs(histogram: NDArray[np.int64], extents: NDArray[np.int32], first: int, last: int) -> Any:
    """How often a partition's segments fill the pattern extents[first:last], in descending order."""
    packs = np.int64(1) << 62
    begin = first
    while begin < last:
        end = begin
        while end < last and extents[end] == extents[begin]:
            end += 1
        packs = min(packs, histogram[extents[begin]] // (end - begin))
        if packs == 0:
            break
        begin = end
    return packs


@jit
def first_turns(patterns: int, partitions: int, seed: np.uint64) -> NDArray[np.int64]:
    """The partition at which the dealing of each pattern begins: int64, shape (patterns,)."""
    turns = np.empty(patterns, np.int64)
    for pattern in range(patterns):
        turns[pattern] = draw_below(stream_key(seed, DEAL_ROTATION, pattern), 0, partitions)
    return turns


@jit
def even_share(
    tails: NDArray[np.int32],
    first: int,
    last: int,
    head_lengths: NDArray[np.int32],
    first_head: int,
    last_head: int,
    align: int,
    max_len: int,
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    counts: NDArray[np.int64],
    turns: NDArray[np.int64],
    partition: int,
    partitions: int,
    most_rows: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Give a partition its even share of every pattern, as far as its own segments fill it.

    Of 7 packs and 3 partitions, one takes 3 and two take 2: that begins at another partition for every pattern, so
    that no partition gets all the odd ones.

    Args:
        tails: (documents,) tokens in each tail; 0 where there is none.
        first: the first document of the partition.
        last: the document after its last.
        head_lengths: (heads,) tokens in each head.
        first_head: the first of the partition.
        last_head: the head after its last.
        align: extents are multiples of it.
        max_len: tokens of a row.
        offsets: (patterns + 1,) see `Patterns`.
        extents: (offsets[-1],)
        counts: (patterns,)
        turns: (patterns,) the partition at which dealing a pattern begins.
        partition: its number.
        partitions: how many there are.
        most_rows: rows that the partition may have.

    Returns:
        The patterns given and how many packs of each; the extents of the segments left, and how many of each.
    """
    histogram = np.zeros(max_len + 1, np.int64)
    for document in range(first, last):
        histogram[extent_of(tails[document], align)] += 1
    histogram[0] = 0
    for head in range(first_head, last_head):
        histogram[extent_of(head_lengths[head], align)] += 1
    quotas = np.empty(len(counts), np.int64)
    for pattern in range(len(counts)):
        step = (partition - turns[pattern]) % partitions
        quotas[pattern] = counts[pattern] // partitions + (step < counts[pattern] % partitions)
    given, packs = _take(offsets, extents, quotas, most_rows, histogram)
    kinds = np.count_nonzero(histogram)
    left_extents = np.empty(kinds, np.int32)
    left_counts = np.empty(kinds, np.int64)
    kind = 0
    for extent in range(max_len + 1):
        if histogram[extent] > 0:
            left_extents[kind], left_counts[kind] = extent, histogram[extent]
            kind += 1
    return given, packs, left_extents, left_counts


@jit
def further_share(
    segment_extents: NDArray[np.int32],
    segment_counts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    out_left: NDArray[np.int64],
    most_rows: int,
    out_histogram: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Give a partition what it still fills of the patterns that others could not take.

    Args:
        segment_extents: (extents,) of the segments it has left.
        segment_counts: (extents,) how many of each.
        offsets: (patterns + 1,) see `Patterns`.
        extents: (offsets[-1],)
        out_left: (patterns,) packs of each pattern that nobody has taken; what is given is taken away.
        most_rows: rows that the partition may still have.
        out_histogram: (max_len + 1,) all zero, before and after.

    Returns:
        The patterns given and how many packs of each.
    """
    for i in range(len(segment_extents)):
        out_histogram[segment_extents[i]] = segment_counts[i]
    given, packs = _take(offsets, extents, out_left, most_rows, out_histogram)
    for i in range(len(given)):
        out_left[given[i]] -= packs[i]
    for extent in segment_extents:
        out_histogram[extent] = 0
    return given, packs


@jit
def _take(
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    quotas: NDArray[np.int64],
    most_rows: int,
    out_histogram: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Take packs of each pattern, up to its quota, as segments last; returns patterns and packs."""
    given = np.empty(len(quotas), np.int32)
    given_packs = np.empty(len(quotas), np.int64)
    size = 0
    room = np.int64(most_rows)
    for pattern in range(len(quotas)):
        if quotas[pattern] == 0:
            continue
        packs = min(
            quotas[pattern], room, _filled_packs(out_histogram, extents, offsets[pattern], offsets[pattern + 1])
        )
        if packs == 0:
            continue
        room -= packs
        for e in range(offsets[pattern], offsets[pattern + 1]):
            out_histogram[extents[e]] -= packs
        given[size], given_packs[size] = pattern, packs
        size += 1
    return given[:size].copy(), given_packs[:size].copy()


@jit
def group_documents(
    tails: NDArray[np.int32],
    first: int,
    last: int,
    head_lengths: NDArray[np.int32],
    first_head: int,
    last_head: int,
    align: int,
    out_groups: NDArray[np.int64],
    out_grouped: NDArray[np.uint32],
) -> None:
    """Group the segments of a partition by extent (counting sort).

    Args:
        tails: (documents,) tokens in each tail; 0 where there is none.
        first: the first document of the partition.
        last: the document after its last.
        head_lengths: (heads,) tokens in each head.
        first_head: the first of the partition.
        last_head: the head after its last.
        align: extents are multiples of it.
        out_groups: (max_len + 2,) all zero; then the segments of an extent stand in
            out_grouped[out_groups[extent]:out_groups[extent + 1]].
        out_grouped: (at least segments,) their numbers, tails before heads.
    """
    for document in range(first, last):
        out_groups[extent_of(tails[document], align)] += 1
    for head in range(first_head, last_head):
        out_groups[extent_of(head_lengths[head], align)] += 1
    _to_ends(out_groups)
    # from the back, so that an extent's end becomes its begin
    for head in range(last_head - 1, first_head - 1, -1):
        extent = extent_of(head_lengths[head], align)
        out_groups[extent] -= 1
        out_grouped[out_groups[extent]] = len(tails) + head
    for document in range(last - 1, first - 1, -1):
        extent = extent_of(tails[document], align)
        if extent > 0:
            out_groups[extent] -= 1
            out_grouped[out_groups[extent]] = document


@jit
def group_numbers(
    numbers: NDArray[np.uint32],
    tails: NDArray[np.int32],
    head_lengths: NDArray[np.int32],
    align: int,
    out_groups: NDArray[np.int64],
    out_grouped: NDArray[np.uint32],
) -> None:
    """Group segments given by number; otherwise as `group_documents`."""
    for i in range(len(numbers)):
        out_groups[segment_extent(numbers[i], tails, head_lengths, align)] += 1
    _to_ends(out_groups)
    for i in range(len(numbers) - 1, -1, -1):
        extent = segment_extent(numbers[i], tails, head_lengths, align)
        out_groups[extent] -= 1
        out_grouped[out_groups[extent]] = numbers[i]


@jit
def segment_extent(number: int, tails: NDArray[np.int32], head_lengths: NDArray[np.int32], align: int) -> Any:
    """The extent of a segment given by number."""
    number = np.int64(number)
    return extent_of(tails[number] if number < len(tails) else head_lengths[number - len(tails)], align)


@jit
def _to_ends(out_groups: NDArray[np.int64]) -> None:
    """Turn counts of extents into where each ends, those of extent 0 left out."""
    out_groups[0] = 0
    for extent in range(1, len(out_groups)):
        out_groups[extent] += out_groups[extent - 1]


@jit
def fill_rows(
    groups: NDArray[np.int64],
    out_grouped: NDArray[np.uint32],
    given: NDArray[np.int32],
    packs: NDArray[np.int64],
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    first_row: int,
    first_slot: int,
    stream: int,
    seed: np.uint64,
    out_row_starts: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
    out_left: NDArray[np.uint32],
) -> None:
    """Fill rows with segments at random: which of equal extent, the order of rows, the order within a row.

    Args:
        groups: (max_len + 2,) where each extent begins in `out_grouped`.
        out_grouped: (segments,) segment numbers by extent; permuted within each.
        given: (patterns given,) the patterns that the rows follow.
        packs: (patterns given,) how many rows follow each.
        offsets: (patterns + 1,) see `Patterns`.
        extents: (offsets[-1],)
        first_row: number of the first row.
        first_slot: where its slots begin.
        stream: number of the partition (the pool: the number of partitions).
        seed: of the pack.
        out_row_starts: written from first_row + 1 on.
        out_slots: written from first_slot on.
        out_left: the numbers of the segments that no row took, by extent.
    """
    for extent in range(1, len(groups) - 1):
        if groups[extent + 1] - groups[extent] > 1:
            key = stream_key(seed, EQUAL_LENGTHS, stream * (np.int64(1) << 32) + extent)
            permute(out_grouped, groups[extent], groups[extent + 1], key)

    # Rows in random order take the next segment of every extent that their pattern asks for.
    rows = np.empty(packs.sum(), np.int32)
    row = 0
    for i in range(len(given)):
        for _ in range(packs[i]):
            rows[row] = given[i]
            row += 1
    permute(rows, 0, len(rows), stream_key(seed, ROWS, stream))
    taken = groups.copy()
    slot = first_slot
    for row in range(len(rows)):
        begin = slot
        for e in range(offsets[rows[row]], offsets[rows[row] + 1]):
            extent = extents[e]
            out_slots[slot] = out_grouped[taken[extent]]
            taken[extent] += 1
            slot += 1
        permute(out_slots, begin, slot, stream_key(seed, SEGMENTS_IN_ROW, first_row + row))
        out_row_starts[first_row + row + 1] = slot

    end = 0
    for extent in range(1, len(groups) - 1):
        for i in range(taken[extent], groups[extent + 1]):
            out_left[end] = out_grouped[i]
            end += 1
