"""The packs that can still take a segment, as the kernels keep them, with best fit and first fit.

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
from packer.algorithms.jit import jit, jit_if_large
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
    """The links of all chains."""

    rows: NDArray[np.int64]  # (at least used, 3)
    used: int


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
def copy_packs(packs: OpenPacks, out: OpenPacks) -> int:
    """Copy the groups of `packs` to `out`, with empty chains; returns how many groups there are."""
    keys = len(packs.tops)
    key = next_key(out, 0)
    while key < keys:
        out.tops[key] = NONE
        key = next_key(out, key + 1)
    for word in range(len(packs.words)):
        out.words[word] = packs.words[word]
    for block in range(len(packs.summary)):
        out.summary[block] = packs.summary[block]
    used = 0
    key = next_key(packs, 0)
    while key < keys:
        out.tops[key] = used
        group = packs.tops[key]
        while group != NONE:
            copy_row(packs.groups, group, out.groups, used)
            out.groups[used, CHAIN] = NONE
            group = packs.groups[group, BELOW]
            out.groups[used, BELOW] = NONE if group == NONE else used + 1
            used += 1
        key = next_key(packs, key + 1)
    return used


@jit_if_large
def grown(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same rows in an array that is twice as long."""
    longer = np.empty((2 * len(rows), rows.shape[1]), np.int64)
    for row in range(len(rows)):
        copy_row(rows, row, longer, row)
    return longer


def new_links() -> Links:
    """No links, and room for some."""
    return Links(np.empty((64, 3), np.int64), 0)


@jit_if_large
def add_segments(out: NDArray[np.int64], group: int, extent: int, repeat: int, out_links: Links) -> Links:
    """Put `repeat` segments of `extent` into each pack of a group of `out`; returns the links with one more."""
    rows = out_links.rows
    if out_links.used == len(rows):
        rows = grown(rows)
    rows[out_links.used, EXTENT] = extent
    rows[out_links.used, REPEAT] = repeat
    rows[out_links.used, PARENT] = out[group, CHAIN]
    out[group, CHAIN] = out_links.used
    out[group, SEGMENTS] += repeat
    return Links(rows, out_links.used + 1)


