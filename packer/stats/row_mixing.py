"""Measures of how mixed rows are, and of how evenly the work of attention is divided among them.

Let segment s have l_s tokens, and x_s = ln l_s. With tokens as weights, m is the mean of x over all segments and m_r
its mean over the segments of row r, which has W_r tokens. The within-row share of the variance of log length is

    1 - sum_r W_r (m_r - m)^2 / sum_s l_s (x_s - m)^2

It is 0 if the segments of each row have the same length, and near 1 if each row is a sample of the corpus. The work of
attention in a row is the sum of its squared segment lengths; it is described by the standard deviation over all rows
and by the largest value, both divided by the mean.
"""

from bisect import bisect_right
from dataclasses import dataclass
from operator import mul

import numpy as np
from numpy.typing import NDArray

SAMPLED = 1 << 18
"""Largest number of segments that are shuffled to estimate the share of a shuffled corpus."""

_BLOCK = 1 << 20  # segments per block of rows, which bounds memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixing:
    """Mixing of rows and distribution of attention; computed by `RowSums`."""

    within_row_share: float
    """Within-row share of the variance of log length, 0 to 1; 1 if all segments have the same length."""

    attention: int
    """Sum of all squared segment lengths."""

    attention_spread: float
    """Standard deviation over rows of the sum of squared segment lengths, divided by its mean."""

    attention_peak: float
    """Largest sum of squared segment lengths of a row, divided by the mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowMixing:
    """Mixing of rows, compared with that of random order; computed by `MixingSums`."""

    rows: int
    """Number of rows."""

    mixing: Mixing
    """Their mixing, and how evenly attention is divided among them."""

    shuffled_share: float
    """Value of `mixing.within_row_share` for the same segments in random order."""


class RowSums:
    """Accumulator that computes `Mixing` from rows that are added in parts."""

    def __init__(self) -> None:
        self.rows = 0
        self._tokens = 0
        self._logs = self._squared_logs = self._row_logs = 0.0
        self._attention = 0  # a Python int, because counts in a histogram file may exceed an int64
        self._squared_attention = 0.0
        self._peak = 0

    def add(
        self, lengths: NDArray[np.integer], row_starts: NDArray[np.integer], counts: NDArray[np.int64] | None = None
    ) -> None:
        """Add rows.

        Args:
            lengths: (segments,) tokens of each segment, at least 1.
            row_starts: (rows + 1,) row r has the segments row_starts[r]:row_starts[r + 1], at least one.
            counts: (rows,) occurrences of each row; None for one each.
        """
        step = max(1, _BLOCK * (len(row_starts) - 1) // max(1, len(lengths)))
        for first in range(0, len(row_starts) - 1, step):
            starts = row_starts[first : first + step + 1]
            part = None if counts is None else counts[first : first + step]
            self._add_block(lengths[starts[0] : starts[-1]].astype(np.int64), starts[:-1] - starts[0], part)

    def _add_block(
        self, lengths: NDArray[np.int64], firsts: NDArray[np.integer], counts: NDArray[np.int64] | None
    ) -> None:
        times = np.ones(len(firsts), np.int64) if counts is None else counts
        logs = np.log(lengths)
        tokens = np.add.reduceat(lengths, firsts)
        row_logs = np.add.reduceat(lengths * logs, firsts)
        squares = np.add.reduceat(lengths * lengths, firsts)
        self.rows += int(times.sum())
        self._tokens += int(tokens @ times)
        self._logs += float(row_logs @ times)
        self._squared_logs += float(np.add.reduceat(lengths * logs * logs, firsts) @ times)
        self._row_logs += float((row_logs * row_logs / tokens) @ times)
        if counts is None:
            self._attention += int(squares.sum())
        else:
            self._attention += sum(map(mul, squares.tolist(), counts.tolist()))
        self._squared_attention += float(np.square(squares, dtype=np.float64) @ times)
        self._peak = max(self._peak, int(squares.max()))

    def finish(self) -> Mixing:
        """Return the measures of all rows added, at least one."""
        mean_log = self._logs / self._tokens
        whole = self._squared_logs - self._logs * mean_log
        between = self._row_logs - self._logs * mean_log
        varies = whole > 1e-9 * self._squared_logs
        mean = self._attention / self.rows
        variance = max(0.0, self._squared_attention / self.rows - mean * mean)
        return Mixing(
            within_row_share=min(1.0, max(0.0, 1 - between / whole)) if varies else 1.0,
            attention=self._attention,
            attention_spread=variance**0.5 / mean,
            attention_peak=self._peak / mean,
        )


class MixingSums:
    """Accumulator that computes `RowMixing` from rows that are added in parts, and counts their segments by length.

    Args:
        max_len: tokens per row.
    """

    def __init__(self, max_len: int) -> None:
        self.histogram = np.zeros(max_len + 1, np.int64)
        self._sums = RowSums()

    def add(self, lengths: NDArray[np.integer], row_starts: NDArray[np.integer]) -> None:
        """Add rows; arguments as for `RowSums.add`."""
        np.add.at(self.histogram, lengths, 1)
        self._sums.add(lengths, row_starts)

    def finish(self) -> RowMixing:
        """Return the mixing of all rows added, at least one."""
        share = shuffled_share(self.histogram)
        return RowMixing(rows=self._sums.rows, mixing=self._sums.finish(), shuffled_share=share)


def shuffled_share(histogram: NDArray[np.int64]) -> float:
    """Return the within-row share of a shuffled corpus, which has the rows of `shuffled_rows`."""
    sums = RowSums()
    sums.add(*shuffled_rows(histogram))
    return sums.finish().within_row_share


def shuffled_rows(histogram: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (lengths, row_starts) of segments in random order, in rows that end before an overflow.

    If there are more than SAMPLED segments, a sample of about as many is shuffled.

    Args:
        histogram: (max_len + 1,) number of segments by length, with histogram[0] == 0.

    Returns:
        Lengths, shape (segments,), and row_starts, shape (rows + 1,), as for `RowSums.add`.
    """
    segments = int(histogram.sum())
    counts = histogram
    if segments > SAMPLED:  # in proportion, rounded so that the total is exact
        ends: NDArray[np.int64] = np.round(np.cumsum(histogram) * (SAMPLED / segments)).astype(np.int64)
        counts = np.diff(ends, prepend=0)
    lengths = np.random.default_rng(0).permutation(np.repeat(np.arange(len(histogram)), counts))
    ends_in_order = np.cumsum(lengths).tolist()
    row_starts = [0]
    while row_starts[-1] < len(lengths):
        before = ends_in_order[row_starts[-1] - 1] if row_starts[-1] else 0
        row_starts.append(bisect_right(ends_in_order, before + len(histogram) - 1))
    return lengths, np.array(row_starts)


def mean_lengths(lengths: NDArray[np.integer], row_starts: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return the geometric mean of the segment lengths of each row, weighted by tokens, shape (rows,).

    Arguments are those of `RowSums.add`, with at least one row. Segments of 4 and 4 tokens -> 4.
    """
    tokens = np.add.reduceat(lengths.astype(np.float64), row_starts[:-1])
    means: NDArray[np.float64] = np.exp(np.add.reduceat(lengths * np.log(lengths), row_starts[:-1]) / tokens)
    return means
