"""Figures of rows: segments, mixing, the work of attention; computed from rows that come in parts.

Let segment s have l_s tokens, and x_s = ln l_s. With tokens as weights, m is the mean of x over all segments and m_r
its mean over the segments of row r, which has W_r tokens. The within-row share of the variance of log length is

    1 - sum_r W_r (m_r - m)^2 / sum_s l_s (x_s - m)^2

It is 0 if the segments of each row have the same length, and near 1 if each row is a sample of the corpus.

The work of a model on a row is that of its matrices, which grows with tokens, and that of attention, which grows with
keys. In a forward pass, a token costs two floating-point operations per weight of the matrices, and attention costs
4 L d per key that a token attends to, in L layers of width d: 2 L d for its scores and 2 L d for the weighted sum of
values. Llama 2 7B has L = 32, d = 4,096 and 6,607,077,376 weights in matrices (all but the embedding), so that 25,204
keys cost as much as the matrices. Backward passes have about twice the work of both. Tokens attend to themselves and
to the tokens before them in their segment: (l + 1) / 2 keys on average in a segment of l tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.report.length_figures import Distribution, distribution

KEYS_OF_MATRICES = 25_204
"""Keys at which attention and matrices of a 7B model cost the same: 2 * 6,607,077,376 / (4 * 32 * 4,096)."""

_BLOCK = 1 << 20  # segments per block of rows, which bounds memory


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """A training job, in which each rank trains on one row at a time."""

    ranks: int
    """Ranks among which the rows of a step are divided, 1 or more."""

    accumulation: int
    """Rows of each rank in an optimizer step."""

    model: str
    """Number of weights, as in 70B; or a folder with a config.json, such a file, or a Hub id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting(TrainingJob):
    """A training job, and the time that its ranks wait for the slowest one."""

    keys_of_matrices: int
    """Keys at which attention costs the model as much as its matrices."""

    shares: dict[int, float]
    """Share of the time that the mean rank waits, by the `balance` of `packer.BatchSampler`; 0 is without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowProfile:
    """Two numbers for each row."""

    tokens: NDArray[np.int64]
    """Shape (rows,): tokens of the row, without padding."""

    squares: NDArray[np.int64]
    """Shape (rows,): sum of the squared lengths of its segments."""


@dataclass(frozen=True, kw_only=True)
class RowFigures:
    """Figures of rows; computed by `RowSums`."""

    rows: int
    tokens: int
    """Tokens in the rows, without padding."""

    tokens_after_start: int
    """Tokens in segments that do not begin their document, repeated ones included."""

    histogram: NDArray[np.int64] = field(repr=False, compare=False)
    """Shape (max_len + 1,): number of segments by tokens."""

    segments_per_row: Distribution
    """Segments in a row, padding not counted."""

    within_row_share: float
    """Within-row share of the variance of log length, 0 to 1; 1 if all segments have the same length."""

    attention: int
    """Sum of squared segment lengths."""

    work_peak: float
    """Largest work of a row for a 7B model, attention and matrices, divided by the mean; padding is not counted."""

    profile: RowProfile | None = field(repr=False, compare=False)
    """Numbers for each row; None if they are not kept."""

    @property
    def segments(self) -> int:
        """Segments in all rows."""
        return int(self.histogram.sum())

    @property
    def keys_per_token(self) -> float:
        """Keys that a token attends to on average."""
        return (self.attention + self.tokens) / 2 / self.tokens

    @property
    def attention_share(self) -> float:
        """Share of attention in the work of a 7B model."""
        return self.keys_per_token / (KEYS_OF_MATRICES + self.keys_per_token)


class RowSums:
    """Accumulator that computes `RowFigures` from rows that are added in parts.

    `keeps_rows` says whether to hold the numbers of each row, for `RowFigures.profile`.
    """

    def __init__(self, max_len: int, *, keeps_rows: bool = False) -> None:
        self._profile: list[tuple[NDArray[Any], ...]] | None = [] if keeps_rows else None
        self._histogram = np.zeros(max_len + 1, np.int64)  # segments by tokens
        self._depths = np.zeros(max_len + 1, np.int64)  # rows by segments
        self._tokens = self._tokens_after_start = 0
        self._logs = self._squared_logs = self._row_logs = 0.0
        self._attention = self._largest_work = 0

    def add(
        self,
        lengths: NDArray[np.integer[Any]],
        row_starts: NDArray[np.integer[Any]],
        *,
        starts: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Add rows: row r has the segments row_starts[r]:row_starts[r + 1], at least one.

        `lengths` are the tokens of each segment, at least 1; `starts` its first token in its document, by default 0.
        """
        rows = len(row_starts) - 1
        if rows < 1:
            return
        depths = np.diff(row_starts)
        np.add.at(self._depths, depths, 1)
        np.add.at(self._histogram, lengths, 1)
        if starts is not None:
            self._tokens_after_start += int(lengths[starts > 0].sum())
        step = max(1, _BLOCK * rows // max(1, len(lengths)))
        for first in range(0, rows, step):
            borders = row_starts[first : first + step + 1]
            some = lengths[borders[0] : borders[-1]].astype(np.int64)
            self._add_block(some, borders[:-1] - borders[0])

    def _add_block(
        self,
        lengths: NDArray[np.int64],
        firsts: NDArray[np.integer[Any]],
    ) -> None:
        logs = np.log(lengths)
        tokens = np.add.reduceat(lengths, firsts)
        row_logs = np.add.reduceat(lengths * logs, firsts)
        squares = np.add.reduceat(lengths * lengths, firsts)
        keys = (squares + tokens) // 2
        self._tokens += int(tokens.sum())
        self._logs += float(row_logs.sum())
        self._squared_logs += float((lengths * logs * logs).sum())
        self._row_logs += float((row_logs * row_logs / tokens).sum())
        self._attention += int(squares.sum())
        self._largest_work = max(self._largest_work, int((KEYS_OF_MATRICES * tokens + keys).max()))
        if self._profile is not None:
            self._profile.append((tokens, squares))

    def finish(self) -> RowFigures:
        """Return the figures of all rows added, at least one."""
        rows, max_len = int(self._depths.sum()), len(self._depths) - 1
        mean_log = self._logs / self._tokens
        whole = self._squared_logs - self._logs * mean_log
        between = self._row_logs - self._logs * mean_log
        varies = whole > 1e-9 * self._squared_logs
        work = KEYS_OF_MATRICES * self._tokens + (self._attention + self._tokens) // 2
        profile = None
        if self._profile is not None:
            tokens, squares = map(np.concatenate, zip(*self._profile, strict=True))
            profile = RowProfile(tokens=tokens, squares=squares)
        return RowFigures(
            rows=rows,
            tokens=self._tokens,
            tokens_after_start=self._tokens_after_start,
            histogram=self._histogram,
            segments_per_row=distribution((np.arange(max_len + 1), self._depths)),
            within_row_share=min(1.0, max(0.0, 1 - between / whole)) if varies else 1.0,
            attention=self._attention,
            work_peak=self._largest_work * rows / work,
            profile=profile,
        )
