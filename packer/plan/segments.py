"""Documents as segments of at most max_len tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer.options.choices import LongPolicy

Integer = TypeVar("Integer", bound=np.integer[Any])

_TOGETHER = 1 << 16  # segments that are counted or located together


def extents_of(lengths: NDArray[Integer], align: int) -> NDArray[Integer]:
    """Return the extents of segments, the places that they take in rows: lengths rounded up to multiples of `align`."""
    extents: NDArray[Integer] = lengths if align == 1 else -(-lengths // align) * align
    return extents


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Segments of documents, numbered so that a document that is not cut needs no entry of its own.

    Segment d < documents is the tail of document d: the whole document, unless it is cut. A document that is cut has
    heads before its tail; the heads of all documents are segments documents, documents + 1, ... in source order.

    Lengths [3, 9, 8] split at max_len 4 have tails of 3, 1 and 4 tokens (segments 0, 1, 2), heads of document 1 at 0
    and 4, and a head of document 2 at 0 (segments 3, 4, 5).
    """

    lengths: NDArray[np.int32]
    """Shape (documents,): tokens of each document in the source."""

    max_len: int
    """Length of a row."""

    long: LongPolicy
    """Policy for documents longer than max_len."""

    overlap: int
    """Tokens that a piece repeats from the end of the piece before it."""

    align: int
    """Divisor of max_len that all extents are multiples of."""

    tails: NDArray[np.int32]
    """Shape (documents,): tokens in each tail, 0 if it is empty; `lengths` itself if no document is long."""

    cut_documents: NDArray[np.int64]
    """Shape (cut,): documents whose tail does not start at 0, ascending."""

    tail_starts: NDArray[np.int32]
    """Shape (cut,): first tokens of these tails."""

    head_documents: NDArray[np.int64]
    """Shape (heads,): document of each head, ascending."""

    head_starts: NDArray[np.int32]
    """Shape (heads,): first token of each head in its document."""

    head_lengths: NDArray[np.int32]
    """Shape (heads,): tokens in each head."""

    repeated: int
    """Tokens in segments that are also in the piece before."""

    long_documents: int
    """Documents longer than max_len, which are split, truncated or dropped according to `long`."""

    long_tokens: int
    """Tokens in long documents."""

    empty_documents: int
    """Documents without tokens, which have no segment."""

    unpaired_documents: int = 0
    """Documents that are left out because the other side of their pair is empty."""

    unpaired_tokens: int = 0
    """Tokens in unpaired documents."""

    truncated_tokens: int = 0
    """Tokens cut off by truncation."""

    untrained_documents: int = 0
    """Documents whose segments were all removed by `without`."""

    untrained_tokens: int = 0
    """Tokens in segments that `without` removed and in no remaining segment, each counted once."""

    ranges: NDArray[np.int64] | None = None
    """Shape (ranges, 2): first document of each range of the source that was cut, and the one after its last; None for
    the whole source. Documents are numbered from 0 through all ranges."""

    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Shape (max_len + 1,): number of segments of every extent, 0 at extent 0; written by `counted`."""

    tokens: int = 0
    """Tokens in all segments; written by `counted`."""

    @property
    def documents(self) -> int:
        """Number of documents in the source, empty and dropped ones included."""
        return len(self.lengths)

    @property
    def count(self) -> int:
        """Number of segment numbers: documents + heads; segments of length 0 are not placed in rows."""
        return len(self.lengths) + len(self.head_documents)

    def kept_lengths(self) -> NDArray[np.int32]:
        """Return the tokens kept of each document, counted once each; 0 for dropped documents."""
        if self.long != "split" or self.tails is self.lengths:
            return self.tails
        return np.where(self.tails > 0, self.lengths, np.int32(0))

    def kept_starts(self, documents: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return where the kept tokens of documents start: above 0 only if the policy truncates on the left."""
        starts = np.zeros(len(documents), np.int32)
        if self.long != "split" and len(self.cut_documents):
            at = np.searchsorted(self.cut_documents, documents)
            at[at == len(self.cut_documents)] = 0
            starts = np.where(self.cut_documents[at] == documents, self.tail_starts[at], starts)
        return starts

    def numbers(self) -> NDArray[np.int64]:
        """Return the numbers of all segments with tokens, tails first: int64."""
        return np.concatenate([np.flatnonzero(self.tails), np.arange(self.documents, self.count)])

    def numbers_in_order(self) -> NDArray[np.int64]:
        """Return the numbers of all segments with tokens, in source order."""
        numbers = self._all_in_order()
        return numbers[self._lengths_of_numbers()[numbers] > 0]

    def extents_in_order(self) -> NDArray[np.int32]:
        """Return the extent of every piece in source order: int32, shape (count,), 0 for a tail without tokens."""
        extents = self.extents_of_numbers()
        return extents[self._all_in_order()] if len(self.head_documents) else extents

    def _all_in_order(self) -> NDArray[np.int64]:
        """Return the numbers of all pieces in source order: the heads of a document, then its tail."""
        heads = np.arange(self.documents, self.count)
        return np.insert(np.arange(self.documents), self.head_documents, heads)

    def _lengths_of_numbers(self) -> NDArray[np.int32]:
        return np.concatenate([self.tails, self.head_lengths]) if len(self.head_documents) else self.tails

    def extents_of_numbers(self) -> NDArray[np.int32]:
        """Return the extent of every segment by number: int32, shape (count,), 0 for a tail without tokens."""
        return extents_of(self._lengths_of_numbers(), self.align)

    def places_of_documents(self) -> NDArray[np.int64]:
        """Return the summed extents of the segments of each document: int64, shape (documents,)."""
        places = extents_of(self.tails.astype(np.int64), self.align)
        if len(self.head_documents):
            np.add.at(places, self.head_documents, extents_of(self.head_lengths, self.align))
        return places

    def locate(
        self, numbers: NDArray[np.unsignedinteger[Any]] | NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (documents, starts, lengths) of segments by number, each int64 of the shape of `numbers`."""
        documents = numbers.astype(np.int64)
        heads = np.flatnonzero(documents >= self.documents)
        head = documents[heads] - self.documents
        documents[heads] = self.head_documents[head]
        lengths = self.tails[documents].astype(np.int64)
        starts = np.zeros_like(documents)
        if len(self.cut_documents):
            at = np.searchsorted(self.cut_documents, documents)
            at[at == len(self.cut_documents)] = 0
            is_cut = self.cut_documents[at] == documents
            starts[is_cut] = self.tail_starts[at[is_cut]]
        starts[heads], lengths[heads] = self.head_starts[head], self.head_lengths[head]
        return documents, starts, lengths

    def cut_at(self, documents: NDArray[np.int64], starts: NDArray[np.int32]) -> Segments:
        """Return the same documents with their kept tokens cut elsewhere, and none repeated.

        `documents` and `starts`, shape (cuts,), are ascending: the document of each cut, and the kept token at
        which the segment after the cut starts, above 0 and below the number of kept tokens.
        """
        is_first = np.diff(documents, prepend=-1) > 0
        is_last = np.diff(documents, append=self.documents) > 0
        cut = documents[is_last]
        kept = self.kept_lengths()
        # Documents that are no longer cut become whole again.
        firsts = np.zeros(len(self.cut_documents), np.int32) if self.long == "split" else self.tail_starts
        begins = self.kept_starts(documents)
        tails = kept.copy() if len(cut) else kept
        tails[cut] -= starts[is_last]
        head_starts = np.where(is_first, 0, np.concatenate([[0], starts])[:-1]).astype(np.int32)
        uncut = ~np.isin(self.cut_documents, cut) & (firsts > 0)
        cut_documents = np.concatenate([self.cut_documents[uncut], cut])
        order = np.argsort(cut_documents, kind="stable")
        return replace(
            self,
            overlap=0,
            repeated=0,
            tails=tails,
            cut_documents=cut_documents[order],
            tail_starts=np.concatenate([firsts[uncut], (begins + starts)[is_last]])[order],
            head_documents=documents,
            head_starts=begins + head_starts,
            head_lengths=starts - head_starts,
        ).counted()

    def without(self, numbers: NDArray[np.int64]) -> Segments:
        """Remove segments without trained tokens, by number, and count the documents and tokens that are lost."""
        gone = numbers[numbers >= self.documents] - self.documents
        tails = self.tails.copy()
        tails[numbers[numbers < self.documents]] = 0
        left = replace(
            self,
            tails=tails,
            head_documents=np.delete(self.head_documents, gone),
            head_starts=np.delete(self.head_starts, gone),
            head_lengths=np.delete(self.head_lengths, gone),
        ).counted()
        documents, tokens, repeated = self._losses(numbers)
        return replace(
            left,
            repeated=repeated,
            untrained_documents=self.untrained_documents + documents,
            untrained_tokens=self.untrained_tokens + tokens,
        )

    def _losses(self, numbers: NDArray[np.int64]) -> tuple[int, int, int]:
        """Count the documents and tokens that are lost with these segments, and the tokens that the others repeat.

        Example: of the pieces [0, 4), [1, 5) and [2, 6) of a document, removing the first and the last loses tokens 0
        and 5, and none is repeated. Removing the second loses none, and tokens 2 and 3 are repeated.
        """
        # Take all pieces of the documents that lose a piece or repeat tokens, in order.
        is_concerned = np.zeros(self.documents, np.bool_)
        is_concerned[self.locate(numbers)[0]] = is_concerned[self.head_documents] = True
        pieces = np.concatenate(
            [np.flatnonzero(is_concerned & (self.tails > 0)), np.arange(self.documents, self.count)]
        )
        documents, starts, lengths = self.locate(pieces)
        starts += documents << 32  # place documents end to end; both starts and ends of their pieces ascend
        order = np.argsort(starts)
        documents, starts, ends = documents[order], starts[order], (starts + lengths)[order]
        is_gone = np.isin(pieces, numbers)[order]
        if not len(pieces):
            return 0, 0, 0

        firsts = np.flatnonzero(np.diff(documents, prepend=-1))
        lost_documents = np.count_nonzero(np.logical_and.reduceat(is_gone, firsts))
        previous_ends = np.concatenate([[0], ends[:-1]])
        next_left = np.where(is_gone, np.iinfo(np.int64).max, starts)
        next_left = np.minimum.accumulate(next_left[::-1])[::-1]
        alone = np.minimum(ends, next_left) - np.maximum(starts, previous_ends)
        starts, ends = starts[~is_gone], ends[~is_gone]
        repeated = np.maximum(ends[:-1] - starts[1:], 0)
        return int(lost_documents), int(np.maximum(alone[is_gone], 0).sum()), int(repeated.sum())

    def counted(self) -> Segments:
        """Return the same segments with `histogram` and `tokens` recounted."""
        histogram = np.zeros(self.max_len + 1, np.int64)
        for lengths in (self.tails, self.head_lengths):
            for first in range(0, len(lengths), _TOGETHER):
                extents = extents_of(lengths[first : first + _TOGETHER], self.align)
                # Extents above max_len occur only if `verify` cuts documents as a damaged row has them.
                histogram += np.bincount(extents, minlength=self.max_len + 1)[: self.max_len + 1]
        histogram[0] = 0
        tokens = int(self.tails.sum(dtype=np.int64) + self.head_lengths.sum(dtype=np.int64))
        return replace(self, histogram=histogram, tokens=tokens)


def documents_of(ranges: NDArray[np.int64], local: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Convert numbers within ranges to documents: ranges [[3, 5], [9, 11]], local [0, 2, 3] -> [3, 9, 10]."""
    counts = np.diff(ranges).reshape(-1)
    ends = np.cumsum(counts)
    of_range = np.searchsorted(ends, local, side="right")
    documents: NDArray[np.int64] = ranges[:, 0][of_range] + local - (ends - counts)[of_range]
    return documents


def context_of(starts: NDArray[np.int64], overlap: int) -> NDArray[np.int64]:
    """Return how many tokens have no loss at the head of segments with these starts: 1, or the repeated ones."""
    return np.ones_like(starts) if overlap <= 1 else np.where(starts > 0, overlap, 1)
