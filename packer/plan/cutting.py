"""Cut documents as the options say: at max_len or between turns, without those that are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.arrow import as_numpy
from packer.checkpoints import Checkpoints
from packer.column_names import NO_LOSS
from packer.engine import DecodePool, Engine
from packer.errors import SourceError
from packer.inputs.documents import reading
from packer.inputs.meanings import TURN_STARTS
from packer.inputs.token_tables import TokenTable
from packer.manifest_fields import Account
from packer.options import CutOptions, PackOptions
from packer.plan.segments import Segments, cut_documents, documents_in
from packer.progress import Progress, silent
from packer.shards.writer import KeptValues
from packer.sources.content_hashes import left_out
from packer.sources.read_documents import Documents
from packer.token_memory import Spans, count_trained, fetched_spans, gather, lengths_of, list_lengths

_CHECKED_TOGETHER = 4 << 20  # labels


def cut_lengths_of(
    options: CutOptions,
    lengths: NDArray[np.int32],
    ranges: NDArray[np.int64] | None = None,
    left_out: NDArray[np.bool_] | None = None,
) -> Segments:
    """Cut documents into segments, as the options say; see `cut_documents`.

    `ranges` are those of `Segments`. Documents that are `left_out`, none of which is empty, have no segments. Raises a
    SourceError with the number of the first document that is longer than max_len and must not be cut.
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
        document = int(documents_in(ranges, np.array([document]))[0])
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


def _counts(tokens: NDArray[np.int32]) -> tuple[int, int]:
    return len(tokens), int(tokens.sum(dtype=np.int64))


def cut_table(
    table: TokenTable,
    options: CutOptions,
    describe: Callable[[int], str],
    ranges: NDArray[np.int64] | None = None,
) -> Segments:
    """Apply the long-document policy to documents, and leave out untrained segments if the options say so.

    Labels and the column `turn_starts` are read if the options need them. `ranges` are the documents of the source that
    the table has, by default all.

    Raises a SourceError if the options forbid a document that is too long, cannot be split at turns, or has an
    untrained segment.
    """
    segments = cut_lengths_of(options, table.lengths, ranges, left_out(table, options, describe))
    return _without_untrained(_split_at_turns(segments, table, options, describe), table, options, describe)


def require_segments(account: Account | None, segments: int, options: CutOptions) -> Account:
    """Return the account of a source, or raise a SourceError with the reason why it has no segments to pack."""
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
                f"nothing of the others can be packed: hold out {remedy} (--holdout is {options.holdout})"
            )
    raise SourceError(
        f"nothing to pack: of {account.documents:,} documents, {dropped['empty']:,} are empty and "
        f"{dropped['too_long']:,} longer than max_len {options.max_len:,} (--long {options.long}); "
        "check the source, --max-len and --long"
    )


def _split_at_turns(
    segments: Segments, table: TokenTable, options: CutOptions, describe: Callable[[int], str]
) -> Segments:
    """Split long documents where turns begin, each piece as long as possible, if the options say so."""
    documents = np.flatnonzero(segments.kept_lengths() > options.max_len)
    if not options.split_at_turns or not len(documents):
        return segments
    offsets, starts = _turn_starts(table, documents)
    counts, cuts, wrong = cuts_between(table.lengths[documents], offsets, starts, options.max_len)
    if wrong >= 0:
        document = int(documents[wrong])
        turns = starts[offsets[wrong] : offsets[wrong + 1]]
        bounds = np.concatenate([[0], turns, table.lengths[document : document + 1]])
        where = describe(document)
        if (np.diff(bounds) < 0).any():
            raise SourceError(f"{where}: its '{TURN_STARTS}' are not in order inside its {bounds[-1]:,} tokens")
        note = " (turns that the chat template does not separate count as one)" if options.tokenizer is not None else ""
        raise SourceError(
            f"{where} has a turn of {np.diff(bounds).max():,} tokens{note} and max_len is {options.max_len:,}: "
            "choose a larger --max-len, --split-at tokens, or --long drop or truncate"
        )
    return segments.cut_at(np.repeat(documents, counts), cuts)


