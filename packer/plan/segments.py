"""The long-document policy: documents to segments of at most max_len tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError

LongPolicy = Literal["split", "truncate", "drop", "error"]
LONG_POLICIES: tuple[str, ...] = get_args(LongPolicy)

_BLOCK = 1 << 20  # documents looked at together: bounds what is allocated beside the lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """The segments that a policy makes of documents, numbered without an array of their own.

    Segment d < documents is the tail of document d: all of it, unless it is longer than max_len. A split document
    has heads before its tail, of max_len tokens each: segments documents, documents + 1, ... in source order.

    Lengths [3, 9, 8] at max_len 4, split: tails 3, 1, 4 (segments 0, 1, 2), heads of document 1 at 0 and 4 and of
    document 2 at 0 (segments 3, 4, 5).
    """

    lengths: NDArray[np.int32]
    """Shape (documents,): tokens of each document in the source."""

    max_len: int
    """The capacity of a row, tokens."""

    long: LongPolicy
    """What happens to a document longer than max_len."""

    head_documents: NDArray[np.int64]
    """Shape (heads,): the document each head belongs to, ascending."""

    head_starts: NDArray[np.int32]
    """Shape (heads,): where in its document each head starts, a multiple of max_len."""

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

    def tail_lengths(self, first: int, last: int) -> NDArray[np.int32]:
        """Tokens in the tails of documents first..last-1; 0 where nothing of the document is placed there."""
        lengths = self.lengths[first:last]
        if self.long == "split":
            # (length - 1) % max_len + 1, in which 0 stays 0 (the sign of % is the divisor's)
            return np.where(lengths > 0, (lengths - 1) % self.max_len + 1, 0).astype(np.int32)
        if self.long == "truncate":
            return np.minimum(lengths, self.max_len)
        return np.where(lengths > self.max_len, 0, lengths).astype(np.int32)

    def heads_of(self, first: int, last: int) -> tuple[int, int]:
        """The heads of documents first..last-1, as a range of indices into `head_documents`."""
        begin, end = np.searchsorted(self.head_documents, [first, last])
        return int(begin), int(end)

    def locate(
        self, numbers: NDArray[np.unsignedinteger] | NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(documents, starts, lengths) of segments given by number; each int64 of the shape of `numbers`."""
        documents = numbers.astype(np.int64)
        heads = documents >= self.documents
        head = documents[heads] - self.documents
        documents[heads] = self.head_documents[head]
        whole = self.lengths[documents].astype(np.int64)
        if self.long == "truncate":
            return documents, np.zeros_like(documents), np.minimum(whole, self.max_len)
        lengths = (whole - 1) % self.max_len + 1
        starts = whole - lengths
        starts[heads], lengths[heads] = self.head_starts[head], self.max_len
        return documents, starts, lengths

    def locate_lengths(self, numbers: NDArray[np.unsignedinteger] | NDArray[np.int64]) -> NDArray[np.int32]:
        """Tokens of segments given by number: int32, of the shape of `numbers`."""
        found = np.empty(len(numbers), np.int32)
        for first in range(0, len(numbers), _BLOCK):
            found[first : first + _BLOCK] = self.locate(numbers[first : first + _BLOCK])[2]
        return found

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(first document, tokens placed of each document) for blocks of documents in order, int64."""
        for first in range(0, self.documents, _BLOCK):
            last = min(first + _BLOCK, self.documents)
            if self.long == "split":
                yield first, self.lengths[first:last].astype(np.int64)
            else:
                yield first, self.tail_lengths(first, last).astype(np.int64)

    def histogram(self) -> NDArray[np.int64]:
        """Count the segments of every extent: int64, shape (max_len + 1,), nothing at 0."""
        counted = np.zeros(self.max_len + 1, np.int64)
        for first in range(0, self.documents, _BLOCK):
            tails = self.tail_lengths(first, min(first + _BLOCK, self.documents))
            counted += np.bincount(tails, minlength=self.max_len + 1)
        counted[0] = 0
        counted[self.max_len] += len(self.head_documents)
        return counted


def cut_documents(lengths: NDArray[np.int32], max_len: int, long: LongPolicy) -> Segments:
    """Apply the long-document policy.

    `split` cuts a document every max_len tokens, no oftener than max_len demands; `truncate` keeps its first max_len
    tokens; `drop` leaves it out; empty documents are left out by every policy.

    Raises:
        SourceError: `long` is "error" and a document is longer than max_len.
    """
    long_documents = np.flatnonzero(lengths > max_len)
    if long == "error" and len(long_documents):
        first = int(long_documents[0])
        raise SourceError(
            f"document {first} has {lengths[first]:,} tokens and max_len is {max_len:,} "
            f"({len(long_documents):,} documents are longer); choose --long split, truncate or drop"
        )
    long_lengths = lengths[long_documents]
    heads = (long_lengths - 1) // max_len if long == "split" else np.zeros_like(long_lengths)
    first_heads = np.repeat(np.cumsum(heads, dtype=np.int64) - heads, heads)
    return Segments(
        lengths=lengths,
        max_len=max_len,
        long=long,
        head_documents=np.repeat(long_documents, heads).astype(np.int64),
        head_starts=((np.arange(len(first_heads)) - first_heads) * max_len).astype(np.int32),
        long_documents=len(long_documents),
        long_tokens=int(long_lengths.sum(dtype=np.int64)),
        empty_documents=int(np.count_nonzero(lengths == 0)),
    )
