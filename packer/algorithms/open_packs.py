"""The packs that can still take a segment, as the kernels keep them, with best fit.

Packs that hold the same extents are one **group**. Groups are in stacks, one stack per key (a residual, or a fill),
with the group that changed last on top. A set of bits says which stacks are not empty, so that the next one is found in
a few steps, however long a pack is. The contents of a group's packs are a **chain** of links (extent, repeat, parent),
which groups share that were once a single one: [5, 5, 2] is the link (2, 1) whose parent is the link (5, 2).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges
from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Patterns

COUNT, SEGMENTS, CHAIN, BELOW = range(4)
"""Columns of groups: packs in the group, segments in each, their last link, the next group in the stack."""

EXTENT, REPEAT, PARENT = range(3)
"""Columns of links."""

NONE = -1
"""No group, no link."""

ONE = np.uint64(1)
ZERO = np.uint64(0)


class OpenPacks(NamedTuple):
    """Stacks of groups by key, and the set of keys whose stack holds something."""

    groups: NDArray[np.int64]  # (2 * lengths + 1, 4); group 0 is the packs that nothing was put into yet
    tops: NDArray[np.int64]  # (keys,) the top group of each stack, or NONE
    words: NDArray[np.uint64]  # (ceil(keys / 64),) bit k % 64 of word k // 64: stack k holds something
    summary: NDArray[np.uint64]  # (ceil(words / 64),) the same over words that are not 0


class Links(NamedTuple):
    """The links of all chains, and how many groups have any."""

    rows: NDArray[np.int64]  # (at least used, 3)
    used: int
    groups: int  # groups in use, group 0 included


def no_links() -> Links:
    """No links, and room for some; group 0 alone is in use."""
    return Links(np.empty((64, 3), np.int64), 0, 1)


def segment_limit(histogram: NDArray[np.int64], max_segments: int | None) -> int:
    """Check the arguments of a solver, and return how many segments a pack may hold: at most one per token."""
    assert histogram.dtype == np.int64
    assert histogram.ndim == 1
    assert len(histogram) >= 2
    assert histogram[0] == 0
    assert histogram.min() >= 0
    assert max_segments is None or max_segments >= 1
    capacity = len(histogram) - 1
    return capacity if max_segments is None else min(max_segments, capacity)


def new_groups(histogram: NDArray[np.int64], *, more: int = 0) -> NDArray[np.int64]:
    """Make room for the groups of a run, and `more`; group 0 stands for untouched packs and never runs out.

    One length makes at most two new groups: by each step that leaves part of a group as it was, or by new packs,
    and each time the last pack may be filled in part only.
    """
    groups = np.zeros((2 * np.count_nonzero(histogram) + 1 + more, 4), np.int64)
    groups[0, COUNT] = histogram.sum() + 1
    groups[0, CHAIN] = NONE
    return groups


def open_packs(histogram: NDArray[np.int64], untouched: int, *, more: int = 0) -> OpenPacks:
    """Stacks for the keys 0 to capacity, with nothing in them but the untouched packs at key `untouched`."""
    packs = no_packs(new_groups(histogram, more=more), len(histogram))
    push(packs, untouched, 0)
    return packs


def no_packs(groups: NDArray[np.int64], keys: int) -> OpenPacks:
    """Empty stacks for the keys 0 to keys - 1; `groups` are those that may be pushed onto them."""
    words = (keys + 63) >> 6
    return OpenPacks(groups, np.full(keys, NONE), np.zeros(words, np.uint64), np.zeros((words + 63) >> 6, np.uint64))


@jit_if_large
def push(out: OpenPacks, key: int, group: int) -> None:
    """Push a group on the stack of `key`."""
    out.groups[group, BELOW] = out.tops[key]
    out.tops[key] = group
    word = key >> 6
    out.words[word] |= ONE << np.uint64(key & 63)
    out.summary[word >> 6] |= ONE << np.uint64(word & 63)


@jit_if_large
def copy_row(rows: NDArray[np.int64], row: int, out: NDArray[np.int64], spare: int) -> None:
    """Set row `spare` of `out` to a row of `rows`; written as a loop, which compiles in a tenth of the time."""
    for column in range(rows.shape[1]):
        out[spare, column] = rows[row, column]


@jit_if_large
def detach(out: OpenPacks, key: int, packs: int, spare: int) -> int:
    """Take `packs` packs off the top group of a stack; returns their group: `spare`, or the group itself if it is all.

    What is left of the group stays on top.
    """
    group: int = out.tops[key]
    if out.groups[group, COUNT] > packs:
        out.groups[group, COUNT] -= packs
        copy_row(out.groups, group, out.groups, spare)
        out.groups[spare, COUNT] = packs
        return spare
    out.tops[key] = out.groups[group, BELOW]
    if out.tops[key] == NONE:
        word = key >> 6
        out.words[word] &= ~(ONE << np.uint64(key & 63))
        if out.words[word] == ZERO:
            out.summary[word >> 6] &= ~(ONE << np.uint64(word & 63))
    return group


@jit_if_large
def lowest_bit(word: np.uint64) -> int:
    """Index of the lowest bit that is set: 0b1000 -> 3."""
    # a power of two is exact as a float: frexp(8.0) is (0.5, 4)
    _, exponent = math.frexp(float(word & (~word + ONE)))
    return exponent - 1


@jit_if_large
def next_key(packs: OpenPacks, start: int) -> int:
    """The smallest key from `start` on whose stack holds something; the number of keys when there is none."""
    keys = len(packs.tops)
    if start >= keys:
        return keys
    bits = packs.words[start >> 6] >> np.uint64(start & 63)
    if bits != ZERO:
        return start + lowest_bit(bits)
    word = (start >> 6) + 1
    block = word >> 6
    if block == len(packs.summary):
        return keys
    bits = packs.summary[block] >> np.uint64(word & 63)
    while bits == ZERO:
        block += 1
        if block == len(packs.summary):
            return keys
        word = block << 6
        bits = packs.summary[block]
    word += lowest_bit(bits)
    return (word << 6) + lowest_bit(packs.words[word])


@jit_if_large
def grown(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same rows in an array that is twice as long."""
    longer = np.empty((2 * len(rows), rows.shape[1]), np.int64)
    for row in range(len(rows)):
        copy_row(rows, row, longer, row)
    return longer


