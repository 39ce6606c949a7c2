"""The long-document policy: documents to segments of at most max_len tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.plan.extents import (
    BLOCK,
    DROP,
    SPLIT,
    TRUNCATE,
    block_places,
    fill_pieces,
    number_pieces,
    piece_extents,
    survey,
)
from packer.plan.threads import in_threads

LongPolicy = Literal["split", "truncate", "drop", "error"]
LONG_POLICIES: tuple[str, ...] = get_args(LongPolicy)
TruncateSide = Literal["left", "right"]
TRUNCATE_SIDES: tuple[str, ...] = get_args(TruncateSide)
_KERNEL_POLICY = {"split": SPLIT, "truncate": TRUNCATE, "drop": DROP, "error": DROP}


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """The segments that a policy makes of documents, numbered without an array of their own.

    Segment d < documents is the tail of document d: all of it, unless it is cut. A document that is cut has heads
    before its tail: segments documents, documents + 1, ... in source order.

    Lengths [3, 9, 8] at max_len 4, split: tails 3, 1, 4 (segments 0, 1, 2), heads of document 1 at 0 and 4 and of
    document 2 at 0 (segments 3, 4, 5).
    """

    lengths: NDArray[np.int32]
    """Shape (documents,): tokens of each document in the source."""

    max_len: int
    """The capacity of a row, tokens."""

    long: LongPolicy
    """What happens to a document longer than max_len."""

    overlap: int
    """Tokens with which a piece repeats the end of the piece before it."""

    align: int
    """Extents are multiples of it; it divides max_len."""

    tails: NDArray[np.int32]
    """Shape (documents,): tokens in each tail, 0 where there is none; `lengths` itself where no document is long."""

    cut_documents: NDArray[np.int64]
    """Shape (cut,): the documents whose tail does not start at 0, ascending."""

    tail_starts: NDArray[np.int32]
    """Shape (cut,): where their tails start."""

    head_documents: NDArray[np.int64]
    """Shape (heads,): the document each head belongs to, ascending."""

    head_starts: NDArray[np.int32]
    """Shape (heads,): where in its document each head starts."""

    head_lengths: NDArray[np.int32]
    """Shape (heads,): tokens in each head."""

    histogram: NDArray[np.int64]
    """Shape (max_len + 1,): segments of every extent, nothing at 0."""

    block_places: NDArray[np.int64]
    """Shape (ceil(documents / BLOCK),): the sum of the extents of each block of documents."""

    tokens: int
    """Tokens in all segments."""

    long_documents: int
    """Documents longer than max_len: split, truncated or dropped, as `long` says."""

    long_tokens: int
    """Tokens in them."""

    empty_documents: int
    """Documents of no tokens; they have no segment."""

    @property
    def documents(self) -> int:
        """The number of documents in the source, empty and dropped ones included."""
        return len(self.lengths)

    @property
    def count(self) -> int:
        """The number of segment numbers in use: documents + heads; those of length 0 are not placed."""
        return len(self.lengths) + len(self.head_documents)

    def kept_lengths(self, first: int, last: int) -> NDArray[np.int32]:
        """Tokens of documents first..last-1 that the policy keeps, counted once; for documents that are kept or not."""
        if self.long != "split" or self.tails is self.lengths:
            return self.tails[first:last]
        return np.where(self.tails[first:last] > 0, self.lengths[first:last], np.int32(0))

    def numbers(self) -> NDArray[np.int64]:
        """The numbers of all segments that have tokens, tails first: int64."""
        return np.concatenate([np.flatnonzero(self.tails), np.arange(self.documents, self.count)])

    def numbers_in_order(self) -> NDArray[np.uint32] | NDArray[np.int64]:
        """The numbers of all segments that have tokens, in the order of the source."""
        numbers = np.empty(int(self.histogram.sum()), np.uint32 if self.count < 2**32 else np.int64)
        number_pieces(self.tails, self.head_documents, numbers)
        return numbers

    def extents_in_order(self) -> NDArray[np.int32]:
        """The extent of every piece in the order of the source: int32, shape (count,), 0 for a tail without tokens."""
        if not len(self.head_documents) and self.align == 1:
            return self.tails
        extents = np.empty(self.count, np.int32)
        piece_extents(self.tails, self.head_documents, self.head_lengths, self.align, extents)
        return extents

    def extents_of(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places that segments of these lengths take."""
        return lengths if self.align == 1 else (lengths + self.align - 1) // self.align * self.align

    def context_of(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens without loss at the head of segments that start there: the first, or what is repeated."""
        return np.where(starts > 0, max(self.overlap, 1), 1)

    def heads_of(self, first: int, last: int) -> tuple[int, int]:
        """The heads of documents first..last-1, as a range of indices into `head_documents`."""
        begin, end = np.searchsorted(self.head_documents, [first, last])
        return int(begin), int(end)

    def locate(
        self, numbers: NDArray[np.unsignedinteger] | NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(documents, starts, lengths) of segments given by number; each int64 of the shape of `numbers`."""
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
        """What the policy keeps of the same documents, cut elsewhere, and nothing repeated.

        Args:
            documents: (cuts,) the document of each cut, ascending.
            starts: (cuts,) where the segment after the cut starts, in what is kept of the document, ascending within
                a document: above 0, and below the tokens that are kept.
        """
        is_first = np.diff(documents, prepend=-1) > 0
        is_last = np.diff(documents, append=self.documents) > 0
        cut = documents[is_last]
        kept = self.kept_lengths(0, self.documents)
        # what was cut and is not any more is whole again
        firsts = np.zeros(len(self.cut_documents), np.int32) if self.long == "split" else self.tail_starts
        at = np.searchsorted(self.cut_documents, documents)
        at[at == len(self.cut_documents)] = 0
        begins = np.zeros(len(documents), np.int32)
        if len(self.cut_documents):
            begins = np.where(self.cut_documents[at] == documents, firsts[at], 0).astype(np.int32)
        tails = kept.copy() if len(cut) else kept
        tails[cut] -= starts[is_last]
        head_starts = np.where(is_first, 0, np.concatenate([[0], starts])[:-1]).astype(np.int32)
        uncut = ~np.isin(self.cut_documents, cut) & (firsts > 0)
        cut_documents = np.concatenate([self.cut_documents[uncut], cut])
        order = np.argsort(cut_documents, kind="stable")
        return replace(
            self,
            overlap=0,
            tails=tails,
            cut_documents=cut_documents[order],
            tail_starts=np.concatenate([firsts[uncut], (begins + starts)[is_last]])[order],
            head_documents=documents,
            head_starts=begins + head_starts,
            head_lengths=starts - head_starts,
        ).counted()

    def without(self, numbers: NDArray[np.int64]) -> Segments:
        """The same segments without some, given by number."""
        gone = numbers[numbers >= self.documents] - self.documents
        tails = self.tails.copy()
        tails[numbers[numbers < self.documents]] = 0
        return replace(
            self,
            tails=tails,
            head_documents=np.delete(self.head_documents, gone),
            head_starts=np.delete(self.head_starts, gone),
            head_lengths=np.delete(self.head_lengths, gone),
        ).counted()

    def counted(self) -> Segments:
        """The same segments, counted anew."""
        histogram = np.zeros(self.max_len + 1, np.int64)
        for lengths in (self.tails, self.head_lengths):
            for first in range(0, len(lengths), BLOCK):
                extents = self.extents_of(lengths[first : first + BLOCK].astype(np.int64))
                # longer than a row is only what `verify` cuts where a wrong row says
                histogram += np.bincount(extents, minlength=self.max_len + 1)[: self.max_len + 1]
        histogram[0] = 0
        places = np.zeros_like(self.block_places)
        block_places(self.tails, self.head_documents, self.head_lengths, self.align, places)
        tokens = int(self.tails.sum(dtype=np.int64) + self.head_lengths.sum(dtype=np.int64))
        return replace(self, histogram=histogram, block_places=places, tokens=tokens)


def cut_documents(
    lengths: NDArray[np.int32],
    max_len: int,
    long: LongPolicy,
    *,
    overlap: int = 0,
    truncate_side: TruncateSide = "right",
    align: int = 1,
    threads: int = 1,
) -> Segments:
    """Apply the long-document policy.

    `split` cuts a document every max_len tokens, no oftener than max_len demands; with `overlap`, every piece but the
    first begins with as many of the tokens before it. `truncate` keeps max_len tokens, those at the end where
    `truncate_side` is left: the side that goes. `drop` leaves a document out; empty ones are left out by every policy.

    Args:
        lengths: (documents,) tokens of each document.
        max_len: tokens of a row.
        long: the policy.
        overlap: 0..max_len - 1.
        truncate_side: left or right.
        align: extents are rounded up to a multiple of it; it divides max_len.
        threads: to look through the lengths with.

    Raises:
        SourceError: `long` is "error" and a document is longer than max_len.
    """
    assert 0 <= overlap < max_len
    assert max_len % align == 0
    blocks = -(-len(lengths) // BLOCK)
    places, block_heads = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
    bounds = [blocks * task // threads for task in range(threads + 1)]
    policy, stride = _KERNEL_POLICY[long], max_len - overlap

    def surveyed(task: int) -> tuple[NDArray[np.int64], tuple[int, int, int]]:
        counted = np.zeros(max_len + 1, np.int64)
        first, last = bounds[task], bounds[task + 1]
        facts = survey(lengths, first, last, max_len, policy, stride, align, counted, places, block_heads)
        return counted, facts

    parts = in_threads(surveyed, range(threads), threads)
    counts = np.sum([counted for counted, _ in parts], axis=0)
    long_documents, long_tokens, empty_documents = (
        sum(facts) for facts in zip(*(part[1] for part in parts), strict=True)
    )
    if long == "error" and long_documents:
        first = int(np.argmax(lengths > max_len))
        raise SourceError(
            f"document {first} has {lengths[first]:,} tokens and max_len is {max_len:,} "
            f"({long_documents:,} documents are longer); choose --long split, truncate or drop"
        )
    heads = int(block_heads.sum())
    tails, cut, tail_starts = lengths, np.empty(0, np.int64), np.empty(0, np.int32)
    head_documents, head_starts = np.empty(heads, np.int64), np.empty(heads, np.int32)
    if long_documents and long == "split":
        tails = lengths.copy()
        cut, tail_starts = np.empty(long_documents, np.int64), np.empty(long_documents, np.int32)
        fill_pieces(lengths, block_heads, max_len, stride, tails, cut, tail_starts, head_documents, head_starts)
    elif long_documents and long == "truncate":
        tails = np.minimum(lengths, max_len)
        if truncate_side == "left":
            cut = np.flatnonzero(lengths > max_len)
            tail_starts = lengths[cut] - np.int32(max_len)
    elif long_documents:
        tails = np.where(lengths > max_len, np.int32(0), lengths)
    counts[0] = 0
    counts[max_len] += heads
    histogram = counts
    if align > 1:
        histogram = np.zeros(max_len + 1, np.int64)
        np.add.at(histogram, -(-np.arange(max_len + 1) // align) * align, counts)
    return Segments(
        lengths=lengths,
        max_len=max_len,
        long=long,
        overlap=overlap if long == "split" else 0,
        align=align,
        tails=tails,
        cut_documents=cut,
        tail_starts=tail_starts,
        head_documents=head_documents,
        head_starts=head_starts,
        head_lengths=np.full(heads, max_len, np.int32),
        histogram=histogram,
        block_places=places,
        tokens=int(counts @ np.arange(max_len + 1)),
        long_documents=long_documents,
        long_tokens=long_tokens,
        empty_documents=empty_documents,
    )
