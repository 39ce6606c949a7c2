"""What a report shows: the figures of a dataset and of its rows, and a few rows segment by segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.facts import PlanTotals
from packer.stats.dataset_figures import DatasetStats
from packer.stats.distribution import Tally
from packer.stats.model_work import keys_of_rows
from packer.stats.padding import grouped_total
from packer.stats.row_lengths import RowLengths
from packer.stats.row_mixing import Mixing, mean_lengths, shuffled_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRow:
    """A row, segment by segment. Sequences have one value per segment, without a padding tail."""

    row: int
    """Number of the row in the dataset."""

    chosen: str = "at random"
    """Why it is shown: drawn at random, or because it is one of the "least full" or has the "most segments"."""

    lengths: tuple[int, ...]
    """Tokens of each segment."""

    extents: tuple[int, ...]
    """Places that each segment takes in the row: its tokens, and padding by `--align`."""

    documents: tuple[int, ...]
    """Index of each document in its source."""

    starts: tuple[int, ...]
    """Offset of each segment in its document."""

    rest: int = 0
    """Places of further segments, if the row has too many to show them all."""

    sources: tuple[int, ...] | None = None
    """Source of each document in a mixture; None if it is not known, or there is one source."""

    trained: tuple[int, ...] | None = None
    """Trained tokens of each segment; None if labels were not read."""

    trained_runs: tuple[tuple[int, int], ...] = ()
    """Ranges (first, end) of trained tokens, as offsets in the row; short gaps may be left out."""

    texts: tuple[str, ...] | None = None
    """Beginning of each segment as text; None to show no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowProfile:
    """Four numbers for each row, and one for each row of the same segments in random order."""

    tokens: NDArray[np.int64]
    """Shape (rows,): tokens of the row, without padding."""

    segments: NDArray[np.int64]
    """Shape (rows,): segments of the row."""

    keys: NDArray[np.int64]
    """Shape (rows,): keys that all tokens of the row attend to."""

    mean_lengths: NDArray[np.float32]
    """Shape (rows,): geometric mean of the segment lengths, weighted by tokens."""

    shuffled_mean_lengths: NDArray[np.float32]
    """Shape (shuffled rows,): the same in random order."""

    @classmethod
    def of(cls, parts: ProfileParts, histogram: NDArray[np.int64]) -> RowProfile:
        """Combine the parts of all rows; the histogram of their segments gives the shuffled rows."""
        return cls(
            tokens=np.concatenate(parts.tokens),
            segments=np.concatenate(parts.segments),
            keys=np.concatenate(parts.keys),
            mean_lengths=np.concatenate(parts.mean_lengths),
            shuffled_mean_lengths=mean_lengths(*shuffled_rows(histogram)).astype(np.float32),
        )

    def wait(self, ranks: int, *, matrices: int = 0) -> float:
        """Return the expected largest work of `ranks` random rows, divided by the mean work of a row.

        Args:
            ranks: rows that are computed at the same time, one on each rank.
            matrices: work of everything but attention in each row, in keys.
        """
        work = np.sort(self.keys).astype(np.float64) + matrices
        below = np.arange(1, len(work) + 1) / len(work)
        return float(work @ np.diff(below**ranks, prepend=0.0) / work.mean())


class ProfileParts:
    """Rows of a profile, added in parts."""

    def __init__(self) -> None:
        self.tokens: list[NDArray[np.int64]] = []
        self.segments: list[NDArray[np.int64]] = []
        self.keys: list[NDArray[np.int64]] = []
        self.mean_lengths: list[NDArray[np.float32]] = []

    def add(self, lengths: NDArray[np.integer], row_starts: NDArray[np.integer]) -> None:
        """Add rows; arguments as for `RowSums.add`."""
        if len(row_starts) > 1:
            self.tokens.append(np.diff(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[row_starts]))
            self.segments.append(np.diff(row_starts).astype(np.int64))
            self.keys.append(keys_of_rows(lengths, row_starts))
            self.mean_lengths.append(mean_lengths(lengths, row_starts).astype(np.float32))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFigures:
    """Everything that a report shows."""

    name: str
    """Name of the dataset, without its path."""

    is_packed: bool
    """Whether the rows exist; otherwise they are those that packing would make."""

    stats: DatasetStats
    """Lengths, padding, steps and mixture. Lengths of a packed dataset are those of the documents in its rows."""

    mix_unit: str
    """Unit of the weights of a mixture, "tokens" or "epochs"."""

    totals: PlanTotals
    """What became of every document and token; `Totals` if the rows exist."""

    has_labels: bool
    """Whether trained tokens were counted."""

    lengths: Tally
    """Document lengths: distinct ascending values above 0, and the number of documents of each."""

    histogram: NDArray[np.int64]
    """Shape (max_len + 1,): number of segments by real tokens."""

    mixing: Mixing
    """How mixed the rows are, and how evenly attention is divided among them."""

    shuffled_share: float
    """Value of `mixing.within_row_share` for the same segments in random order."""

    profile: RowProfile
    """Numbers for each row."""

    row_lengths: RowLengths | None
    """Rows of several lengths; None if they cannot be derived from the rows that exist."""

    rows: tuple[ShownRow, ...]
    """Rows drawn at random, in their order, then the least full and those with the most segments."""

    asked_lengths: tuple[int, ...] = ()
    """Row lengths that were to be compared, if there are several; `stats.max_len` is one of them."""

    def largest_grouped_batch(self, size: int) -> float:
        """Return the tokens of the largest batch of `size` grouped by length, divided by the mean."""
        segments = int(self.histogram.sum())
        longest = int(np.flatnonzero(self.histogram)[-1])
        batches = -(-segments // size)
        return longest * min(size, segments) * batches / grouped_total(self.histogram, size)


def runs_of(mask: NDArray[np.bool_], most: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges (first, end) of consecutive true values: [0, 1, 1, 0, 1] -> (1, 3), (4, 5).

    If there are more than `most`, those that are closest to each other are joined.
    """
    borders = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    firsts, ends = borders[::2], borders[1::2]
    if len(firsts) > most:
        gaps = firsts[1:] - ends[:-1]
        widest = np.sort(np.argsort(-gaps, kind="stable")[: most - 1])
        firsts, ends = firsts[[0, *(widest + 1)]], ends[[*widest, -1]]
    return tuple(zip(firsts.tolist(), ends.tolist(), strict=True))


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
