"""First-fit decreasing on a histogram: each segment, the longest first, goes into the first pack with room for it."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.algorithms.open_packs import (
    COUNT,
    SEGMENTS,
    Links,
    add_segments,
    copy_row,
    new_groups,
    no_links,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns


def first_fit_decreasing(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Put each segment, the longest first, into the first opened pack that still has room for it.

    The result equals first fit over the sorted lengths, one by one (Johnson, 1973).
    """
    limit = segment_limit(histogram, max_segments)
    groups = new_groups(histogram)
    return to_patterns(groups, _first_fit(histogram, limit, groups, no_links()))


@jit
def _first_fit(histogram: NDArray[np.int64], limit: int, out_groups: NDArray[np.int64], out_links: Links) -> Links:
    """Fill `out_groups` and return the links. Here, a group is an interval of packs opened one after another.

    A pack that takes a segment of length l is also the first candidate for the next segment of this length, so it takes
    as many as fit. If only the first packs of a group take segments, the group is divided into two intervals. Example:
    packs 0-9 of 100 tokens hold [60]; four segments of 20 turn packs 0-1 into [60, 20, 20], and packs 2-9 keep [60].
    """
    groups, links = out_groups, out_links
    order = np.zeros(len(groups), np.int64)  # groups by their first pack; the last group is the untouched packs
    rooms = np.zeros(len(groups), np.int64)  # residual of each group's packs, in the same order
    rooms[0] = len(histogram) - 1
    for length in range(len(histogram) - 1, 0, -1):
        place = 0
        left = histogram[length]
        while left > 0:
            while rooms[place] < length:
                place += 1
            group = order[place]
            repeat = min(rooms[place] // length, limit - groups[group, SEGMENTS], left)
            taken = min(groups[group, COUNT], left // repeat)
            if taken < groups[group, COUNT]:
                rest, group = group, links.groups
                for later in range(links.groups, place, -1):
                    order[later], rooms[later] = order[later - 1], rooms[later - 1]
                order[place] = group
                copy_row(groups, rest, groups, group)
                groups[group, COUNT] = taken
                groups[rest, COUNT] -= taken
            links = add_segments(groups, group, length, repeat, links)
            left -= repeat * taken
            rooms[place] -= repeat * length
            if groups[group, SEGMENTS] == limit:
                rooms[place] = 0
    return links
