"""Cut documents into segments by the options: at max_len or between exchanges, leaving out excluded documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.index_arrays import Integer, extents_of, joined_ranges
from packer.algorithms.jit import jit_if_large
from packer.arrow import as_numpy
from packer.column_names import NO_LOSS
from packer.engines.engine import DecodePool
from packer.errors import SourceError
from packer.json_records import Account
from packer.options import PackOptions
from packer.options.option import LongPolicy
from packer.shards.located_rows import SEGMENT
from packer.sources.content_hashes import left_out
from packer.sources.documents import reading
from packer.sources.list_checks import runs
from packer.sources.meanings import EXCHANGE_STARTS
from packer.sources.source import Documents, TokenTable, ValueColumn
from packer.token_memory.token_column import Spans, count_trained, fetched_spans, gather, lengths_of

_COUNTED_TOGETHER = 1 << 16  # number of segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Numbered segments of documents. Only cut documents need additional entries.

    Segment d < documents is the tail of document d: the whole document, unless it is cut. A cut document has heads
    before its tail; the heads of all documents are segments documents, documents + 1, ... in source order.

    Example: lengths [3, 9, 8], split at max_len 4, have tails of 3, 1 and 4 tokens (segments 0, 1, 2), heads of
    document 1 at 0 and 4, and a head of document 2 at 0 (segments 3, 4, 5): heads = [1, 1, 2], starts = [0, 8, 4, 0, 4,
    0] and tokens = [3, 1, 4, 4, 4, 4].
    """

    lengths: NDArray[np.int32]
    """Number of tokens of each document in the source; shape (documents,)."""

    max_len: int

    align: int
    """Divisor of max_len; all extents are multiples of it."""

    heads: NDArray[np.int64]
    """Document of each head, ascending; shape (heads,)."""

    starts: NDArray[np.int32]
    """First token of each segment in its document; shape (count,)."""

    tokens: NDArray[np.int32]
    """Tokens in each segment, 0 for a tail that is not placed; shape (count,). `lengths` if nothing is cut."""

    dropped: Mapping[str, tuple[int, int]]
    """(documents, tokens) that are left out, by reason."""

    truncated: tuple[int, int] = (0, 0)
    """(documents that were truncated, tokens cut off)."""

    ranges: NDArray[np.int64] | None = None
    """Ranges of the source that were cut: first document and the one after the last; shape (ranges, 2). None: the whole
    source. Documents are numbered from 0 across all ranges."""

    @property
    def documents(self) -> int:
        """Number of documents in the source, including empty and dropped ones."""
        return len(self.lengths)

    @property
    def count(self) -> int:
        """Number of segment numbers: documents + heads."""
        return len(self.tokens)

    @property
    def histogram(self) -> NDArray[np.int64]:
        """Number of segments of every extent, 0 at extent 0; shape (max_len + 1,)."""
        histogram = np.zeros(self.max_len + 1, np.int64)
        for first in range(0, self.count, _COUNTED_TOGETHER):
            extents = extents_of(self.tokens[first : first + _COUNTED_TOGETHER], self.align)
            # Extents above max_len occur only if `verify` cuts documents as a damaged row does.
            histogram += np.bincount(extents, minlength=self.max_len + 1)[: self.max_len + 1]
        histogram[0] = 0
        return histogram

    @property
    def account(self) -> Account:
        """Numbers of documents and tokens that were packed, split, truncated and dropped."""
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
        """Return the number of kept tokens of each document, counted from its beginning; 0 for dropped documents."""
        return self._sums(self.tokens) if len(self.heads) else self.tokens

    def places_of_documents(self) -> NDArray[np.int64]:
        """Return the summed extents of each document's segments: int64, shape (documents,)."""
        return self._sums(extents_of(self.tokens.astype(np.int64), self.align))

    def _sums(self, values: NDArray[Integer]) -> NDArray[Integer]:
        """Sum values of segments by document; shape (documents,)."""
        sums: NDArray[Integer] = values[: self.documents].copy()
        np.add.at(sums, self.heads, values[self.documents :])
        return sums

    def extents(self) -> NDArray[np.int32]:
        """Return the extent of every segment number: int32, shape (count,), 0 for a tail that is not placed."""
        return extents_of(self.tokens, self.align)

    def numbers(self) -> NDArray[np.int64]:
        """Return the numbers of all segments with tokens, tails first; int64."""
        return np.flatnonzero(self.tokens)

    def in_order(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return (numbers, extents) of all segments in source order: the heads of a document, then its tail.

        The extent of a tail without tokens is 0. Both arrays have the shape (count,).
        """
        numbers = np.insert(np.arange(self.documents), self.heads, np.arange(self.documents, self.count))
        return numbers, self.extents()[numbers]

    def locate(self, numbers: NDArray[np.unsignedinteger[Any]] | NDArray[np.int64]) -> NDArray[Any]:
        """Return the segments with these numbers as an array of SEGMENT."""
        found = np.empty(len(numbers), SEGMENT)
        documents = numbers.astype(np.int64)
        is_head = documents >= self.documents
        documents[is_head] = self.heads[documents[is_head] - self.documents]
        found["document"], found["start"], found["length"] = documents, self.starts[numbers], self.tokens[numbers]
        return found

    def cut_at(self, documents: NDArray[np.int64], starts: NDArray[np.int32]) -> Segments:
        """Return the same documents with their kept tokens cut at other positions.

        `documents` and `starts`, shape (cuts,), are ascending: the document of each cut, and the position among its
        kept tokens where the segment after the cut begins (above 0, below the number of kept tokens).
        """
        is_first = np.diff(documents, prepend=-1) > 0
        is_last = np.diff(documents, append=self.documents) > 0
        cut = documents[is_last]
        # Documents without a new cut become whole again.
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
        """Remove untrained segments, given by number, and count the documents and tokens lost."""
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
        """Return (documents that consist only of these segments, tokens of these segments)."""
        concerned, lost = np.unique(self.locate(numbers)["document"], return_counts=True)
        all_segments = self._sums(np.minimum(self.tokens, 1))[concerned]
        return int(np.count_nonzero(all_segments == lost)), int(self.tokens[numbers].sum(dtype=np.int64))


def documents_in(ranges: NDArray[np.int64], local: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Convert numbers within ranges to document numbers: ranges [[3, 5], [9, 11]], local [0, 2, 3] -> [3, 9, 10]."""
    counts = np.diff(ranges).reshape(-1)
    ends = np.cumsum(counts)
    of_range = np.searchsorted(ends, local, side="right")
    documents: NDArray[np.int64] = ranges[:, 0][of_range] + local - (ends - counts)[of_range]
    return documents


def cut_documents(lengths: NDArray[np.int32], max_len: int, long: LongPolicy, *, align: int = 1) -> Segments:
    """Cut documents by the long-document policy; `lengths` has their numbers of tokens.

    `split` cuts a document every max_len tokens, `truncate` keeps the first max_len tokens, and `drop` leaves long
    documents out. With `error`, no document may be long. Every policy leaves out empty documents. Extents are rounded
    up to a multiple of `align`, a divisor of max_len.
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


def cut_lengths_of(
    options: PackOptions,
    lengths: NDArray[np.int32],
    ranges: NDArray[np.int64] | None = None,
    left_out: NDArray[np.bool_] | None = None,
) -> Segments:
    """Cut documents into segments by the options; see `cut_documents`.

    `ranges` is as in `Segments`. Documents in the mask `left_out` get no segments; none of them may be empty. Raises a
    SourceError with the number of the first document that is longer than max_len and must not be cut.
    """
    taken = lengths if left_out is None else np.where(left_out, np.int32(0), lengths)
    _refuse_long(options, taken, ranges)
    segments = cut_documents(taken, options.max_len, options.long, align=options.align)
    dropped = {**segments.dropped, **({"untrained": (0, 0)} if options.untrained == "drop" else {})}
    if left_out is not None:  # documents left out were counted as empty
        gone = lengths[left_out]
        reason = "not_held_out" if options.is_holdout else "held_out"
        dropped |= {"empty": (dropped["empty"][0] - len(gone), 0), reason: (len(gone), int(gone.sum(dtype=np.int64)))}
    return replace(segments, lengths=lengths, ranges=ranges, dropped=dropped)


def _refuse_long(options: PackOptions, lengths: NDArray[np.int32], ranges: NDArray[np.int64] | None) -> None:
    """Raise a SourceError if a document is longer than a row and the options do not allow cutting it."""
    if options.long not in ("split", "error") or (options.long == "split" and not options.never_splits):
        return
    is_long = lengths > options.max_len
    if not is_long.any():
        return
    first, count = int(is_long.argmax()), np.count_nonzero(is_long)
    document = int(_numbers(ranges, np.array([first]))[0])
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


def _numbers(ranges: NDArray[np.int64] | None, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert document numbers within ranges to numbers in the source; without ranges, return them unchanged."""
    return local if ranges is None else documents_in(ranges, local)


def require_segments(account: Account | None, segments: int, options: PackOptions) -> Account:
    """Return the account of a source. Raises a SourceError with the reason if it has no segments to pack."""
    if account is None:
        raise SourceError("nothing to pack: there are no documents")
    if segments:
        return account
    dropped = account.documents_dropped
    if dropped.get("untrained"):
        raise SourceError(
            f"nothing to pack: none of {account.documents:,} documents has a trained token; check the labels"
        )
    for reason, remedy in (("held_out", "fewer"), ("not_held_out", "more")):
        if left := dropped.get(reason):
            raise SourceError(
                f"nothing to pack: of {account.documents:,} documents, {left:,} are {reason.replace('_', ' ')}, and "
                f"none of the others can be packed: hold out {remedy} (--holdout is {options.holdout})"
            )
    raise SourceError(
        f"nothing to pack: of {account.documents:,} documents, {dropped['empty']:,} are empty and "
        f"{dropped['too_long']:,} longer than max_len {options.max_len:,} (--long {options.long}); "
        "check the source, --max-len and --long"
    )


def _split_at_exchanges(segments: Segments, starts: ValueColumn, describe: Callable[[int], str]) -> Segments:
    """Split long documents where exchanges begin. `starts` has the list of these positions for each document."""
    documents = np.flatnonzero(segments.kept_lengths() > segments.max_len)
    if not len(documents):
        return segments
    found = starts.at(_numbers(segments.ranges, documents))
    try:
        found = found.cast(pa.list_(pa.int32()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise SourceError(f"'{EXCHANGE_STARTS}' holds {found.type}: give lists of positions") from None
    places = found.flatten()  # null lists add no values
    if places.null_count:
        raise SourceError(f"'{EXCHANGE_STARTS}' holds a null position; give those where the exchanges of a chat begin")
    offsets = np.append(0, np.cumsum(as_numpy(found.value_lengths().fill_null(0)), dtype=np.int64))
    lengths = segments.lengths[documents]
    cuts = np.empty(int(2 * (lengths // segments.max_len).sum(dtype=np.int64)), np.int32)
    counts, wrong = cuts_before(lengths, offsets, as_numpy(places), segments.max_len, cuts)
    if wrong >= 0:
        where = f"{describe(int(documents[wrong]))}: its '{EXCHANGE_STARTS}'"
        raise SourceError(f"{where} are not in order inside its {lengths[wrong]:,} tokens")
    return segments.cut_at(np.repeat(documents, counts), cuts[: counts.sum()])


@jit_if_large
def cuts_before(
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int64],
    starts: NDArray[np.int32],
    max_len: int,
    out_cuts: NDArray[np.int32],
) -> tuple[NDArray[np.int64], int]:
    """Cut documents before exchanges, with segments as long as max_len allows; longer exchanges are cut every max_len.

    The exchanges of document i begin at starts[offsets[i]:offsets[i + 1]], ascending, from 0 to its length. Example:
    length 17 and starts [2, 3, 6] with max_len 4 give the cuts 3, 6, 10 and 14. Two consecutive segments together are
    longer than a row, so a document has at most 2 * (length // max_len) cuts.

    Writes the positions of the cuts. Returns the number of cuts of each document, int64, and the first document whose
    starts do not ascend, or -1.
    """
    counts = np.zeros(len(lengths), np.int64)
    used = 0
    for document in range(len(lengths)):
        first = used
        begin = np.int64(0)
        last = np.int64(0)  # end of the segment's last exchange
        for i in range(offsets[document], offsets[document + 1] + 1):
            place = np.int64(starts[i]) if i < offsets[document + 1] else np.int64(lengths[document])
            if place < last or place > lengths[document]:
                return counts, document
            if place - begin > max_len and last > begin:
                begin = last
                out_cuts[used] = begin
                used += 1
            while place - begin > max_len:
                begin += max_len
                out_cuts[used] = begin
                used += 1
            last = place
        counts[document] = used - first
    return counts, -1


def _without_untrained(
    segments: Segments, table: TokenTable, options: PackOptions, describe: Callable[[int], str]
) -> Segments:
    """Leave out segments without trained tokens, if the option `untrained` drops them.

    Some algorithms cut documents later, at the ends of rows. With these, only documents without any trained tokens are
    left out.
    """
    if options.untrained in ("keep", "keep-all"):
        return segments
    if not options.keeps_whole:
        documents = np.flatnonzero(segments.kept_lengths())
        lengths = segments.kept_lengths()[documents].astype(np.int64)
        gone = documents[_trained(table, documents, np.zeros_like(lengths), lengths) == 0]
        heads = np.flatnonzero(np.isin(segments.heads, gone)) + segments.documents
        numbers = np.concatenate([gone, heads])
    else:
        numbers = segments.numbers()
        found = segments.locate(numbers)
        starts, lengths = found["start"].astype(np.int64), found["length"].astype(np.int64)
        numbers = numbers[_trained(table, found["document"], starts, lengths) == 0]
    if options.untrained == "error" and len(numbers):
        where = describe(int(segments.locate(numbers[:1])["document"][0]))
        raise SourceError(
            f"{len(numbers):,} segments have no trained token, the first of them in {where}: "
            "correct their labels, or leave them out with --untrained drop"
        )
    return segments.without_untrained(numbers) if len(numbers) else segments


def _trained(
    table: TokenTable, documents: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count the trained tokens of each segment, except its first token: int64, shape (segments,)."""
    trained = lengths - 1
    if table.labels is None:
        return trained
    lists = table.lists_of(documents)
    for part in runs(lengths):
        ends = np.cumsum(lengths[part])
        places = ends - lengths[part]
        labels = np.empty(int(ends[-1]), np.int32)
        with reading("labels"):
            columns, read = fetched_spans({"labels": table.labels}, lists[part], starts[part], lengths[part])
        spans = Spans(read, starts[part], lengths[part], places)
        bad = gather(columns["labels"].addresses, spans, NO_LOSS, labels)
        if bad < 0:  # labels out of range are reported later, when their rows are written
            labels[places] = NO_LOSS
            trained[part] = count_trained(places, labels)
    return trained


CHUNK = 1 << 19
"""Number of documents per chunk in a pass over all documents."""


_READ_TOGETHER = 1 << 18  # number of documents whose lengths are looked up together


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentReader:
    """Cuts ranges of documents into segments. Can be pickled."""

    options: PackOptions
    documents: int

    source: Documents | None = None
    """Documents of a mapped source; None if only lengths are known."""

    lengths: NDArray[np.int32] | None = None
    """Number of tokens of each document, in memory or mapped, shape (documents,); None: look them up in the source."""

    starts: ValueColumn | None = None
    """Starts of the exchanges of chats, used without a source; None if unknown."""

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of ranges (first document, one after the last), range by range.

        `ranges` is int64, shape (ranges, 2), ascending. Raises a SourceError for a document that the options forbid.
        """
        return self._cut(self.read_lengths(ranges), ranges)

    def all_segments(self) -> Segments:
        """Cut all documents. Raises a SourceError if nothing is left to pack, and in the cases of `segments`."""
        lengths = self.lengths
        if lengths is None:
            lengths = self.read_lengths(np.array([[0, self.documents]]))
        segments = self._cut(lengths)
        require_segments(segments.account, int(segments.histogram.sum()), self.options)
        return segments

    def _cut(self, lengths: NDArray[np.int32], ranges: NDArray[np.int64] | None = None) -> Segments:
        """Cut documents of these lengths, by default all. Reads labels and contents only if the options need them."""
        options, source, table = self.options, self.source, None

        def describe(local: int) -> str:
            document = int(_numbers(ranges, np.array([local]))[0])
            return f"document {document}" if source is None else source.describe(document)

        if source is not None and options.reads_to_cut:
            table = replace(source.table, lengths=lengths, lists=_numbers(ranges, np.arange(len(lengths))))
        gone = None if table is None else left_out(table, options, describe)
        segments = cut_lengths_of(options, lengths, ranges, gone)
        starts = self.starts if source is None else source.table.extra.get(EXCHANGE_STARTS)
        if starts is not None and options.splits_at_exchanges:
            segments = _split_at_exchanges(segments, starts, describe)
        return segments if table is None else _without_untrained(segments, table, options, describe)

    def read_lengths(self, ranges: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the lengths of the documents of ranges, in order; int32."""
        if self.lengths is not None:
            parts = [self.lengths[first:last] for first, last in ranges.tolist()]
            return np.concatenate(parts) if parts else np.zeros(0, np.int32)
        assert self.source is not None
        lengths = np.empty(int(np.diff(ranges).sum()), np.int32)
        for first in range(0, len(lengths), _READ_TOGETHER):  # document numbers take twice the memory of lengths
            out = lengths[first : first + _READ_TOGETHER]
            documents = documents_in(ranges, np.arange(first, first + len(out)))
            lengths_of(self.source.table.input_ids.addresses, documents, out)
        return lengths


class SegmentChunk(NamedTuple):
    """Consecutive documents in a pass over all documents."""

    account: Account
    segments: Segments
    histogram: NDArray[np.int64]
    values: NDArray[Any]
    """Result of `values_of` for the segments, see `each_chunk`."""


def each_chunk(
    reader: SegmentReader,
    values_of: Callable[[Segments], NDArray[Any]],
    threads: int,
    first: int = 0,
    last: int | None = None,
) -> Iterator[SegmentChunk]:
    """Cut documents `first` to `last` - 1, by default all, chunk by chunk in threads; yield the chunks in order."""
    last = reader.documents if last is None else last

    def read(begin: int) -> SegmentChunk:
        segments = reader.segments(np.array([[begin, min(begin + CHUNK, last)]]))
        return SegmentChunk(segments.account, segments, segments.histogram, values_of(segments))

    with closing(DecodePool(threads)) as pool:
        yield from pool.in_order(read, range(first, last, CHUNK))


def trained_cut_off(documents: Documents, options: PackOptions, threads: int) -> int | None:
    """Count the trained tokens that truncation cuts off. Returns None without truncation or labels."""
    if options.long != "truncate" or not options.labels or documents.table.labels is None:
        return None
    options = replace(options, untrained="keep")  # also counts documents that are left out as untrained
    reader = SegmentReader(options=options, documents=documents.identity.documents, source=documents)

    def counted(segments: Segments) -> NDArray[np.int64]:
        kept = segments.kept_lengths().astype(np.int64)
        cut = np.flatnonzero((kept > 0) & (kept < segments.lengths))
        starts = kept[cut] - 1  # `_trained` does not count the first token of a segment
        return _trained(documents.table, _numbers(segments.ranges, cut), starts, segments.lengths[cut] - starts)

    return sum(int(chunk.values.sum()) for chunk in each_chunk(reader, counted, threads))
