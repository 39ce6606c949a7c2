"""Documents cut into segments of at most max_len tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import Integer, extents_of, joined_ranges
from packer.json_records import Account
from packer.options.option import LongPolicy
from packer.shards.located_rows import PIECE

_TOGETHER = 1 << 16  # segments that are counted together


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Segments of documents, numbered so that a document that is not cut needs no entry of its own.

    Segment d < documents is the tail of document d: the whole document, unless it is cut. A document that is cut has
    heads before its tail; the heads of all documents are segments documents, documents + 1, ... in source order.

    Lengths [3, 9, 8] split at max_len 4 have tails of 3, 1 and 4 tokens (segments 0, 1, 2), heads of document 1 at 0
    and 4, and a head of document 2 at 0 (segments 3, 4, 5): heads = [1, 1, 2], starts = [0, 8, 4, 0, 4, 0] and
    tokens = [3, 1, 4, 4, 4, 4].
    """

    lengths: NDArray[np.int32]
    """Shape (documents,): tokens of each document in the source."""

    max_len: int

    align: int
    """Divisor of max_len that all extents are multiples of."""

    heads: NDArray[np.int64]
    """Shape (heads,): document of each head, ascending."""

    starts: NDArray[np.int32]
    """Shape (count,): first token of each segment in its document."""

    tokens: NDArray[np.int32]
    """Shape (count,): tokens in each segment; 0 for a tail that is not placed. `lengths` itself if none is cut."""

    dropped: Mapping[str, tuple[int, int]]
    """Documents without a segment, by reason, and the tokens that are lost with them: (documents, tokens)."""

    truncated: tuple[int, int] = (0, 0)
    """Documents shortened by truncation, and the tokens cut off."""

    ranges: NDArray[np.int64] | None = None
    """Shape (ranges, 2): first document of each range of the source that was cut, and the one after its last; None for
    the whole source. Documents are numbered from 0 through all ranges."""

    @property
    def documents(self) -> int:
        """Number of documents in the source, empty and dropped ones included."""
        return len(self.lengths)

    @property
    def count(self) -> int:
        """Number of segment numbers: documents + heads."""
        return len(self.tokens)

    @property
    def histogram(self) -> NDArray[np.int64]:
        """Number of segments of every extent, 0 at extent 0: shape (max_len + 1,)."""
        histogram = np.zeros(self.max_len + 1, np.int64)
        for first in range(0, self.count, _TOGETHER):
            extents = extents_of(self.tokens[first : first + _TOGETHER], self.align)
            # Extents above max_len occur only if `verify` cuts documents as a damaged row has them.
            histogram += np.bincount(extents, minlength=self.max_len + 1)[: self.max_len + 1]
        histogram[0] = 0
        return histogram

    @property
    def account(self) -> Account:
        """Documents and tokens, counted by what became of them."""
        with_heads, heads = np.unique(self.heads, return_counts=True)
        dropped = {reason: lost for reason, (_, lost) in self.dropped.items() if reason != "empty"}
        return Account(
            documents=self.documents,
            documents_split=int(np.count_nonzero(heads + (self.tokens[with_heads] > 0) > 1)),
            documents_truncated=self.truncated[0],
            documents_dropped={reason: documents for reason, (documents, _) in self.dropped.items()},
            tokens=int(self.lengths.sum(dtype=np.int64)),
            tokens_packed=int(self.tokens.sum(dtype=np.int64)),
            tokens_truncated=self.truncated[1],
            tokens_dropped=dropped,
        )

    def kept_lengths(self) -> NDArray[np.int32]:
        """Return the tokens kept of each document, which are its first ones; 0 for dropped documents."""
        return self._sums(self.tokens) if len(self.heads) else self.tokens

    def places_of_documents(self) -> NDArray[np.int64]:
        """Return the summed extents of the segments of each document: int64, shape (documents,)."""
        return self._sums(extents_of(self.tokens.astype(np.int64), self.align))

    def _sums(self, values: NDArray[Integer]) -> NDArray[Integer]:
        """Add up the values of the segments of each document: shape (documents,)."""
        sums: NDArray[Integer] = values[: self.documents].copy()
        np.add.at(sums, self.heads, values[self.documents :])
        return sums

    def extents(self) -> NDArray[np.int32]:
        """Return the extent of every segment by number: int32, shape (count,), 0 for a tail that is not placed."""
        return extents_of(self.tokens, self.align)

    def numbers(self) -> NDArray[np.int64]:
        """Return the numbers of all segments with tokens, tails first: int64."""
        return np.flatnonzero(self.tokens)

    def pieces_in_order(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the numbers and the extents of all pieces in source order: the heads of a document, then its tail.

        The extent of a tail without tokens is 0. Both have the shape (count,).
        """
        numbers = np.insert(np.arange(self.documents), self.heads, np.arange(self.documents, self.count))
        return numbers, self.extents()[numbers]

    def locate(self, numbers: NDArray[np.unsignedinteger[Any]] | NDArray[np.int64]) -> NDArray[Any]:
        """Return segments by number: an array of PIECE."""
        pieces = np.empty(len(numbers), PIECE)
        documents = numbers.astype(np.int64)
        is_head = documents >= self.documents
        documents[is_head] = self.heads[documents[is_head] - self.documents]
        pieces["document"], pieces["start"], pieces["length"] = documents, self.starts[numbers], self.tokens[numbers]
        return pieces

    def cut_at(self, documents: NDArray[np.int64], starts: NDArray[np.int32]) -> Segments:
        """Return the same documents with their kept tokens cut elsewhere.

        `documents` and `starts`, shape (cuts,), are ascending: the document of each cut, and the kept token at
        which the segment after the cut starts, above 0 and below the number of kept tokens.
        """
        is_first = np.diff(documents, prepend=-1) > 0
        is_last = np.diff(documents, append=self.documents) > 0
        cut = documents[is_last]
        # Documents that are no longer cut become whole again.
        tails, tail_starts = self.kept_lengths().copy(), np.zeros(self.documents, np.int32)
        tails[cut] -= starts[is_last]
        tail_starts[cut] = starts[is_last]
        head_starts = np.where(is_first, 0, np.concatenate([[0], starts])[:-1]).astype(np.int32)
        return replace(
            self,
            heads=documents,
            starts=np.concatenate([tail_starts, head_starts]),
            tokens=np.concatenate([tails, starts - head_starts]),
        )

    def without_untrained(self, numbers: NDArray[np.int64]) -> Segments:
        """Remove segments without trained tokens, by number, and count the documents and tokens that are lost."""
        is_head = numbers >= self.documents
        gone = numbers[is_head]
        tokens = self.tokens.copy()
        tokens[numbers[~is_head]] = 0
        return replace(
            self,
            heads=np.delete(self.heads, gone - self.documents),
            starts=np.delete(self.starts, gone),
            tokens=np.delete(tokens, gone),
            dropped={**self.dropped, "untrained": self._losses(numbers)},
        )

    def _losses(self, numbers: NDArray[np.int64]) -> tuple[int, int]:
        """Count the documents that have no other segments than these, and the tokens of these."""
        concerned, lost = np.unique(self.locate(numbers)["document"], return_counts=True)
        pieces = self._sums(np.minimum(self.tokens, 1))[concerned]
        return int(np.count_nonzero(pieces == lost)), int(self.tokens[numbers].sum(dtype=np.int64))


def documents_in(ranges: NDArray[np.int64], local: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Convert numbers within ranges to documents: ranges [[3, 5], [9, 11]], local [0, 2, 3] -> [3, 9, 10]."""
    counts = np.diff(ranges).reshape(-1)
    ends = np.cumsum(counts)
    of_range = np.searchsorted(ends, local, side="right")
    documents: NDArray[np.int64] = ranges[:, 0][of_range] + local - (ends - counts)[of_range]
    return documents


def cut_documents(lengths: NDArray[np.int32], max_len: int, long: LongPolicy, *, align: int = 1) -> Segments:
    """Cut documents, of which `lengths` has the tokens, by the long-document policy.

    `split` cuts a document every max_len tokens, `truncate` keeps the first max_len tokens, and `drop` leaves long
    documents out; with `error`, there may be none. Every policy leaves out empty documents. Extents are rounded up to
    a multiple of `align`, a divisor of max_len.
    """
    assert max_len % align == 0
    cut = np.flatnonzero(lengths > max_len)
    assert long != "error" or not len(cut)
    of_long = lengths[cut].astype(np.int64)
    per_document = (of_long - 1) // max_len if long == "split" else np.zeros(len(cut), np.int64)
    heads = np.repeat(cut, per_document)
    starts, tokens = np.zeros(len(lengths) + len(heads), np.int32), lengths
    dropped, truncated = (0, 0), (0, 0)
    if len(cut):
        tokens = np.concatenate([lengths, np.full(len(heads), max_len, np.int32)])
        starts[cut] = per_document * max_len
        starts[len(lengths) :] = joined_ranges(np.zeros_like(per_document), per_document) * max_len
        tokens[cut] = 0 if long == "drop" else np.minimum(of_long - per_document * max_len, max_len)
    if long == "drop":
        dropped = len(cut), int(of_long.sum())
    elif long == "truncate":
        truncated = len(cut), int((of_long - max_len).sum())
    return Segments(
        lengths=lengths,
        max_len=max_len,
        align=align,
        heads=heads,
        starts=starts,
        tokens=tokens,
        dropped={"empty": (len(lengths) - int(np.count_nonzero(lengths)), 0), "too_long": dropped},
        truncated=truncated,
    )