@jit_if_large
def best_fit(
    out: OpenPacks, used: int, out_links: Links, histogram: NDArray[np.int64], longest: int, limit: int
) -> tuple[int, Links]:
    """Place segments, the longest first, each in the pack with the least room for it; stacks are kept by residual.

    A pack with residual r that took a segment of length l has r - l left. No other pack had room between l and r, so
    it takes the next segment of l as well, while it can: 3 of length 30 go into a residual of 100. At most one pack of
    a group is left with fewer, when the segments run out.

    Args:
        out: the packs that take segments.
        used: groups of `out` in use.
        out_links: what the packs hold.
        histogram: (capacity + 1,) segments of every length.
        longest: longer segments are not placed.
        limit: the most segments in a pack.

    Returns:
        The groups in use, and the links.
    """
    groups = out.groups
    for length in range(longest, 0, -1):
        left = histogram[length]
        while left > 0:
            residual = next_key(out, length)
            top = out.tops[residual]
            repeat = min(residual // length, limit - groups[top, SEGMENTS], left)
            taken = min(groups[top, COUNT], left // repeat)
            group = detach(out, residual, taken, used)
            used += group == used
            out_links = add_segments(groups, group, length, repeat, out_links)
            left -= repeat * taken
            residual -= repeat * length
            if residual > 0 and groups[group, SEGMENTS] < limit:
                push(out, residual, group)
    return used, out_links


def to_patterns(groups: NDArray[np.int64], links: NDArray[np.int64]) -> Patterns:
    """Return every group except the untouched packs as a pattern, in the order in which groups were made."""
    used = groups[1:]
    offsets = np.zeros(len(used) + 1, np.int64)
    np.cumsum(used[:, SEGMENTS], out=offsets[1:])
    extents = np.empty(offsets[-1], np.int32)
    # One link of every chain at a time. The last link holds the shortest extent, so chains are written from their ends.
    chains, ends = used[:, CHAIN], offsets[1:]
    while len(chains):
        is_left = chains != NONE
        chains, ends = chains[is_left], ends[is_left]
        repeats = links[chains, REPEAT]
        ends = ends - repeats
        extents[joined_ranges(ends, repeats)] = np.repeat(links[chains, EXTENT], repeats)
        chains = links[chains, PARENT]
    return Patterns(offsets=offsets, extents=extents, counts=used[:, COUNT].copy())


def best_fit_decreasing(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Put each segment, the longest first, into the pack with the least room that still takes it.

    Among packs with the same room the one that changed last takes it. The packs are exactly those of placing the
    segments one by one; with `max_segments` they are those of LPFHP in Krell et al. (arXiv 2107.02027).
    """
    limit = segment_limit(histogram, max_segments)
    capacity = len(histogram) - 1
    packs = open_packs(histogram, capacity)
    used, links = best_fit(packs, 1, new_links(), histogram, capacity, limit)
    return to_patterns(packs.groups[:used], links.rows[: links.used])


FIRST = 3
"""The last column of groups, which are in no stack here: the index of the group's first pack."""

LEFT, RIGHT, ABOVE, ROOM = range(4)
"""Columns of tree nodes: children, parent, the largest residual of the packs below; LEFT of a leaf is its group."""

NIL, ROOT = 0, 1
"""The node that stands for no node and has no room, and the root."""


def first_fit_decreasing(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Put each segment, the longest first, into the pack opened first among those that take it.

    The packs are exactly those of the textbook, where segments are placed one by one.
    """
    limit = segment_limit(histogram, max_segments)
    groups = new_groups(histogram)
    levels = int(groups[0, COUNT]).bit_length()
    tree = np.zeros((64 + 2 * levels, 4), np.int64)
    used, links = _first_fit(histogram, limit, levels, groups, new_links(), tree)
    return to_patterns(groups[:used], links.rows[: links.used])


@jit
def _first_fit(
    histogram: NDArray[np.int64],
    limit: int,
    levels: int,
    out_groups: NDArray[np.int64],
    out_links: Links,
    out_tree: NDArray[np.int64],
) -> tuple[int, Links]:
    """Fill `out_groups`, and return how many there are, and the links; a group is an interval of consecutive packs.

    A pack that takes a segment of length l is also the first candidate for the next one, so it takes as many as it can.
    If only the first packs of a group took something, the group is divided into two intervals: for packs 0-9 of 100
    tokens that hold [60], four segments of 20 make 0-1 with [60, 20, 20] and 2-9 with [60].
    """
    capacity = len(histogram) - 1
    groups, links = out_groups, out_links
    used_groups = 1

    # a binary trie of so many levels, over the first index of each group, finds the first group that has room
    tree = out_tree
    used_nodes = set_room(tree, ROOT + 1, levels, 0, 0, capacity)

    for length in range(capacity, 0, -1):
        left = histogram[length]
        while left > 0:
            leaf = first_leaf(tree, levels, length)
            group = tree[leaf, LEFT]
            residual = tree[leaf, ROOM]
            repeat = min(residual // length, limit - groups[group, SEGMENTS], left)
            taken = min(groups[group, COUNT], left // repeat)
            if len(tree) - used_nodes < levels:
                tree = grown(tree)
            if taken < groups[group, COUNT]:
                rest = group
                group = used_groups
                used_groups += 1
                copy_row(groups, rest, groups, group)
                groups[group, COUNT] = taken
                groups[rest, COUNT] -= taken
                groups[rest, FIRST] += taken
                used_nodes = set_room(tree, used_nodes, levels, groups[rest, FIRST], rest, residual)
            links = add_segments(groups, group, length, repeat, links)
            left -= repeat * taken
            residual -= repeat * length
            if groups[group, SEGMENTS] == limit:
                residual = 0
            used_nodes = set_room(tree, used_nodes, levels, groups[group, FIRST], group, residual)
    return used_groups, links


@jit_if_large
def first_leaf(tree: NDArray[np.int64], levels: int, length: int) -> int:
    """The leaf of the first group whose packs take `length`; the untouched packs always do."""
    node = ROOT
    for _ in range(levels):
        left = tree[node, LEFT]
        node = left if tree[left, ROOM] >= length else tree[node, RIGHT]
    return node


@jit_if_large
def set_room(out: NDArray[np.int64], used: int, levels: int, first: int, group: int, room: int) -> int:
    """Give the group that begins at pack `first` this room; returns the nodes used, `levels` more at most."""
    node = ROOT
    for level in range(levels - 1, -1, -1):
        side = RIGHT if (first >> level) & 1 else LEFT
        child = out[node, side]
        if child == NIL:
            child = used
            used += 1
            for column in range(4):
                out[child, column] = NIL
            out[child, ABOVE] = node
            out[node, side] = child
        node = child
    out[node, LEFT] = group
    out[node, ROOM] = room
    # upwards, as far as the room on top changes
    node = out[node, ABOVE]
    while node != NIL:
        room = max(out[out[node, LEFT], ROOM], out[out[node, RIGHT], ROOM])
        if out[node, ROOM] == room:
            break
        out[node, ROOM] = room
        node = out[node, ABOVE]
    return used
