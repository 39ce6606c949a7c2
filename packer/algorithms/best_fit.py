"""Best-fit decreasing on a histogram, known as longest-pack-first histogram packing (LPFHP)."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.open_packs import best_fit, new_links, open_packs, segment_limit, to_patterns
from packer.algorithms.patterns import Patterns


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
