"""Documents cut into segments of at most max_len tokens, by the long-document policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import extents_of, joined_ranges
from packer.errors import SourceError
from packer.manifest_fields import Account
from packer.options import CutOptions
from packer.options.choices import LongPolicy

_TOGETHER = 1 << 16  # segments that are counted together


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
    long: LongPolicy

    align: int
    """Divisor of max_len that all extents are multiples of."""

    tails: NDArray[np.int32]
    """Shape (documents,): tokens in each tail, 0 if it is empty; `lengths` itself if no document is long."""

    tail_starts: NDArray[np.int32]
    """Shape (documents,): first token of each tail in its document."""

    head_documents: NDArray[np.int64]
    """Shape (heads,): document of each head, ascending."""

    head_starts: NDArray[np.int32]
    """Shape (heads,): first token of each head in its document."""

    head_lengths: NDArray[np.int32]
    """Shape (heads,): tokens in each head."""

    dropped: Mapping[str, tuple[int, int]]
    """Documents without a segment, by reason, and the tokens that are lost with them: (documents, tokens)."""

    truncated: tuple[int, int] = (0, 0)
    """Documents shortened by truncation, and the tokens cut off."""

    ranges: NDArray[np.int64] | None = None
    """Shape (ranges, 2): first document of each range of the source that was cut, and the one after its last; None for
    the whole source. Documents are numbered from 0 through all ranges."""

    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Shape (max_len + 1,): number of segments of every extent, 0 at extent 0; written by `counted`."""

    @property
    def documents(self) -> int:
        """Number of documents in the source, empty and dropped ones included."""
        return len(self.lengths)

    @property
    def count(self) -> int:
        """Number of segment numbers: documents + heads; segments of length 0 are not placed in rows."""
        return len(self.lengths) + len(self.head_documents)

    @property
    def account(self) -> Account:
        """Documents and tokens, counted by what became of them."""
        with_heads, heads = np.unique(self.head_documents, return_counts=True)
        dropped = {reason: lost for reason, (_, lost) in self.dropped.items() if reason != "empty"}
        return Account(
            documents=self.documents,
            documents_split=int(np.count_nonzero(heads + (self.tails[with_heads] > 0) > 1)),
            documents_truncated=self.truncated[0],
            documents_dropped={reason: documents for reason, (documents, _) in self.dropped.items()},
            tokens=int(self.lengths.sum(dtype=np.int64)),
            tokens_packed=int(self.tails.sum(dtype=np.int64) + self.head_lengths.sum(dtype=np.int64)),
            tokens_truncated=self.truncated[1],
            tokens_dropped=dropped,
        )

    def kept_lengths(self) -> NDArray[np.int32]:
        """Return the tokens kept of each document, which are its first ones; 0 for dropped documents."""
        if self.long != "split" or self.tails is self.lengths:
            return self.tails
        return np.where(self.tails > 0, self.lengths, np.int32(0))

    def numbers(self) -> NDArray[np.int64]:
        """Return the numbers of all segments with tokens, tails first: int64."""
        return np.concatenate([np.flatnonzero(self.tails), np.arange(self.documents, self.count)])

    def pieces_in_order(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the numbers and the extents of all pieces in source order: the heads of a document, then its tail.

        The extent of a tail without tokens is 0. Both have the shape (count,).
        """
        heads = np.arange(self.documents, self.count)
        numbers = np.insert(np.arange(self.documents), self.head_documents, heads)
        return numbers, self.extents_of_numbers()[numbers]

    def extents_of_numbers(self) -> NDArray[np.int32]:
        """Return the extent of every segment by number: int32, shape (count,), 0 for a tail without tokens."""
        lengths = np.concatenate([self.tails, self.head_lengths]) if len(self.head_documents) else self.tails
        return extents_of(lengths, self.align)

    def places_of_documents(self) -> NDArray[np.int64]:
        """Return the summed extents of the segments of each document: int64, shape (documents,)."""
        places = extents_of(self.tails.astype(np.int64), self.align)
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
        starts, lengths = self.tail_starts[documents].astype(np.int64), self.tails[documents].astype(np.int64)
        starts[heads], lengths[heads] = self.head_starts[head], self.head_lengths[head]
        return documents, starts, lengths

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
            tails=tails,
            tail_starts=tail_starts,
            head_documents=documents,
            head_starts=head_starts,
            head_lengths=starts - head_starts,
        ).counted()

    def without_untrained(self, numbers: NDArray[np.int64]) -> Segments:
        """Remove segments without trained tokens, by number, and count the documents and tokens that are lost."""
        gone = numbers[numbers >= self.documents] - self.documents
        tails = self.tails.copy()
        tails[numbers[numbers < self.documents]] = 0
        return replace(
            self,
            tails=tails,
            head_documents=np.delete(self.head_documents, gone),
            head_starts=np.delete(self.head_starts, gone),
            head_lengths=np.delete(self.head_lengths, gone),
            dropped={**self.dropped, "untrained": self._losses(numbers)},
        ).counted()

    def _losses(self, numbers: NDArray[np.int64]) -> tuple[int, int]:
        """Count the tokens of these segments, and the documents that have no others."""
        documents, _, lengths = self.locate(numbers)
        concerned, lost = np.unique(documents, return_counts=True)
        heads = np.bincount(self.head_documents, minlength=self.documents)[concerned]
        pieces = heads + (self.tails[concerned] > 0)
        return int(np.count_nonzero(pieces == lost)), int(lengths.sum())

    def counted(self) -> Segments:
        """Return the same segments with `histogram` recounted."""
        histogram = np.zeros(self.max_len + 1, np.int64)
        for lengths in (self.tails, self.head_lengths):
            for first in range(0, len(lengths), _TOGETHER):
                extents = extents_of(lengths[first : first + _TOGETHER], self.align)
                # Extents above max_len occur only if `verify` cuts documents as a damaged row has them.
                histogram += np.bincount(extents, minlength=self.max_len + 1)[: self.max_len + 1]
        histogram[0] = 0
        return replace(self, histogram=histogram)


def documents_of(ranges: NDArray[np.int64], local: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Convert numbers within ranges to documents: ranges [[3, 5], [9, 11]], local [0, 2, 3] -> [3, 9, 10]."""
    counts = np.diff(ranges).reshape(-1)
    ends = np.cumsum(counts)
    of_range = np.searchsorted(ends, local, side="right")
    documents: NDArray[np.int64] = ranges[:, 0][of_range] + local - (ends - counts)[of_range]
    return documents


def cut_lengths_of(
    options: CutOptions,
    lengths: NDArray[np.int32],
    ranges: NDArray[np.int64] | None = None,
    left_out: NDArray[np.bool_] | None = None,
) -> Segments:
    """Cut documents into segments, as the options say; see `cut_documents`.

    `ranges` are those of `Segments`. Documents that are `left_out`, none of them empty, have no segments. If a document
    is longer than max_len and may not be cut, this is a SourceError with the number of the first one.
    """
    taken = lengths if left_out is None else np.where(left_out, np.int32(0), lengths)
    _refuse_long(options, taken, ranges)
    segments = cut_documents(taken, options.max_len, options.long, align=options.align)
    dropped = {**segments.dropped, **({"untrained": (0, 0)} if options.untrained == "drop" else {})}
    if left_out is not None:  # they were cut as empty documents
        count, tokens = _counts(lengths[left_out])
        reason = "not_held_out" if options.is_holdout else "held_out"
        dropped |= {"empty": (dropped["empty"][0] - count, 0), reason: (count, tokens)}
    return replace(segments, lengths=lengths, ranges=ranges, dropped=dropped)


def _refuse_long(options: CutOptions, lengths: NDArray[np.int32], ranges: NDArray[np.int64] | None) -> None:
    """Raise a SourceError if a document is longer than a row, and the options do not say how to cut it."""
    if options.long not in ("split", "error") or (options.long == "split" and not options.never_splits):
        return
    is_long = lengths > options.max_len
    if not is_long.any():
        return
    first, count = int(is_long.argmax()), np.count_nonzero(is_long)
    document = first
    if ranges is not None:
        document = int(documents_of(ranges, np.array([document]))[0])
    limit = f"and max_len is {options.max_len:,}"
    if options.pairs:
        raise SourceError(
            f"pair {document} takes {lengths[first]:,} tokens {limit} ({count:,} pairs are longer), and pairs are "
            "never split: choose --long drop"
        )
    remedy = "choose --long split, truncate or drop"
    if options.never_splits:
        remedy = "with --limit none is split: choose --long drop or truncate"
    raise SourceError(
        f"document {document} has {lengths[first]:,} tokens {limit} ({count:,} documents are longer); {remedy}"
    )


def kept_lengths_of(options: CutOptions, lengths: NDArray[np.int32], first_document: int = 0) -> NDArray[np.int32]:
    """Count the tokens of each document that reach the rows: int32, shape (documents,).

    Errors are those of `cut_lengths_of`.
    """
    kept = lengths
    if options.long == "truncate":
        kept = np.minimum(lengths, np.int32(options.max_len))
    elif options.long == "drop":
        kept = np.where(lengths > options.max_len, np.int32(0), lengths)
    elif options.long == "error":
        _refuse_long(options, lengths, np.array([[first_document, first_document + len(lengths)]]))
    return kept


def cut_documents(lengths: NDArray[np.int32], max_len: int, long: LongPolicy, *, align: int = 1) -> Segments:
    """Cut documents, of which `lengths` has the tokens, by the long-document policy.

    `split` cuts a document every max_len tokens, `truncate` keeps the first max_len tokens, and `drop` leaves long
    documents out; with `error`, there may be none. Every policy leaves out empty documents. Extents are rounded up to
    a multiple of `align`, a divisor of max_len.
    """
    assert max_len % align == 0
    cut = np.flatnonzero(lengths > max_len)
    assert long != "error" or not len(cut)
    tails, tail_starts = lengths, np.zeros(len(lengths), np.int32)
    of_long = lengths[cut].astype(np.int64)
    heads = (of_long - 1) // max_len if long == "split" else np.zeros(len(cut), np.int64)
    dropped, truncated = (0, 0), (0, 0)
    if long == "split":
        tail_starts[cut] = heads * max_len
    elif long == "drop":
        dropped = len(cut), int(of_long.sum())
    elif long == "truncate":
        truncated = len(cut), int((of_long - max_len).sum())
    if len(cut):
        tails = lengths.copy()
        tails[cut] = {"split": of_long - heads * max_len, "truncate": max_len}.get(long, 0)
    return Segments(
        lengths=lengths,
        max_len=max_len,
        long=long,
        align=align,
        tails=tails,
        tail_starts=tail_starts,
        head_documents=np.repeat(cut, heads),
        head_starts=(joined_ranges(np.zeros_like(heads), heads) * max_len).astype(np.int32),
        head_lengths=np.full(int(heads.sum()), max_len, np.int32),
        dropped={"empty": (len(lengths) - int(np.count_nonzero(lengths)), 0), "too_long": dropped},
        truncated=truncated,
    ).counted()


def _counts(tokens: NDArray[np.int32]) -> tuple[int, int]:
    return len(tokens), int(tokens.sum(dtype=np.int64))
