"""The long-document policy: documents to segments of at most max_len tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.plan.extents import BLOCK, KEEP, fill_heads, survey
from packer.plan.threads import in_threads

LongPolicy = Literal["split", "truncate", "drop", "error"]
LONG_POLICIES: tuple[str, ...] = get_args(LongPolicy)


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

    uncut: int
    """Tokens up to which no document has a head: max_len, but where an order algorithm cuts."""

    head_documents: NDArray[np.int64]
    """Shape (heads,): the document each head belongs to, ascending."""

    head_starts: NDArray[np.int32]
    """Shape (heads,): where in its document each head starts."""

    head_lengths: NDArray[np.int32]
    """Shape (heads,): tokens in each head; the next head, or the tail, starts after them."""

    histogram: NDArray[np.int64]
    """Shape (max_len + 1,): segments of every extent, nothing at 0."""

    block_tokens: NDArray[np.int64]
    """Shape (ceil(documents / BLOCK),): tokens placed of each block of documents."""

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

    @property
    def keep(self) -> int:
        """What `kernels.tail_extent` and `kernels.kept` keep of a long document, one of `KEEP`."""
        return KEEP[self.long]

    def kept_lengths(self, first: int, last: int) -> NDArray[np.int32]:
        """Tokens placed of documents first..last-1; a view of `lengths` where the policy takes nothing away."""
        lengths = self.lengths[first:last]
        if self.long == "truncate":
            return np.minimum(lengths, self.max_len)
        if self.long == "drop":
            return np.where(lengths > self.max_len, 0, lengths).astype(np.int32)
        return lengths

    def numbers(self) -> NDArray[np.int64]:
        """The numbers of all segments that have tokens, tails first: int64."""
        tails = np.flatnonzero(self.kept_lengths(0, self.documents))
        return np.concatenate([tails, np.arange(self.documents, self.count)])

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
        lengths = self.lengths[documents].astype(np.int64)
        if self.long == "truncate":
            np.minimum(lengths, self.max_len, out=lengths)
        starts = np.zeros_like(documents)
        if len(self.head_documents):
            # a tail starts where the last head of its document ends
            may_be_cut = np.flatnonzero(lengths > self.uncut)
            last = np.searchsorted(self.head_documents, documents[may_be_cut], side="right") - 1
            is_cut = self.head_documents[last] == documents[may_be_cut]
            cut, last = may_be_cut[is_cut], last[is_cut]
            starts[cut] = self.head_starts[last].astype(np.int64) + self.head_lengths[last]
            lengths -= starts
            starts[heads], lengths[heads] = self.head_starts[head], self.head_lengths[head]
        return documents, starts, lengths

    def cut_at(self, documents: NDArray[np.int64], starts: NDArray[np.int32]) -> Segments:
        """The same documents cut elsewhere.

        Args:
            documents: (cuts,) the document of each cut, ascending.
            starts: (cuts,) where the segment after the cut starts, ascending within a document: above 0, and below
                what is kept of it.
        """
        follows = np.zeros(len(documents), bool)
        follows[1:] = documents[1:] == documents[:-1]
        head_starts = np.where(follows, np.concatenate([[0], starts])[:-1], 0).astype(np.int32)
        cut = replace(
            self,
            uncut=int(self.lengths[documents].min(initial=2**31 - 1)) - 1,
            head_documents=documents,
            head_starts=head_starts,
            head_lengths=(starts - head_starts).astype(np.int32),
        )
        touched = np.union1d(self.head_documents, documents)
        return replace(cut, histogram=self.histogram - self._pieces(touched) + cut._pieces(touched))

    def _pieces(self, touched: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the segments of every extent of some documents, all that have heads among them."""
        lengths = np.concatenate([self.locate(touched)[2], self.head_lengths])
        # longer than a row is only what `verify` cuts where a wrong row says
        return np.bincount(lengths, minlength=self.max_len + 1)[: self.max_len + 1]


def cut_documents(lengths: NDArray[np.int32], max_len: int, long: LongPolicy, *, threads: int = 1) -> Segments:
    """Apply the long-document policy.

    `split` cuts a document every max_len tokens, no oftener than max_len demands; `truncate` keeps its first max_len
    tokens; `drop` leaves it out; empty documents are left out by every policy.

    Args:
        lengths: (documents,) tokens of each document.
        max_len: tokens of a row.
        long: the policy.
        threads: to look through the lengths with.

    Raises:
        SourceError: `long` is "error" and a document is longer than max_len.
    """
    blocks = -(-len(lengths) // BLOCK)
    block_tokens, block_heads = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
    bounds = [blocks * task // threads for task in range(threads + 1)]

    def surveyed(task: int) -> tuple[NDArray[np.int64], tuple[int, int, int]]:
        counted = np.zeros(max_len + 1, np.int64)
        facts = survey(lengths, bounds[task], bounds[task + 1], max_len, KEEP[long], counted, block_tokens, block_heads)
        return counted, facts

    parts = in_threads(surveyed, range(threads), threads)
    histogram = np.sum([counted for counted, _ in parts], axis=0)
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
    head_documents, head_starts = np.empty(heads, np.int64), np.empty(heads, np.int32)
    fill_heads(lengths, block_heads, max_len, head_documents, head_starts)
    histogram[0] = 0
    histogram[max_len] += heads
    return Segments(
        lengths=lengths,
        max_len=max_len,
        long=long,
        uncut=max_len,
        head_documents=head_documents,
        head_starts=head_starts,
        head_lengths=np.full(heads, max_len, np.int32),
        histogram=histogram,
        block_tokens=block_tokens,
        long_documents=long_documents,
        long_tokens=long_tokens,
        empty_documents=empty_documents,
    )
