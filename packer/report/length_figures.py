"""Figures of lengths: exact quantiles and bins for a plot, and what padding costs.

The padding ratio is the share of computed tokens that is padding, 1 - tokens / (rows x tokens per row). It is computed
from a histogram: int64, shape (max_len + 1,), the number of segments by length in tokens, with histogram[0] == 0 and at
least one segment. The cost depends on its shape, not on the number of segments.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BINS = 16  # bars in a plot, so that a report fits a screen
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)  # for which padding ratios are computed

Tally = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]
"""(values, counts): distinct ascending values, and the number of occurrences of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Quantiles, such as that of 1% as `p1`, the mean, and bins of at least one integer.

    The quantile of q% is the smallest of the numbers that at least q% of them do not exceed; it is not interpolated.
    """

    min: int
    p1: int
    p25: int
    p50: int
    mean: float
    p75: int
    p99: int
    max: int
    bin_edges: tuple[int, ...]
    """Bin i counts the numbers from bin_edges[i] to below bin_edges[i + 1]. Widths are equal, or doubling."""

    bin_counts: tuple[int, ...]
    """Numbers in each bin, at most MAX_BINS bins and one less than bin_edges."""


def distribution(numbers: Tally) -> Distribution:
    """Return the distribution of at least one non-negative integer; values that do not occur count for nothing."""
    values, counts = (each[numbers[1] > 0].astype(np.int64) for each in numbers)
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


def tally(numbers: NDArray[np.integer[Any]]) -> Tally:
    """Return (values, counts): distinct ascending values with their counts: [3, 1, 3] -> [1, 3], [1, 2]."""
    values, counts = np.unique(numbers, return_counts=True)
    return values.astype(np.int64), counts


def counted(histogram: NDArray[np.int64]) -> Tally:
    """Return the lengths that occur in a histogram, with their counts: [0, 2, 0, 1] -> [1, 3], [2, 1]."""
    values = np.flatnonzero(histogram)
    return values, histogram[values]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Rows and optimizer steps of one epoch, unpacked and packed, with about as many documents per step."""

    documents_per_step: int
    rows: int
    """Rows with one segment each."""

    rows_per_step: float
    """Rows in a step of documents_per_step documents, on average, which are more than documents if some are split."""

    steps: int
    """Steps of documents_per_step documents; the last may have fewer."""

    packed_rows: int
    packed_rows_per_step: int
    """Packed rows whose documents come closest to documents_per_step, at least 1."""

    packed_documents_per_step: float
    """Documents in a step of packed_rows_per_step rows, on average."""

    packed_steps: int
    """Steps of packed_rows_per_step rows; the last may have fewer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """Padding ratios of one epoch over the same segments, 0 <= ratio < 1, for several ways to form batches."""

    max_len: float
    """Ratio if every segment is padded to max_len."""

    batch_longest: dict[int, float]
    """Expected ratio by batch size, for random batches padded to their longest segment."""

    group_by_length: dict[int, float]
    """Ratio by batch size, for batches of the segments sorted by length, the longest first."""

    packed: float
    """Ratio of the packed rows."""

    def speedup(self, ratio: float) -> float:
        """Return the tokens computed at a padding ratio over those computed if packed: 0.90, packed 0.05 -> 9.5."""
        return (1 - self.packed) / (1 - ratio)


def padding_ratios(histogram: NDArray[np.int64], rows: int) -> Padding:
    """Return the padding ratios of the segments in a histogram, in batches and in `rows` packed rows.

    Random batches are computed exactly, not sampled: with q batches of B segments and a last one of r, the ratio is
    1 - tokens / (q B E[longest of B] + r E[longest of r]).
    """
    max_len = len(histogram) - 1
    tokens = tokens_of(histogram)
    segments = int(histogram.sum())
    longest = expected_longest(histogram, max(BATCH_SIZES))

    def random_total(size: int) -> float:
        if size == 1:
            return tokens  # equals the expectation, without its rounding errors
        batches, rest = divmod(segments, size)
        return float(batches * size * longest[min(size, segments)] + rest * longest[rest])

    return Padding(
        max_len=_ratio(tokens, segments * max_len),
        batch_longest={size: _ratio(tokens, random_total(size)) for size in BATCH_SIZES},
        group_by_length={size: _ratio(tokens, sorted_total(histogram, size)) for size in BATCH_SIZES},
        packed=_ratio(tokens, rows * max_len),
    )


def expected_longest(histogram: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Return the expected length of the longest of 0, 1, ..., `draws` random segments, drawn without replacement.

    The expectation is exact: if n of N segments are no longer than l, then b draws are all no longer than l with
    probability n/N (n-1)/(N-1) ... (n-b+1)/(N-b+1). Lengths 1, 2 and 4 -> [0, 7/3, 10/3, 4]. The result has the shape
    (min(draws, segments) + 1,).
    """
    values = np.flatnonzero(histogram)
    within = np.cumsum(histogram[values])
    segments = int(within[-1])
    probability = np.ones(len(values))
    longest = [0.0]
    for drawn in range(min(draws, segments)):
        probability = probability * (np.maximum(within - drawn, 0) / (segments - drawn))
        longest.append(float(values @ np.diff(probability, prepend=0.0)))
    return np.array(longest)


def sorted_total(histogram: NDArray[np.int64], size: int) -> int:
    """Return the tokens, padding included, of batches cut from the segments sorted by length, the longest first.

    Lengths 9, 2, 2, 1 and 1 in batches of 2 -> [9, 2], [2, 1], [1], which take 18 + 4 + 1 tokens.
    """
    lengths = np.flatnonzero(histogram)[::-1]
    ends = np.cumsum(histogram[lengths])
    begun = -(-ends // size)  # batches whose first segment is at least so long
    missing = int(begun[-1]) * size - int(ends[-1])
    last = int(lengths[np.searchsorted(begun, begun[-1])])  # longest segment of the last batch
    return size * int(np.diff(begun, prepend=0) @ lengths) - missing * last


def tokens_of(histogram: NDArray[np.int64]) -> int:
    """Return the number of tokens in all segments of a histogram."""
    return int(histogram @ np.arange(len(histogram)))


def _ratio(tokens: int, total: float) -> float:
    """Return 1 - tokens / total, at least 0: rounding may leave an expected total slightly below the tokens."""
    return max(0.0, 1 - tokens / total)