@jit_if_large
def cuts_between(
    lengths: NDArray[np.int32], offsets: NDArray[np.int64], starts: NDArray[np.int32], max_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Cut documents at allowed positions only, each piece as long as max_len allows.

    Document i may be cut at starts[offsets[i]:offsets[i + 1]], ascending, from 0 to its length. Of length 9 and
    positions [2, 3, 6] with max_len 4, the cuts are 3 and 6.

    Returns the number of cuts of each document, int64; the positions of the cuts, int32; and the first document
    whose allowed positions do not ascend or are too far apart, or -1.
    """
    counts = np.zeros(len(lengths), np.int64)
    cuts = np.empty(len(starts), np.int32)
    used = 0
    for document in range(len(lengths)):
        begin = np.int64(0)
        last = np.int64(0)  # last position that fits
        before = np.int64(0)
        for i in range(offsets[document], offsets[document + 1] + 1):
            place = np.int64(starts[i]) if i < offsets[document + 1] else np.int64(lengths[document])
            if place < before or place > lengths[document]:
                return counts, cuts, document
            before = place
            if place - begin > max_len:
                if last == begin or place - last > max_len:
                    return counts, cuts, document
                cuts[used] = last
                counts[document] += 1
                used += 1
                begin = last
            last = place
    return counts, cuts[:used].copy(), -1


def _turn_starts(table: TokenTable, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (offsets, starts): the turns of documents[i] begin at starts[offsets[i]:offsets[i + 1]]."""
    lists = table.lists_of(documents)
    kept = KeptValues.of({TURN_STARTS: table.extra[TURN_STARTS]}, lists)
    found = kept.column(TURN_STARTS, lists, np.zeros(len(lists), bool))
    if found.null_count or found.values.null_count:
        raise SourceError(f"'{TURN_STARTS}' holds a null; give every chat the positions where its turns begin")
    offsets = np.concatenate([[0], np.cumsum(list_lengths(found))]).astype(np.int64)
    return offsets, as_numpy(found.flatten().cast(pa.int32()))


def _without_untrained(
    segments: Segments, table: TokenTable, options: CutOptions, describe: Callable[[int], str]
) -> Segments:
    """Leave out segments without trained tokens, if `untrained` in the options says so.

    An algorithm that cuts documents wherever a row ends decides about segments later, so only whole documents without
    trained tokens are left out.
    """
    if options.untrained in ("keep", "keep-all"):
        return segments
    if not options.keeps_whole:
        documents = np.flatnonzero(segments.kept_lengths())
        lengths = segments.kept_lengths()[documents].astype(np.int64)
        gone = documents[~_trained(table, documents, np.zeros_like(lengths), lengths)]
        heads = np.flatnonzero(np.isin(segments.heads, gone)) + segments.documents
        numbers = np.concatenate([gone, heads])
    else:
        numbers = segments.numbers()
        pieces = segments.locate(numbers)
        starts, lengths = pieces["start"].astype(np.int64), pieces["length"].astype(np.int64)
        numbers = numbers[~_trained(table, pieces["document"], starts, lengths)]
    if options.untrained == "error" and len(numbers):
        where = describe(int(segments.locate(numbers[:1])["document"][0]))
        raise SourceError(
            f"{len(numbers):,} segments have no trained token, the first of them in {where}: "
            "correct their labels, or leave them out with --untrained drop"
        )
    return segments.without_untrained(numbers) if len(numbers) else segments


def _trained(
    table: TokenTable,
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return whether each segment has a trained token after its first one: bool, shape (segments,)."""
    trained = lengths > 1
    if table.labels is None:
        return trained
    lists = table.lists_of(documents)
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lists):
        before = ends[first] - lengths[first]
        last = max(first + 1, int(np.searchsorted(ends, before + _CHECKED_TOGETHER, side="right")))
        part = slice(first, last)
        places = ends[part] - lengths[part] - before
        labels = np.empty(int(ends[last - 1] - before), np.int32)
        with reading("labels"):
            columns, read = fetched_spans({"labels": table.labels}, lists[part], starts[part], lengths[part])
        spans = Spans(read, starts[part], lengths[part], places)
        bad = gather(columns["labels"].addresses, spans, NO_LOSS, labels)
        if bad < 0:  # labels out of range are reported when their rows are written
            labels[places] = NO_LOSS
            trained[part] = count_trained(places, lengths[part], labels) > 0
        first = last
    return trained


CHUNK = 1 << 19
"""Documents cut together in a pass over all of them."""


_READ_TOGETHER = 1 << 18  # documents whose lengths are looked up together


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentReader:
    """Cuts ranges of documents into segments. Can be pickled."""

    options: PackOptions
    documents: int

    source: Documents | None = None
    """Documents of a mapped source; None if only their lengths are known."""

    lengths: NDArray[np.int32] | None = None
    """(documents,) tokens of each document, in memory or mapped; None if they are looked up in the source."""

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of some ranges, (first document, one after the last), one range after the other.

        `ranges` is int64, of shape (ranges, 2), ascending. Raises a SourceError for a document that the options forbid.
        """
        lengths = self.read_lengths(ranges)
        if self.source is None or not self.options.reads_to_cut:
            return cut_lengths_of(self.options, lengths, ranges)
        source, documents = self.source, documents_in(ranges, np.arange(len(lengths)))
        part = replace(source.table, lengths=lengths, lists=documents)
        return cut_table(part, self.options, lambda local: source.describe(int(documents[local])), ranges)

    def all_segments(self) -> Segments:
        """Cut all documents; raise a SourceError if nothing is left to pack, and as `segments` does."""
        lengths = self.lengths
        if lengths is None:
            lengths = self.read_lengths(np.array([[0, self.documents]]))
        if self.source is None or not self.options.reads_to_cut:
            segments = cut_lengths_of(self.options, lengths)
        else:
            segments = cut_table(replace(self.source.table, lengths=lengths), self.options, self.source.describe)
        require_segments(segments.account, int(segments.histogram.sum()), self.options)
        return segments

    def read_lengths(self, ranges: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the lengths of the documents of some ranges: int32, in their order."""
        lengths, done = np.empty(int(np.diff(ranges).sum()), np.int32), 0
        for begin, end in ranges.tolist():
            for first in range(begin, end, _READ_TOGETHER):  # their numbers take twice as many bytes
                documents = np.arange(first, min(first + _READ_TOGETHER, end))
                out = lengths[done : done + len(documents)]
                if self.lengths is not None:
                    out[:] = self.lengths[documents]
                elif self.source is not None:
                    lengths_of(self.source.table.input_ids.addresses, documents, out)
                done += len(documents)
        return lengths


class Chunk(NamedTuple):
    """Consecutive documents of a pass over all of them."""

    account: Account
    segments: Segments
    histogram: NDArray[np.int64]
    values: NDArray[Any]
    """What the function of `each_chunk` makes of the segments."""


def each_chunk(
    reader: SegmentReader,
    values_of: Callable[[Segments], NDArray[Any]],
    threads: int,
    first: int = 0,
    last: int | None = None,
) -> Iterator[Chunk]:
    """Cut documents `first` to `last` - 1, by default all, chunk by chunk in some threads; yield chunks in order."""
    last = reader.documents if last is None else last

    def read(begin: int) -> Chunk:
        segments = reader.segments(np.array([[begin, min(begin + CHUNK, last)]]))
        return Chunk(segments.account, segments, segments.histogram, values_of(segments))

    with closing(DecodePool(threads)) as pool:
        yield from pool.in_order(read, range(first, last, CHUNK))


@dataclass(frozen=True, kw_only=True, slots=True)
class Planning:
    """Documents to plan, and what runs the tasks of the plan."""

    reader: SegmentReader

    rows_per_shard: int
    """Largest number of rows of a shard."""

    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    """Store of the results of tasks; a task that has left a checkpoint does not run again."""

    engine: Engine = field(default_factory=Engine)
    progress: Progress = silent
