"""Measures of lengths and rows: quantiles, bins, costs of padding, mixing of rows and work of attention.

The padding ratio is the share of computed tokens that is padding, 1 - tokens / (rows x tokens per row). It is computed
from a histogram: int64, shape (max_len + 1,), the number of segments by length in tokens, with histogram[0] == 0 and at
least one segment. The running time depends on the histogram's shape, not on the number of segments.

Rows are measured in parts, as they arrive. Let segment s have l_s tokens, and x_s = ln l_s. With tokens as weights, m
is the mean of x over all segments, and m_r its mean over the segments of row r, which has W_r tokens. The within-row
share of the variance of log length is

    1 - sum_r W_r (m_r - m)^2 / sum_s l_s (x_s - m)^2

It is 0 if the segments of each row have the same length, and near 1 if each row is a sample of the corpus.

The work of a model on a row has two parts: its matrices, whose work grows with tokens, and attention, whose work grows
with keys. In a forward pass, a token costs two floating-point operations per weight of the matrices. Attention costs 4
L d per key that a token attends to, in L layers of width d: 2 L d for its scores, and 2 L d for the weighted sum of
values. Llama 2 7B has L = 32, d = 4,096 and 6,607,077,376 weights in matrices (all but the embedding), so 25,204 keys
cost as much as the matrices. Backward passes have about twice the work of both. Tokens attend to themselves and to the
tokens before them in their segment: (l + 1) / 2 keys on average in a segment of l tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BINS = 16  # maximum number of bars in a plot, so that a report fits a screen
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)  # batch sizes for padding ratios

Tally = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]
"""(values, counts): distinct ascending values, and the number of occurrences of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Quantiles (`p1` is the quantile of 1%), mean, and bins of at least one integer.

    The quantile of q% is not interpolated: it is the smallest of the integers such that at least q% of them are no
    larger.
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
    """Bin i counts the integers from bin_edges[i] to bin_edges[i + 1] - 1. The widths are equal, or they double."""

    bin_counts: tuple[int, ...]
    """Number of integers in each of at most MAX_BINS bins; one element shorter than bin_edges."""


def distribution(numbers: Tally) -> Distribution:
    """Return the distribution of at least one non-negative integer. Values with a count of 0 are ignored."""
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
    """Return (distinct ascending values, their counts): [3, 1, 3] -> [1, 3], [1, 2]."""
    values, counts = np.unique(numbers, return_counts=True)
    return values.astype(np.int64), counts


def counted(histogram: NDArray[np.int64]) -> Tally:
    """Return the lengths that occur in a histogram, with their counts: [0, 2, 0, 1] -> [1, 3], [2, 1]."""
    values = np.flatnonzero(histogram)
    return values, histogram[values]


