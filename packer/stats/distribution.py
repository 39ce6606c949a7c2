"""Distributions of integers: exact quantiles, and bins for a plot; lengths weighted by their tokens."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BINS = 16
"""Largest number of bars in a plot, so that a report fits a screen."""

Tally = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]
"""(values, counts): distinct ascending values, and the number of occurrences of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Quantiles and bins of at least one integer.

    The quantile of q% is the smallest of the numbers that at least q% of them do not exceed; it is not interpolated.
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
    """The arithmetic mean."""

    p75: int
    """The quantile of 75%."""

    p99: int
    """The quantile of 99%."""

    max: int
    """The largest number."""

    bin_edges: tuple[int, ...]
    """Bin i counts the numbers from bin_edges[i] to below bin_edges[i + 1]. Widths are equal, or doubling."""

    bin_counts: tuple[int, ...]
    """Numbers in each bin, at most MAX_BINS bins and one less than bin_edges."""


def distribution(numbers: NDArray[np.integer[Any]] | Tally) -> Distribution:
    """Return the distribution of at least one non-negative integer, from the numbers or their tally."""
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
    """Return the edges of at most MAX_BINS bins, of equal width, or doubling if the largest is far above the median.

    (62, 159, 469) -> [32, 64, 96, ..., 480]; (17, 114, 5853) -> [16, 32, 64, ..., 8192].
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
    """Return (values, counts): distinct ascending values with counts above 0: [3, 1, 3] -> [1, 3], [1, 2]."""
    values, counts = numbers if isinstance(numbers, tuple) else np.unique(numbers, return_counts=True)
    assert (np.diff(values) > 0).all()
    occurs = counts > 0
    return values[occurs].astype(np.int64), counts[occurs].astype(np.int64)


def weighted_median(lengths: Tally) -> int:
    """Return the smallest length such that documents up to it hold at least half of the tokens."""
    values, counts = lengths
    tokens = np.cumsum(values * counts)
    return int(values[np.searchsorted(tokens, (int(tokens[-1]) + 1) // 2)])


def binned(lengths: Tally, edges: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return (documents, tokens) in each bin: those of lengths from edges[i] to below edges[i + 1]."""
    values, counts = lengths
    places = np.searchsorted(values, np.array(edges))
    documents, tokens = (np.concatenate([[0], np.cumsum(each)]) for each in (counts, values * counts))
    return np.diff(documents[places]).tolist(), np.diff(tokens[places]).tolist()
