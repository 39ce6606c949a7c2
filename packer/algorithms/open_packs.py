"""Open packs, which can still take a segment, as kernels store them; and best fit.

Packs with the same extents form one **group**. Each key (a residual, or a fill) has a stack of groups, with the most
recently changed group on top. A bit set marks the stacks that are not empty, so finding the next one takes a few steps,
however long a pack is. The contents of a group's packs are a **chain** of links (extent, repeat, parent): [5, 5, 2] is
the link (2, 1) whose parent is the link (5, 2). Groups that were split from one group share the beginning of their
chains.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Patterns

COUNT, SEGMENTS, CHAIN, BELOW = range(4)
"""Columns of the groups: number of packs, segments per pack, last link of the chain, next group in the stack."""

EXTENT, REPEAT, PARENT = range(3)
"""Columns of the links."""

NONE = -1
"""Stands for "no group" or "no link"."""

ONE = np.uint64(1)
ZERO = np.uint64(0)


class OpenPacks(NamedTuple):
    """Stacks of groups by key, and a bit set of the keys whose stack is not empty."""

    groups: NDArray[np.int64]  # (2 * lengths + 1, 4); group 0: empty packs
    tops: NDArray[np.int64]  # (keys,) the top group of each stack, or NONE
    words: NDArray[np.uint64]  # (ceil(keys / 64),) bit k % 64 of word k // 64: stack k is not empty
    summary: NDArray[np.uint64]  # (ceil(words / 64),) bit k % 64 of word k // 64: words[k] is not 0


class Links(NamedTuple):
    """The links of all chains, and the number of groups."""

    rows: NDArray[np.int64]  # (at least used, 3)
    used: int
    groups: int  # number of groups, including group 0


def no_links() -> Links:
    """Return empty `Links` with space for 64 links and the single group 0."""
    return Links(np.empty((64, 3), np.int64), 0, 1)


def segment_limit(histogram: NDArray[np.int64], max_segments: int | None) -> int:
    """Check the arguments of a solver; return the maximum number of segments in a pack, at most one per token."""
    assert histogram.dtype == np.int64
    assert histogram.ndim == 1
    assert len(histogram) >= 2
    assert histogram[0] == 0
    assert histogram.min() >= 0
    assert max_segments is None or max_segments >= 1
    capacity = len(histogram) - 1
    return capacity if max_segments is None else min(max_segments, capacity)


def new_groups(histogram: NDArray[np.int64], *, more: int = 0) -> NDArray[np.int64]:
    """Allocate the table of groups, with room for `more` groups. Group 0 holds the untouched packs and never runs out.

    Placing all segments of one length splits groups at most twice: once if too few segments are left for all packs of a
    group, and once for a last pack that takes fewer segments than the others.
    """
    groups = np.zeros((2 * np.count_nonzero(histogram) + 1 + more, 4), np.int64)
    groups[0, COUNT] = histogram.sum() + 1
    groups[0, CHAIN] = NONE
    return groups


def open_packs(histogram: NDArray[np.int64], untouched: int, *, more: int = 0) -> OpenPacks:
    """Return stacks for the keys 0 to capacity. They are empty, except for the untouched packs at key `untouched`."""
    packs = no_packs(new_groups(histogram, more=more), len(histogram))
    push(packs, untouched, 0)
    return packs


def no_packs(groups: NDArray[np.int64], keys: int) -> OpenPacks:
    """Return empty stacks for the keys 0 to keys - 1. `groups` is the table of groups that may be pushed onto them."""
    words = (keys + 63) >> 6
    return OpenPacks(groups, np.full(keys, NONE), np.zeros(words, np.uint64), np.zeros((words + 63) >> 6, np.uint64))


@jit_if_large
def push(out: OpenPacks, key: int, group: int) -> None:
    """Push a group onto the stack of `key`."""
    out.groups[group, BELOW] = out.tops[key]
    out.tops[key] = group
    word = key >> 6
    out.words[word] |= ONE << np.uint64(key & 63)
    out.summary[word >> 6] |= ONE << np.uint64(word & 63)


@jit_if_large
def copy_row(rows: NDArray[np.int64], row: int, out: NDArray[np.int64], spare: int) -> None:
    """Copy row `row` of `rows` to row `spare` of `out`. A loop compiles ten times as fast as a slice."""
    for column in range(rows.shape[1]):
        out[spare, column] = rows[row, column]


@jit_if_large
def detach(out: OpenPacks, key: int, packs: int, spare: int) -> int:
    """Detach `packs` packs from the top group of a stack. The other packs of the group stay on top.

    Returns the group of the detached packs: group `spare`, or the top group itself if all of its packs are detached.
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
    """Return the index of the lowest bit that is set: 0b1000 -> 3."""
    # A power of two is exact as a float: frexp(8.0) is (0.5, 4).
    _, exponent = math.frexp(float(word & (~word + ONE)))
    return exponent - 1


@jit_if_large
def next_key(packs: OpenPacks, start: int) -> int:
    """Return the smallest key >= `start` whose stack is not empty; the number of keys if there is none."""
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
    """Return a copy of the rows in an array that is twice as long."""
    longer = np.empty((2 * len(rows), rows.shape[1]), np.int64)
    for row in range(len(rows)):
        copy_row(rows, row, longer, row)
    return longer


@jit_if_large
def add_segments(out: NDArray[np.int64], group: int, extent: int, repeat: int, out_links: Links) -> Links:
    """Add `repeat` segments of length `extent` to each pack of a group. Returns the new links.

    group: an existing group, or the next new one.
    """
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
    """Place segments of up to `longest` tokens, the longest first, each in the pack with the least room.

    A pack with residual r that takes a segment of length l has a residual of r - l. No other pack has a residual from l
    to r - 1, so the same pack takes segments of length l until it is full: three of length 30 go into a residual of
    100. If the segments run out, at most one pack of a group gets fewer of them.

    out: stacks by residual. out_links: contents of the packs of `out`. limit: maximum number of segments in a pack.
    Returns the new links.
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
    """Return each group as a pattern, except the untouched packs, in the order in which the groups were created."""
    used = groups[1 : links.groups]
    offsets = np.zeros(len(used) + 1, np.int64)
    np.cumsum(used[:, SEGMENTS], out=offsets[1:])
    extents = np.empty(offsets[-1], np.int32)
    _walk_chains(used, links.rows, offsets, extents)
    return Patterns(offsets=offsets, extents=extents, counts=used[:, COUNT].copy())


@jit_if_large
def _walk_chains(
    groups: NDArray[np.int64], links: NDArray[np.int64], offsets: NDArray[np.int64], out_extents: NDArray[np.int32]
) -> None:
    """Write the extents of each group. The last link has the shortest extent, so a pattern is written from its end."""
    for group in range(len(groups)):
        place = offsets[group + 1]
        link = groups[group, CHAIN]
        while link != NONE:
            for _ in range(links[link, REPEAT]):
                place -= 1
                out_extents[place] = links[link, EXTENT]
            link = links[link, PARENT]


def best_fit_decreasing(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Put each segment, the longest first, into the fullest pack that still has room for it.

    Among packs with equal room, the most recently changed one takes the segment. The result equals placing segments one
    by one. With `max_segments`, it equals LPFHP of Krell et al. (arXiv 2107.02027).
    """
    limit = segment_limit(histogram, max_segments)
    capacity = len(histogram) - 1
    packs = open_packs(histogram, capacity)
    return to_patterns(packs.groups, best_fit(packs, no_links(), histogram, capacity, limit))
