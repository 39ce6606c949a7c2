"""Figures of the rows that an algorithm makes: their number and segments, the cost of attention, cut documents."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.algorithms.sequential import OrderedRows
from packer.plan.pieces import Located
from packer.stats.padding import tokens_of
from packer.stats.row_mixing import Mixing, RowSums


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Lengths of the documents to pack, with at least one segment after the long-document policy."""

    histogram: NDArray[np.int64]
    """Number of segments by length, shape (max_len + 1,), with histogram[0] == 0."""

    documents: int
    """Documents of the source."""

    tokens: int
    """Tokens of the source."""

    empty_documents: int
    """Documents without tokens, which have no segment."""

    long: str
    """Policy for documents longer than max_len: split, truncate or drop."""

    long_documents: int
    """Documents longer than max_len."""

    long_tokens: int
    """Tokens in documents longer than max_len."""

    unpaired_documents: int = 0
    """Documents of preference pairs that are left out because the other side is empty."""

    @property
    def max_len(self) -> int:
        """Tokens per row."""
        return len(self.histogram) - 1

    @property
    def segments(self) -> int:
        """Segments, if only documents longer than max_len are cut."""
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
class RowFigures:
    """Figures of the rows that an algorithm made."""

    packs: int
    """Number of rows."""

    segments: int
    """Segments in all rows."""

    max_segments: int
    """Largest number of segments in a row."""

    mixing: Mixing
    """How mixed the rows are, and how evenly attention is divided among them."""

    documents_cut: int
    """Documents with more than one segment."""

    tokens_without_context: int
    """Tokens in segments other than the first of their document."""


def rows_of_patterns(patterns: Patterns, corpus: Corpus) -> RowFigures:
    """Return the figures of a histogram algorithm's rows, of segments that the long-document policy cut."""
    sums = RowSums()
    sums.add(patterns.extents, patterns.offsets, patterns.counts)
    return _rows_by_policy(
        corpus,
        packs=patterns.packs,
        segments=int(np.diff(patterns.offsets) @ patterns.counts),
        max_segments=patterns.max_segments,
        mixing=sums.finish(),
    )


def rows_of_shards(shards: Iterable[Located], corpus: Corpus) -> RowFigures:
    """Return the figures of rows that are planned shard by shard, of segments that the long-document policy cut."""
    sums = RowSums()
    packs = segments = max_segments = 0
    for rows in shards:
        sums.add(rows.lengths, rows.row_starts)
        packs += len(rows.row_starts) - 1
        segments += len(rows.lengths)
        max_segments = max(max_segments, int(np.diff(rows.row_starts).max()))
    return _rows_by_policy(corpus, packs=packs, segments=segments, max_segments=max_segments, mixing=sums.finish())


def _rows_by_policy(corpus: Corpus, *, packs: int, segments: int, max_segments: int, mixing: Mixing) -> RowFigures:
    """Return the figures of rows in which only documents longer than max_len are cut."""
    split = corpus.long_documents if corpus.long == "split" else 0
    return RowFigures(
        packs=packs,
        segments=segments,
        max_segments=max_segments,
        mixing=mixing,
        documents_cut=split,
        tokens_without_context=corpus.long_tokens - split * corpus.max_len if split else 0,
    )


def rows_in_order(ordered: OrderedRows, lengths: NDArray[np.int32]) -> RowFigures:
    """Return the figures of an order algorithm's rows.

    Tokens before the first cut of a document keep their context. For document 2 cut at 4, and document 5 cut at 4 and
    8, cut_documents are [2, 5, 5] and cut_starts [4, 4, 8].

    Args:
        ordered: rows of the algorithm.
        lengths: (documents,) lengths that it arranged.
    """
    pieces = ordered.piece_lengths(lengths)
    sums = RowSums()
    sums.add(pieces, ordered.row_starts)
    first_cuts = np.flatnonzero(np.diff(ordered.cut_documents, prepend=-1))
    cut_lengths = lengths[ordered.cut_documents[first_cuts]]
    return RowFigures(
        packs=ordered.packs,
        segments=len(pieces),
        max_segments=ordered.max_segments,
        mixing=sums.finish(),
        documents_cut=len(first_cuts),
        tokens_without_context=int((cut_lengths - ordered.cut_starts[first_cuts]).sum(dtype=np.int64)),
    )
