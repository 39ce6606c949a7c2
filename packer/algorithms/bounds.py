"""Lower bounds on the number of packs of a histogram, computed in exact integers.

A histogram is int64, shape (max_len + 1,), with histogram[0] == 0. Counts times max_len must fit into int64.
"""

import numpy as np
from numpy.typing import NDArray

COARSE = 1 << 17
"""Largest capacity for which `vector_bounds` counts exactly."""


def lower_bound(histogram: NDArray[np.int64], max_segments: int | None = None) -> int:
    """Return the largest bound of this module. No packing with at most `max_segments` per pack has fewer packs."""
    return max(token_bound(histogram), l2_bound(histogram), segments_bound(histogram, max_segments))


def cut_bound(histogram: NDArray[np.int64], max_segments: int | None = None) -> int:
    """Return a bound that holds even if segments may be cut anywhere: [6, 6, 6] in packs of 10 -> 2, not 3."""
    segments = int(histogram.sum())
    return max(token_bound(histogram), 0 if max_segments is None else -(-segments // max_segments))


def token_bound(histogram: NDArray[np.int64]) -> int:
    """Return tokens divided by the capacity, rounded up: 3 segments of 3 tokens in packs of 4 -> 3."""
    capacity = len(histogram) - 1
    tokens = int(histogram @ np.arange(capacity + 1))
    return -(-tokens // capacity)


def l2_bound(histogram: NDArray[np.int64]) -> int:
    """Return the bound L2 of Martello and Toth (Knapsack Problems, 1990, section 8.3.2).

    Each segment longer than half the capacity needs its own pack. For any alpha up to half the capacity, segments
    longer than capacity - alpha leave no room for segments of alpha or more. Segments from alpha to half the capacity
    must therefore fit beside the other long segments, or need more packs. The bound is the maximum over alpha: [6, 6,
    6, 5] in packs of 10 -> 4, whereas the tokens alone give 3.
    """
    capacity = len(histogram) - 1
    half = capacity // 2
    counts, tokens = _below(histogram)
    alpha = np.arange(half + 1)
    large = counts[capacity + 1] - counts[half + 1]
    large_with_room = counts[capacity - alpha + 1] - counts[half + 1]
    excess = tokens[capacity - alpha + 1] - tokens[alpha] - capacity * large_with_room
    return int(large) + max(0, -(-int(excess.max()) // capacity))


def segments_bound(histogram: NDArray[np.int64], max_segments: int | None = None) -> int:
    """Return segments divided by the maximum number of segments in a pack, rounded up; long segments count separately.

    For any t up to half the capacity, a segment longer than capacity - t shares no pack with segments of t or more. Of
    the segments from t to capacity - t, at most min(max_segments, capacity // t) fit into one pack. The bound is the
    maximum over t; t = 1 gives the number of segments divided by `max_segments`. [9, 2, 2, 2] in packs of 10, at most
    two segments each -> 1 + 2 = 3.
    """
    capacity = len(histogram) - 1
    counts, _ = _below(histogram)
    t = np.arange(1, max(1, capacity // 2) + 1)
    most = capacity // t if max_segments is None else np.minimum(capacity // t, max_segments)
    alone = counts[capacity + 1] - counts[capacity - t + 1]
    shared = counts[capacity - t + 1] - counts[t]
    return int((alone - (-shared // most)).max())


def _below(histogram: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count segments and tokens below each length, (max_len + 2,): [0, 2, 0, 1] -> [0, 0, 2, 2, 3], [0, 0, 2, 2, 5]."""
    counts = np.zeros(len(histogram) + 1, np.int64)
    tokens = np.zeros(len(histogram) + 1, np.int64)
    np.cumsum(histogram, out=counts[1:])
    np.cumsum(histogram * np.arange(len(histogram)), out=tokens[1:])
    return counts, tokens


def vector_bounds(demands: NDArray[np.int32], capacities: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a lower bound on the rows of items with several demands, considering each resource alone.

    demands: shape (resources, items), at most the capacities. capacities: shape (resources,), at least 1. The largest
    of these bounds holds for the items. Demands on a capacity above COARSE are counted in coarser units, rounded down.
    [[6, 6, 2], [0, 1, 1]] with capacities [10, 1] -> [2, 2].
    """
    bounds = np.zeros(len(capacities), np.int64)
    for resource, capacity in enumerate(capacities.tolist()):
        unit = -(-capacity // COARSE)
        histogram = np.bincount(demands[resource] // unit, minlength=capacity // unit + 1)
        histogram[0] = 0
        total = int(demands[resource].sum(dtype=np.int64))
        bounds[resource] = max(-(-total // capacity), l2_bound(histogram), segments_bound(histogram))
    return bounds