@jit_if_large
def add_segments(out: NDArray[np.int64], group: int, extent: int, repeat: int, out_links: Links) -> Links:
    """Put `repeat` segments of `extent` into each pack of a group, one in use or the next; returns the links."""
    rows = out_links.rows
    if out_links.used == len(rows):
        rows = grown(rows)
    rows[out_links.used, EXTENT] = extent
    rows[out_links.used, REPEAT] = repeat
    rows[out_links.used, PARENT] = out[group, CHAIN]
    out[group, CHAIN] = out_links.used
    out[group, SEGMENTS] += repeat
    return Links(rows, out_links.used + 1, max(out_links.groups, group + 1))


@jit_if_large
def best_fit(out: OpenPacks, out_links: Links, histogram: NDArray[np.int64], longest: int, limit: int) -> Links:
    """Place segments up to `longest`, the longest first, each in the pack with the least room; returns the links.

    A pack with residual r that took a segment of length l has r - l left. No other pack had room between l and r, so
    it takes the next segment of l as well, while it can: 3 of length 30 go into a residual of 100. At most one pack of
    a group is left with fewer, when the segments run out.

    The stacks of `out` are by residual, and `out_links` is what its packs hold. No pack takes more than `limit`
    segments.
    """
    groups, links = out.groups, out_links
    for length in range(longest, 0, -1):
        left = histogram[length]
        while left > 0:
            residual = next_key(out, length)
            top = out.tops[residual]
            repeat = min(residual // length, limit - groups[top, SEGMENTS], left)
            taken = min(groups[top, COUNT], left // repeat)
            group = detach(out, residual, taken, links.groups)
            links = add_segments(groups, group, length, repeat, links)
            left -= repeat * taken
            residual -= repeat * length
            if residual > 0 and groups[group, SEGMENTS] < limit:
                push(out, residual, group)
    return links


def to_patterns(groups: NDArray[np.int64], links: Links) -> Patterns:
    """Return every group except the untouched packs as a pattern, in the order in which groups were made."""
    used = groups[1 : links.groups]
    offsets = np.zeros(len(used) + 1, np.int64)
    np.cumsum(used[:, SEGMENTS], out=offsets[1:])
    extents = np.empty(offsets[-1], np.int32)
    # One link of every chain at a time. The last link holds the shortest extent, so chains are written from their ends.
    chains, ends = used[:, CHAIN], offsets[1:]
    while len(chains):
        is_left = chains != NONE
        chains, ends = chains[is_left], ends[is_left]
        repeats = links.rows[chains, REPEAT]
        ends = ends - repeats
        extents[joined_ranges(ends, repeats)] = np.repeat(links.rows[chains, EXTENT], repeats)
        chains = links.rows[chains, PARENT]
    return Patterns(offsets=offsets, extents=extents, counts=used[:, COUNT].copy())


def best_fit_decreasing(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Put each segment, the longest first, into the pack with the least room that still takes it.

    Among packs with the same room the one that changed last takes it. The packs are exactly those of placing the
    segments one by one; with `max_segments` they are those of LPFHP in Krell et al. (arXiv 2107.02027).
    """
    limit = segment_limit(histogram, max_segments)
    capacity = len(histogram) - 1
    packs = open_packs(histogram, capacity)
    return to_patterns(packs.groups, best_fit(packs, no_links(), histogram, capacity, limit))
