"""First-fit decreasing on a histogram."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit, jit_if_large
from packer.algorithms.open_packs import (
    COUNT,
    SEGMENTS,
    Links,
    add_segments,
    copy_row,
    grown,
    new_groups,
    new_links,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns

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