def weighted_median(lengths: Tally) -> int:
    """Return the smallest length such that documents up to this length contain at least half of the tokens."""
    values, counts = lengths
    tokens = np.cumsum(values * counts)
    return int(values[np.searchsorted(tokens, (int(tokens[-1]) + 1) // 2)])


def binned(lengths: Tally, edges: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return (documents, tokens) in each bin; bin i has the lengths from edges[i] to edges[i + 1] - 1."""
    values, counts = lengths
    places = np.searchsorted(values, np.array(edges))
    documents, tokens = (np.concatenate([[0], np.cumsum(each)]) for each in (counts, values * counts))
    return np.diff(documents[places]).tolist(), np.diff(tokens[places]).tolist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Rows and optimizer steps of one epoch, unpacked and packed, with about as many documents per step."""

    documents_per_step: int
    rows: int
    """Number of rows with one segment each."""

    rows_per_step: float
    """Average number of rows in a step of documents_per_step documents; more than documents if some are split."""

    steps: int
    """Number of steps of documents_per_step documents; the last step may have fewer."""

    packed_rows: int
    packed_rows_per_step: int
    """Number of packed rows whose documents come closest to documents_per_step, at least 1."""

    packed_documents_per_step: float
    """Average number of documents in a step of packed_rows_per_step rows."""

    packed_steps: int
    """Number of steps of packed_rows_per_step rows; the last step may have fewer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """Padding ratios of one epoch over the same segments, 0 <= ratio < 1, for several ways to form batches."""

    max_len: float
    """Ratio if every segment is padded to max_len."""

    batch_longest: dict[int, float]
    """Expected ratio by batch size, for random batches padded to their longest segment."""

    group_by_length: dict[int, float]
    """Ratio by batch size, for batches of segments sorted by length, the longest first."""

    packed: float

    def speedup(self, ratio: float) -> float:
        """Return computed tokens at a padding ratio, divided by those of packed rows: 0.90, packed 0.05 -> 9.5."""
        return (1 - self.packed) / (1 - ratio)


def padding_ratios(histogram: NDArray[np.int64], rows: int) -> Padding:
    """Return the padding ratios of a histogram's segments, in batches and in `rows` packed rows.

    The ratio of random batches is computed exactly, not sampled. With q batches of B segments and a last batch of r
    segments, it is 1 - tokens / (q B E[longest of B] + r E[longest of r]).
    """
    max_len = len(histogram) - 1
    tokens = int(histogram @ np.arange(len(histogram)))
    segments = int(histogram.sum())
    longest = expected_longest(histogram, max(BATCH_SIZES))

    def random_total(size: int) -> float:
        if size == 1:
            return tokens  # equals the expected value, but without rounding errors
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

    The expectation is exact: if n of N segments are no longer than l, then b drawn segments are all no longer than l
    with probability n/N (n-1)/(N-1) ... (n-b+1)/(N-b+1). Lengths 1, 2 and 4 -> [0, 7/3, 10/3, 4]. The result has the
    shape (min(draws, segments) + 1,).
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
    """Return the tokens, including padding, of batches of segments sorted by length, the longest first.

    Lengths 9, 2, 2, 1 and 1 in batches of 2 -> [9, 2], [2, 1], [1], which take 18 + 4 + 1 tokens.
    """
    lengths = np.flatnonzero(histogram)[::-1]
    ends = np.cumsum(histogram[lengths])
    begun = -(-ends // size)  # number of batches whose first segment is at least this long
    missing = int(begun[-1]) * size - int(ends[-1])
    last = int(lengths[np.searchsorted(begun, begun[-1])])  # longest segment of the last batch
    return size * int(np.diff(begun, prepend=0) @ lengths) - missing * last


def _ratio(tokens: int, total: float) -> float:
    """Return 1 - tokens / total, at least 0: after rounding, an expected total may be less than `tokens`."""
    return max(0.0, 1 - tokens / total)


KEYS_OF_MATRICES = 25_204
"""Number of keys whose attention costs a 7B model as much as its matrices: 2 * 6,607,077,376 / (4 * 32 * 4,096)."""

_BLOCK = 1 << 16  # segments per block of rows, whose arrays fit into the processor's cache


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """A training job in which each rank trains one row at a time."""

    ranks: int
    """Number of ranks that share the rows of a step, at least 1."""

    accumulation: int
    """Number of rows of each rank in an optimizer step."""

    model: str
    """Number of weights, as in 70B; or a Hub id, a config.json, or a folder that contains one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting(TrainingJob):
    """A training job, and how long its ranks wait for the slowest rank."""

    keys_of_matrices: int
    """Number of keys whose attention costs the model as much as its matrices."""

    shares: dict[int, float]
    """Average share of the time that a rank waits, by the `balance` of `packer.BatchSampler`; 0 is unbalanced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowProfile:
    """Two numbers for each row."""

    tokens: NDArray[np.int64]
    """Shape (rows,): tokens of the row, without padding."""

    squares: NDArray[np.int64]
    """Shape (rows,): sum of the squared lengths of its segments."""


@dataclass(frozen=True, kw_only=True)
class RowFigures:
    """Figures of rows, computed by `RowSums`."""

    rows: int
    tokens: int
    """Number of tokens in the rows, without padding."""

    tokens_after_start: int
    """Number of tokens in segments that do not begin their document; repeated tokens count too."""

    histogram: NDArray[np.int64] = field(repr=False, compare=False)
    """Shape (max_len + 1,): number of segments by tokens."""

    segments_per_row: Distribution
    """Number of segments in a row, without padding."""

    within_row_share: float
    """Within-row share of the variance of log length, 0 to 1; 1 if all segments have the same length."""

    attention: int
    """Sum of squared segment lengths."""

    work_peak: float
    """Largest work of a row for a 7B model (attention and matrices, without padding), divided by the mean."""

    profile: RowProfile | None = field(repr=False, compare=False)
    """Numbers for each row; None if they were not kept."""

    @property
    def keys_per_token(self) -> float:
        """Average number of keys that a token attends to."""
        return (self.attention + self.tokens) / 2 / self.tokens

    @property
    def attention_share(self) -> float:
        """Share of attention in the work of a 7B model."""
        return self.keys_per_token / (KEYS_OF_MATRICES + self.keys_per_token)


class RowSums:
    """Accumulator of `RowFigures`, to which rows are added in parts.

    keeps_rows: whether to keep the numbers of each row for `RowFigures.profile`.
    """

    def __init__(self, max_len: int, *, keeps_rows: bool = False) -> None:
        self._profile: list[tuple[NDArray[Any], ...]] | None = [] if keeps_rows else None
        self._histogram = np.zeros(max_len + 1, np.int64)  # number of segments by tokens
        self._depths = np.zeros(max_len + 1, np.int64)  # number of rows by segments
        self._tokens_after_start = self._largest_work = 0
        self._row_logs = 0.0
        lengths = np.arange(max_len + 1)
        self._logs = lengths * np.log(np.maximum(lengths, 1))  # l ln l of every length l

    def add(
        self,
        lengths: NDArray[np.integer[Any]],
        row_starts: NDArray[np.integer[Any]],
        *,
        starts: NDArray[np.integer[Any]] | None = None,
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        """Add rows. Row r has the segments row_starts[r]:row_starts[r + 1], at least one.

        lengths: tokens of each segment, at least 1. starts: index of each segment's first token in its document; None
        if all are 0. counts: number of rows like each of these; None if there is one, as where `keeps_rows` is set.
        """
        rows = len(row_starts) - 1
        if rows < 1:
            return
        depths = np.diff(row_starts)
        counts = np.ones(rows, np.int64) if counts is None else counts
        np.add.at(self._depths, depths, counts)
        np.add.at(self._histogram, lengths, np.repeat(counts, depths))
        if starts is not None:
            self._tokens_after_start += int(lengths[starts > 0].sum())
        step = max(1, _BLOCK * rows // max(1, len(lengths)))
        for first in range(0, rows, step):
            borders = row_starts[first : first + step + 1]
            some = lengths[borders[0] : borders[-1]].astype(np.int64)
            self._add_block(some, borders[:-1] - borders[0], counts[first : first + step])

    def _add_block(
        self, lengths: NDArray[np.int64], firsts: NDArray[np.integer[Any]], counts: NDArray[np.int64]
    ) -> None:
        tokens = np.add.reduceat(lengths, firsts)
        row_logs = np.add.reduceat(self._logs[lengths], firsts)
        squares = np.add.reduceat(lengths * lengths, firsts)
        self._row_logs += float((row_logs * row_logs / tokens * counts).sum())  # `@` would start the threads of BLAS
        self._largest_work = max(self._largest_work, int((KEYS_OF_MATRICES * tokens + (squares + tokens) // 2).max()))
        if self._profile is not None:
            self._profile.append((tokens, squares))

    def finish(self) -> RowFigures:
        """Return the figures of all rows added, at least one."""
        rows, max_len = int(self._depths.sum()), len(self._depths) - 1
        lengths = np.arange(max_len + 1)
        tokens, attention = int(self._histogram @ lengths), int(self._histogram @ (lengths * lengths))
        logs = float(self._histogram @ self._logs)
        squared_logs = float(self._histogram @ (self._logs * self._logs / np.maximum(lengths, 1)))
        whole, between = (sum_of_squares - logs * logs / tokens for sum_of_squares in (squared_logs, self._row_logs))
        varies = whole > 1e-9 * squared_logs
        work = KEYS_OF_MATRICES * tokens + (attention + tokens) // 2
        profile = None
        if self._profile is not None:
            row_tokens, squares = map(np.concatenate, zip(*self._profile, strict=True))
            profile = RowProfile(tokens=row_tokens, squares=squares)
        return RowFigures(
            rows=rows,
            tokens=tokens,
            tokens_after_start=self._tokens_after_start,
            histogram=self._histogram,
            segments_per_row=distribution((np.arange(max_len + 1), self._depths)),
            within_row_share=min(1.0, max(0.0, 1 - between / whole)) if varies else 1.0,
            attention=attention,
            work_peak=self._largest_work * rows / work,
            profile=profile,
        )
