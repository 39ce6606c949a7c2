"""Figures of the rows that an algorithm makes: their number and segments, the cost of attention, cut documents."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
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
    documents_cut, tokens_without_context = _cuts_by_policy(corpus)
    return RowFigures(
        packs=patterns.packs,
        segments=int(np.diff(patterns.offsets) @ patterns.counts),
        max_segments=patterns.max_segments,
        mixing=sums.finish(),
        documents_cut=documents_cut,
        tokens_without_context=tokens_without_context,
    )


def rows_of_shards(shards: Iterable[Located], corpus: Corpus) -> RowFigures:
    """Return the figures of rows that are planned shard by shard, of segments that the long-document policy cut."""
    documents_cut, tokens_without_context = _cuts_by_policy(corpus)
    figures = rows_in_order(shards)
    return replace(figures, documents_cut=documents_cut, tokens_without_context=tokens_without_context)


def _cuts_by_policy(corpus: Corpus) -> tuple[int, int]:
    """Return (documents_cut, tokens_without_context) if only documents longer than max_len are cut."""
    if corpus.long != "split":
        return 0, 0
    return corpus.long_documents, corpus.long_tokens - corpus.long_documents * corpus.max_len


def rows_in_order(shards: Iterable[Located]) -> RowFigures:
    """Return the figures of rows in source order, planned shard by shard, in which any document may be cut.

    A segment that follows another one of the same document has lost the context of that one.
    """
    sums = RowSums()
    packs = segments = max_segments = documents_cut = tokens_without_context = 0
    last = np.array([-2, -1])  # documents of the last two segments
    for rows in shards:
        sums.add(rows.lengths, rows.row_starts)
        packs += len(rows.row_starts) - 1
        segments += len(rows.lengths)
        max_segments = max(max_segments, int(np.diff(rows.row_starts).max()))
        documents = np.concatenate([last, rows.documents])
        continues = documents[1:] == documents[:-1]  # whether a segment continues the document of the one before
        documents_cut += int(np.count_nonzero(continues[1:] & ~continues[:-1]))
        tokens_without_context += int(rows.lengths[continues[1:]].sum())
        last = documents[-2:]
    return RowFigures(
        packs=packs,
        segments=segments,
        max_segments=max_segments,
        mixing=sums.finish(),
        documents_cut=documents_cut,
        tokens_without_context=tokens_without_context,
    )
