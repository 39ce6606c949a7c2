"""The rows that an algorithm makes of a corpus: how deep, what attention costs in them, what was cut for them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.plan.pieces import Located
from packer.stats.mixing import Mixing, RowSums
from packer.stats.padding import tokens_of


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

    mixing: Mixing
    """How mixed they are, and how evenly they share the work of attention."""

    documents_cut: int
    """Documents that are in more than one segment."""

    tokens_without_context: int
    """Tokens in segments that do not begin where their document does."""


def rows_of_patterns(patterns: Patterns, corpus: Corpus) -> Rows:
    """Describe the rows of a histogram algorithm, which packs the segments as the policy cut them."""
    sums = RowSums()
    sums.add(patterns.extents, patterns.offsets, patterns.counts)
    return _rows_by_policy(
        corpus,
        packs=patterns.packs,
        segments=int(np.diff(patterns.offsets) @ patterns.counts),
        max_segments=patterns.max_segments,
        mixing=sums.finish(),
    )


def rows_of_shards(shards: Iterable[Located], corpus: Corpus) -> Rows:
    """Describe rows that are planned one by one, of segments as the policy cut them, shard by shard."""
    sums = RowSums()
    packs = segments = deepest = 0
    for rows in shards:
        sums.add(rows.lengths, rows.row_starts)
        packs += len(rows.row_starts) - 1
        segments += len(rows.lengths)
        deepest = max(deepest, int(np.diff(rows.row_starts).max()))
    return _rows_by_policy(corpus, packs=packs, segments=segments, max_segments=deepest, mixing=sums.finish())


def _rows_by_policy(corpus: Corpus, *, packs: int, segments: int, max_segments: int, mixing: Mixing) -> Rows:
    """Rows of segments that are cut as max_len demands."""
    split = corpus.long_documents if corpus.long == "split" else 0
    return Rows(
        packs=packs,
        segments=segments,
        max_segments=max_segments,
        mixing=mixing,
        documents_cut=split,
        tokens_without_context=corpus.long_tokens - split * corpus.max_len if split else 0,
    )


def rows_in_order(shards: Iterable[Located]) -> Rows:
    """Describe rows in the order of the source, shard by shard, wherever documents are cut in them.

    A segment of the same document as the one before it has lost the context of that one.
    """
    sums = RowSums()
    packs = segments = deepest = documents_cut = tokens_without_context = 0
    before = np.array([-2, -1])  # the documents of the last two segments
    for rows in shards:
        sums.add(rows.lengths, rows.row_starts)
        packs += len(rows.row_starts) - 1
        segments += len(rows.lengths)
        deepest = max(deepest, int(np.diff(rows.row_starts).max()))
        documents = np.concatenate([before, rows.documents])
        goes_on = documents[1:] == documents[:-1]
        documents_cut += int(np.count_nonzero(goes_on[1:] & ~goes_on[:-1]))
        tokens_without_context += int(rows.lengths[goes_on[1:]].sum())
        before = documents[-2:]
    return Rows(
        packs=packs,
        segments=segments,
        max_segments=deepest,
        mixing=sums.finish(),
        documents_cut=documents_cut,
        tokens_without_context=tokens_without_context,
    )
