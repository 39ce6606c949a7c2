"""Start of column generation: lengths that become rows first, and values that already give a bound."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.spread import deepest

KNOTS = (160, 640)
"""Approximate numbers of rows of the coarse linear programs."""


def stages(histogram: NDArray[np.int64], limit: int) -> list[NDArray[np.int64] | None]:
    """Return the knots of the linear programs to solve in turn; None stands for all lengths.

    If a limit binds and there are many lengths, coarse programs come first. The value of a length changes fastest among
    the shortest lengths, and among those that only the shortest fit beside. So a third of the knots grows from the
    shortest length by a constant factor, a third is its mirror image below the capacity, and a third lies at even
    shares.
    """
    lengths = np.flatnonzero(histogram)
    if limit >= deepest(histogram):
        return [None]
    capacity = len(histogram) - 1
    programs: list[NDArray[np.int64] | None] = []
    for rows in KNOTS:
        if len(lengths) <= 2 * rows:
            break
        short = np.geomspace(lengths[0], max(capacity / 2, lengths[0]), rows // 3)
        wanted = np.concatenate([short, capacity - short])
        by_length = np.minimum(np.searchsorted(lengths, wanted), len(lengths) - 1)
        even = np.round(np.linspace(0, 1, rows // 3) * (len(lengths) - 1)).astype(np.int64)
        programs.append(np.unique(np.concatenate([by_length, even])))
    return [*programs, None]


def first_values(histogram: NDArray[np.int64], limit: int) -> NDArray[np.float64]:
    """Return values (lengths,) at which no pattern is worth more than a pack: those that give the better of two bounds.

    Either a length is worth its share of the capacity, or it is worth one of the places beside lengths of at least t;
    see `token_bound` and `segments_bound` in `packer.algorithms.bounds`.
    """
    capacity = len(histogram) - 1
    lengths = np.flatnonzero(histogram)
    by_tokens = lengths / capacity
    below = np.concatenate([[0], np.cumsum(histogram)])
    t = np.arange(1, max(1, capacity // 2) + 1)
    places = np.minimum(capacity // t, limit)
    packs = below[-1] - below[capacity - t + 1] + (below[capacity - t + 1] - below[t]) / places
    best = int(np.argmax(packs))
    if packs[best] <= by_tokens @ histogram[lengths]:
        return by_tokens
    by_places = np.where(lengths >= t[best], 1 / places[best], 0.0)
    return np.where(lengths > capacity - t[best], 1.0, by_places)
