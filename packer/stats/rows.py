"""The rows that an algorithm makes of a corpus: how deep, what attention costs in them, what was cut for them."""

from dataclasses import dataclass
from operator import mul

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.algorithms.sequential import OrderedRows
from packer.stats.padding import tokens_of

_BLOCK = 1 << 14  # rows looked at together: bounds what is allocated beside the rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The documents that every algorithm packs, after the long-document policy; at least one segment."""

    histogram: NDArray[np.int64]
    """Segments of every length, shape (max_len + 1,), with histogram[0] == 0."""

    documents: int
    """Documents of the source."""

    tokens: int
    """Tokens of the source."""

    empty_documents: int
    """Documents of no tokens; they have no segment."""

    long: str
    """What happens to documents longer than max_len: split, truncate or drop."""

    long_documents: int
    """Documents longer than max_len."""

    long_tokens: int
    """Tokens in them."""

    unpaired_documents: int = 0
    """Of pairs: documents that are left out because the other side is empty."""

    @property
    def max_len(self) -> int:
        """Tokens of a row."""
        return len(self.histogram) - 1

    @property
    def segments(self) -> int:
        """Segments when documents are cut no oftener than max_len demands."""
        return int(self.histogram.sum())

    @property
    def documents_packed(self) -> int:
        """Documents with at least one segment."""
        dropped = self.long_documents if self.long == "drop" else 0
        return self.documents - self.empty_documents - self.unpaired_documents - dropped

    @property
    def tokens_packed(self) -> int:
        """Tokens in segments."""
        return tokens_of(self.histogram)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows that an algorithm made: how deep they are, what attention costs in them, what was cut for them."""

    packs: int
    """Rows of max_len tokens."""

    segments: int
    """Segments in them."""

    max_segments: int
    """Segments in the row that has most."""

    attention: int
    """The sum of all squared segment lengths: attention work where no segment sees another."""

    attention_spread: float
    """How unlike rows are in that: the standard deviation over rows, as a share of the mean."""

    attention_peak: float
    """The row with the most of it over the mean."""

    documents_cut: int
    """Documents that are in more than one segment."""

    tokens_without_context: int
    """Tokens in segments that do not begin where their document does."""


def rows_of_patterns(patterns: Patterns, corpus: Corpus) -> Rows:
    """Describe the rows of a histogram algorithm, which packs the segments as the policy cut them."""
    extents = patterns.extents.astype(np.int64)
    squares = np.add.reduceat(extents * extents, patterns.offsets[:-1])
    mean, spread = _mean_and_spread(squares, patterns.counts)
    split = corpus.long_documents if corpus.long == "split" else 0
    return Rows(
        packs=patterns.packs,
        segments=int(np.diff(patterns.offsets) @ patterns.counts),
        max_segments=patterns.max_segments,
        # whole numbers of any size: a histogram from a file may count more than fits an int64 when squared
        attention=sum(map(mul, squares.tolist(), patterns.counts.tolist())),
        attention_spread=spread,
        attention_peak=int(squares.max()) / mean,
        documents_cut=split,
        tokens_without_context=corpus.long_tokens - split * corpus.max_len if split else 0,
    )


def rows_of_plan(lengths: NDArray[np.int64], row_starts: NDArray[np.int64], corpus: Corpus) -> Rows:
    """Describe rows that are planned one by one, of segments as the policy cut them.

    Args:
        lengths: (segments,) of those of the first row, then of the second, and so on.
        row_starts: (packs + 1,) the first segment of each row, then the number of segments.
        corpus: what is packed.
    """
    counts = np.diff(row_starts)
    squares = np.add.reduceat(lengths * lengths, row_starts[:-1])
    mean, spread = _mean_and_spread(squares)
    split = corpus.long_documents if corpus.long == "split" else 0
    return Rows(
        packs=len(counts),
        segments=len(lengths),
        max_segments=int(counts.max()),
        attention=int(squares.sum()),
        attention_spread=spread,
        attention_peak=int(squares.max()) / mean,
        documents_cut=split,
        tokens_without_context=corpus.long_tokens - split * corpus.max_len if split else 0,
    )


def rows_in_order(ordered: OrderedRows, lengths: NDArray[np.int32]) -> Rows:
    """Describe the rows of an order algorithm, given the lengths that it arranged.

    Documents 2 and 5 cut at 4, and 4 and 8: cut_documents [2, 5, 5], cut_starts [4, 4, 8]. The first cut of each
    says how many of its tokens keep their context.
    """
    pieces = ordered.piece_lengths(lengths)
    squares = np.empty(ordered.packs, np.int64)
    attention = 0
    for first in range(0, ordered.packs, _BLOCK):
        starts = ordered.row_starts[first : first + _BLOCK + 1]
        block = pieces[starts[0] : starts[-1]].astype(np.int64)
        squares[first : first + _BLOCK] = np.add.reduceat(block * block, starts[:-1] - starts[0])
        attention += int(squares[first : first + _BLOCK].sum())
    mean, spread = _mean_and_spread(squares)
    first_cuts = np.flatnonzero(np.diff(ordered.cut_documents, prepend=-1))
    cut_lengths = lengths[ordered.cut_documents[first_cuts]]
    return Rows(
        packs=ordered.packs,
        segments=len(pieces),
        max_segments=ordered.max_segments,
        attention=attention,
        attention_spread=spread,
        attention_peak=int(squares.max()) / mean,
        documents_cut=len(first_cuts),
        tokens_without_context=int((cut_lengths - ordered.cut_starts[first_cuts]).sum(dtype=np.int64)),
    )


def _mean_and_spread(squares: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> tuple[float, float]:
    """The mean, and the standard deviation over it."""
    mean = float(np.average(squares, weights=counts))
    variance = float(np.average(np.square(squares - mean), weights=counts))
    return mean, variance**0.5 / mean
