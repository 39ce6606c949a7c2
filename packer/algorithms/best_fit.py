"""Best-fit decreasing on a histogram, known as longest-pack-first histogram packing (LPFHP)."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.algorithms.open_packs import (
    COUNT,
    SEGMENTS,
    add_segments,
    detach,
    new_links,
    next_key,
    open_packs,
    push,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns


def best_fit_decreasing(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Put each segment, the longest first, into the pack with the least room that still takes it.

    Among packs with the same room the one that changed last takes it. The packs are exactly those of placing the
    segments one by one; with `max_segments` they are those of LPFHP in Krell et al. (arXiv 2107.02027).
    """
    limit = segment_limit(histogram, max_segments)
    return to_patterns(*_best_fit(histogram, limit))


@jit
def _best_fit(histogram: NDArray[np.int64], limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The groups (groups, 4) and links (links, 3) of best fit; stacks are kept by residual.

    A pack with residual r that took a segment of length l has r - l left. No other pack had room between l and r, so
    it takes the next segment of l as well, while it can: 3 of length 30 go into a residual of 100. At most one pack of
    a group is left with fewer, when the segments run out.
    """
    capacity = len(histogram) - 1
    packs = open_packs(histogram, capacity)
    groups = packs.groups
    used_groups = 1
    links = new_links()
    for length in range(capacity, 0, -1):
        left = histogram[length]
        while left > 0:
            residual = next_key(packs, length)
            top = packs.tops[residual]
            repeat = min(residual // length, limit - groups[top, SEGMENTS], left)
            taken = min(groups[top, COUNT], left // repeat)
            group = detach(packs, residual, taken, used_groups)
            used_groups += group == used_groups
            links = add_segments(groups, group, length, repeat, links)
            left -= repeat * taken
            residual -= repeat * length
            if residual > 0 and groups[group, SEGMENTS] < limit:
                push(packs, residual, group)
    return groups[:used_groups], links.rows[: links.used]
