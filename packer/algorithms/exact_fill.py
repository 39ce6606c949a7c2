"""Exact fill on a histogram: a short search finds full packs, and each is repeated while its segments last."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.algorithms.open_packs import (
    CHAIN,
    COUNT,
    NONE,
    SEGMENTS,
    Links,
    add_segments,
    grown,
    no_links,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns

BACKTRACKS = 300
"""Number of dead ends after which the search for a pattern returns the fullest pack found."""


class Filled(NamedTuple):
    """Finished packs as groups and links; group 0 stands for no pack."""

    groups: NDArray[np.int64]  # (at least links.groups, 4)
    links: Links


def exact_fill(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Fill packs to the last token if a short search finds how.

    The search is depth first, tries the longest segment first, and starts with the longest segment left. It ends at a
    full pack or, after BACKTRACKS dead ends, with the fullest pack found. That pack is repeated while its segments
    last. Exact fill usually needs fewer packs than best fit, unless the limit on segments is reached.
    """
    limit = segment_limit(histogram, max_segments)
    below = np.arange(len(histogram))
    paths = np.zeros((2, limit), np.int64)
    return to_patterns(*_exact_fill(histogram.copy(), below, paths, BACKTRACKS, nothing_filled()))


def nothing_filled() -> Filled:
    """Return a table without packs, with space for 63 groups."""
    return Filled(np.zeros((64, 4), np.int64), no_links())


@jit_if_large
def _exact_fill(
    out_left: NDArray[np.int64],
    out_below: NDArray[np.int64],
    out_paths: NDArray[np.int64],
    backtracks: int,
    out: Filled,
) -> Filled:
    """Fill packs until no segment of `out_left` is left. A search ends after `backtracks` dead ends.

    `out_below`, initially all lengths, and `out_paths`, shape (2, maximum number of segments in a pack), are scratch
    space.
    """
    found = out_paths[1]
    longest = next_left(out_below, out_left, len(out_left) - 1, -1)
    while longest > 0:
        size = _search(out_below, out_left, longest, backtracks, out_paths[0], found)
        out = add_packs(out, found, size, packs_left(out_left, found, size), out_left)
        longest = next_left(out_below, out_left, longest, -1)
    return out


@jit_if_large
def packs_left(left: NDArray[np.int64], found: NDArray[np.signedinteger], size: int) -> int:
    """Return how many packs of pattern found[:size] the remaining segments fill. Its equal lengths are neighbors."""
    packs: int = left[found[0]]
    repeat = 0
    for place in range(size):
        repeat = repeat + 1 if place > 0 and found[place] == found[place - 1] else 1
        packs = min(packs, left[found[place]] // repeat)
    return packs


@jit_if_large
def add_packs(out: Filled, found: NDArray[np.int64], size: int, packs: int, out_left: NDArray[np.int64]) -> Filled:
    """Add packs of the pattern found[:size] as a new group, and take their segments from `out_left`."""
    groups, links = out
    group = links.groups
    if group == len(groups):
        groups = grown(groups)
    groups[group, COUNT] = packs
    groups[group, SEGMENTS] = 0
    groups[group, CHAIN] = NONE
    repeat = 0
    for place in range(size):
        repeat += 1
        if place == size - 1 or found[place + 1] != found[place]:
            links = add_segments(groups, group, found[place], repeat, links)
            out_left[found[place]] -= repeat * packs
            repeat = 0
    return Filled(groups, links)


@jit_if_large
def next_left(out_next: NDArray[np.int64], left: NDArray[np.int64], length: int, step: int) -> int:
    """Return the first length from `length` on, in steps of -1 or 1, with a segment left; 0 or len(left) if none has.

    out_next[l] points to a length in this direction, initially to l itself. The path over lengths that have run out is
    compressed, so that later searches skip them.
    """
    found = length
    while 0 < found < len(left) and (out_next[found] != found or left[found] == 0):
        if out_next[found] == found:
            out_next[found] = found + step
        found = out_next[found]
    while length != found:
        passed = length
        length = out_next[passed]
        out_next[passed] = found
    return found


@jit_if_large
def _search(
    out_below: NDArray[np.int64],
    left: NDArray[np.int64],
    longest: int,
    backtracks: int,
    out_path: NDArray[np.int64],
    out_found: NDArray[np.int64],
) -> int:
    """Write the fullest pack found that begins with `longest` to `out_found`; return its number of segments."""
    limit = len(out_path)
    out_path[0] = longest
    size = 1  # number of segments in the path
    repeat = 1  # how often the path's last length is repeated at its end
    room = len(left) - 1 - longest
    next_length = longest
    best_room = room + 1
    found = 0
    while True:
        length = 0
        if size < limit:
            length = next_left(out_below, left, min(room, next_length), -1)
            if length > 0 and length == out_path[size - 1] and left[length] == repeat:
                length = next_left(out_below, left, length - 1, -1)
        # Go on only if the segments that the limit still allows can beat the best pack.
        if length > 0 and room - (limit - size) * length < best_room:
            repeat = repeat + 1 if length == out_path[size - 1] else 1
            out_path[size] = length
            size += 1
            room -= length
            next_length = length
            continue
        if room < best_room:
            best_room = room
            found = size
            for place in range(size):
                out_found[place] = out_path[place]
        backtracks -= 1
        if best_room == 0 or size == 1 or backtracks < 0:
            return found
        # Put one segment back, then try only shorter ones.
        size -= 1
        room += out_path[size]
        next_length = out_path[size] - 1
        repeat = 1
        while repeat < size and out_path[size - 1 - repeat] == out_path[size - 1]:
            repeat += 1
