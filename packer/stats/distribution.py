"""How whole numbers are spread: exact quantiles, and bins for a plot."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BINS = 16
"""Bars of a plot, so that it leaves room for the rest of a screen."""

Tally = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]
"""(values, counts): distinct ascending values, and how often each occurs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """How whole numbers, at least one, are spread.

    A quantile is the smallest number that so many percent do not exceed: it is exact, and it occurs.
    """

    min: int
    """The smallest number."""

    p1: int
    """The quantile of 1%."""

    p25: int
    """The quantile of 25%."""

    p50: int
    """The quantile of 50%; the lower of two middle numbers."""

    mean: float
    """The sum over the number of numbers."""

    p75: int
    """The quantile of 75%."""

    p99: int
    """The quantile of 99%."""

    max: int
    """The largest number."""

    bin_edges: tuple[int, ...]
    """Bin i counts the numbers from bin_edges[i] to below bin_edges[i + 1]; widths are alike, or double."""

    bin_counts: tuple[int, ...]
    """Numbers in each bin, one shorter than bin_edges and at most MAX_BINS."""


def distribution(numbers: NDArray[np.integer[Any]] | Tally) -> Distribution:
    """Spread whole numbers that are 0 or more; one at least."""
    values, counts = tally(numbers)
    ends = np.cumsum(counts)
    count = int(ends[-1])

    def quantile(percent: int) -> int:
        return int(values[np.searchsorted(ends, -(-percent * count // 100))])

    edges = _bin_edges(int(values[0]), quantile(50), int(values[-1]))
    below = np.concatenate([[0], ends])[np.searchsorted(values, edges)]
    return Distribution(
        min=int(values[0]),
        p1=quantile(1),
        p25=quantile(25),
        p50=quantile(50),
        mean=int(values @ counts) / count,
        p75=quantile(75),
        p99=quantile(99),
        max=int(values[-1]),
        bin_edges=tuple(edges),
        bin_counts=tuple(np.diff(below).tolist()),
    )


def _bin_edges(smallest: int, median: int, largest: int) -> list[int]:
    """Edges of at most MAX_BINS bins, of one width, or doubling where the largest is far above the median.

    62, 159, 469 -> 32, 64, 96, ..., 480; and 17, 114, 5853 -> 16, 32, 64, ..., 8192.
    """
    if largest < 8 * median:
        width = 1
        while largest // width - smallest // width >= MAX_BINS:
            width *= 2
        return list(range(smallest // width * width, largest + width + 1, width))
    for octaves in (1, 2, 4):
        edges = [0, *(2**power for power in range(0, largest.bit_length() + octaves, octaves))]
        edges = edges[bisect_right(edges, smallest) - 1 : bisect_right(edges, largest) + 1]
        if len(edges) <= MAX_BINS + 1:
            break
    return edges


def tally(numbers: NDArray[np.integer[Any]] | Tally) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give distinct ascending values and their counts, none of which is 0: [3, 1, 3] -> [1, 3], [1, 2]."""
    values, counts = numbers if isinstance(numbers, tuple) else np.unique(numbers, return_counts=True)
    assert (np.diff(values) > 0).all()
    occurs = counts > 0
    return values[occurs].astype(np.int64), counts[occurs].astype(np.int64)
