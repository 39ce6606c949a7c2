"""Cut documents into the segments to be packed, and count what becomes of each document.

A `SegmentReader` cuts any range of documents, without holding those of the whole source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.arrow import as_numpy
from packer.column_names import NO_LOSS
from packer.engine import Engine, each_in_threads
from packer.errors import SourceError
from packer.facts import Account
from packer.gather import Spans, count_trained, gather, held_spans, lengths_of, list_lengths, mask_context
from packer.inputs.document_errors import reading
from packer.inputs.documents import TURN_STARTS
from packer.inputs.token_tables import TokenTable
from packer.notes import Notes
from packer.options import PackOptions
from packer.plan.cutting import cut_lengths_of, cuts_between, items_of
from packer.plan.groups import apart_bound, together_bound
from packer.plan.segments import Segments, context_of, documents_of
from packer.progress import Progress, silent
from packer.shards.kept_columns import KeptValues
from packer.sources.corpus import Documents

_CHECKED_TOGETHER = 4 << 20  # labels


def cut_table(
    table: TokenTable,
    options: PackOptions,
    describe: Callable[[int], str],
    ranges: NDArray[np.int64] | None = None,
) -> Segments:
    """Apply the long-document policy to documents, and leave out untrained segments if the options say so.

    Labels and the column `turn_starts` are read if the options need them. `ranges` are the documents of the source that
    the table has, by default all from its first one on.

    A document that is too long, cannot be split at turns, or has an untrained segment is a SourceError if the
    options say so.
    """
    if ranges is None and table.first_document:
        ranges = np.array([[table.first_document, table.first_document + len(table.lengths)]])
    segments = cut_lengths_of(options, table.lengths, ranges)
    return _without_untrained(_split_at_turns(segments, table, options, describe), table, options, describe)


def cut_by_policy(
    lengths: NDArray[np.int32],
    options: PackOptions,
    *,
    table: TokenTable | None = None,
    describe: Callable[[int], str] = "document {:,}".format,
) -> Segments:
    """Cut all documents of a source by `cut_table`, or by their lengths alone; a SourceError if nothing is left."""
    segments = cut_lengths_of(options, lengths) if table is None else cut_table(table, options, describe)
    require_segments(account_of(segments, options), int(segments.histogram.sum()), options)
    return segments


def account_of(segments: Segments, options: PackOptions) -> Account:
    """Count documents and tokens by what became of them; options add reasons, such as "untrained"."""
    is_dropped, is_truncated = segments.long == "drop", segments.long == "truncate"
    documents_dropped = {
        "empty": segments.empty_documents,
        "too_long": segments.long_documents if is_dropped else 0,
    }
    tokens_dropped = {"too_long": segments.long_tokens if is_dropped else 0}
    if options.pairs:
        documents_dropped["unpaired"] = segments.unpaired_documents
        tokens_dropped["unpaired"] = segments.unpaired_tokens
    if options.untrained == "drop":
        documents_dropped["untrained"] = segments.untrained_documents
        tokens_dropped["untrained"] = segments.untrained_tokens
    with_heads, heads = np.unique(segments.head_documents, return_counts=True)
    return Account(
        documents=segments.documents,
        documents_split=int(np.count_nonzero(heads + (segments.tails[with_heads] > 0) > 1)),
        documents_truncated=segments.long_documents if is_truncated else 0,
        documents_dropped=documents_dropped,
        tokens=int(segments.lengths.sum(dtype=np.int64)),
        tokens_packed=segments.tokens,
        tokens_repeated=segments.repeated,
        tokens_truncated=segments.truncated_tokens,
        tokens_dropped=tokens_dropped,
    )


def items_and_groups(
    segments: Segments, groups: NDArray[np.int32] | None, options: PackOptions
) -> tuple[Segments, NDArray[np.int32] | None]:
    """Return the items that rows are planned with, segments or preference pairs, and the group of each."""
    each = options.documents_each
    return items_of(segments, each), None if groups is None else groups[::each]


def least_rows(items: Segments, groups: NDArray[np.int32] | None, options: PackOptions) -> int:
    """Return a lower bound on the rows of any packing of whole items, segments or pairs, without solving."""
    if groups is not None and options.group_mode == "together":
        return together_bound(items, groups, options.max_items)
    bound = lower_bound(items.histogram, options.max_items)
    return bound if groups is None else max(bound, apart_bound(items, groups))


def require_segments(account: Account | None, segments: int, options: PackOptions) -> Account:
    """Return the account of a source, or raise a SourceError with the reason why it has no segments to pack."""
    if account is None:
        raise SourceError("nothing to pack: there are no documents")
    if not segments:
        raise _nothing_to_pack(account, options)
    return account


def _nothing_to_pack(account: Account, options: PackOptions) -> SourceError:
    """Return an error that says why no segment is left."""
    dropped = account.documents_dropped
    if dropped.get("untrained"):
        return SourceError(
            f"nothing to pack: none of {account.documents:,} documents has a trained token; check the labels"
        )
    return SourceError(
        f"nothing to pack: of {account.documents:,} documents, {dropped['empty']:,} are empty and "
        f"{dropped['too_long']:,} longer than max_len {options.max_len:,} (--long {options.long}); "
        "check the source, --max-len and --long"
    )


def _split_at_turns(
    segments: Segments, table: TokenTable, options: PackOptions, describe: Callable[[int], str]
) -> Segments:
    """Split long documents where turns begin, each piece as long as possible, if `split_at` is "turns"."""
    documents = np.flatnonzero(table.lengths > options.max_len)
    if options.split_at != "turns" or not len(documents):
        return segments
    offsets, starts = _turn_starts(table, documents)
    counts, cuts, wrong = cuts_between(table.lengths[documents], offsets, starts, options.max_len)
    if wrong >= 0:
        document = int(documents[wrong])
        turns = starts[offsets[wrong] : offsets[wrong + 1]]
        bounds = np.concatenate([[0], turns, table.lengths[document : document + 1]])
        where = describe(document + table.first_document)
        if (np.diff(bounds) < 0).any():
            raise SourceError(f"{where}: its '{TURN_STARTS}' are not in order inside its {bounds[-1]:,} tokens")
        note = " (turns that the chat template does not separate count as one)" if options.tokenizer is not None else ""
        raise SourceError(
            f"{where} has a turn of {np.diff(bounds).max():,} tokens{note} and max_len is {options.max_len:,}: "
            "choose a larger --max-len, --split-at tokens, or --long drop or truncate"
        )
    return segments.cut_at(np.repeat(documents, counts), cuts)


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
    segments: Segments, table: TokenTable, options: PackOptions, describe: Callable[[int], str]
) -> Segments:
    """Leave out segments without trained tokens, if `untrained` in the options says so.

    If the algorithm cuts documents wherever a row ends, segments are not known yet, so only whole documents without
    trained tokens are left out.
    """
    if options.untrained == "keep":
        return segments
    if not options.keeps_whole:
        documents = np.flatnonzero(segments.tails)
        starts = segments.kept_starts(documents).astype(np.int64)
        lengths = segments.kept_lengths()[documents].astype(np.int64)
        gone = documents[~_trained(table, documents, starts, lengths, np.ones_like(lengths))]
        heads = np.flatnonzero(np.isin(segments.head_documents, gone)) + segments.documents
        numbers = np.concatenate([gone, heads])
    else:
        numbers = segments.numbers()
        documents, starts, lengths = segments.locate(numbers)
        numbers = numbers[~_trained(table, documents, starts, lengths, context_of(starts, segments.overlap))]
    if options.untrained == "error" and len(numbers):
        where = describe(int(segments.locate(numbers[:1])[0][0]) + table.first_document)
        raise SourceError(
            f"{len(numbers):,} segments have no trained token, the first of them in {where}: "
            "correct their labels, or leave them out with --untrained drop"
        )
    return segments.without(numbers) if len(numbers) else segments


def _trained(
    table: TokenTable,
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    context: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return whether each segment has a trained token after its first `context` tokens: bool, shape (segments,)."""
    trained = lengths > context
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
        spans = Spans(lists[part], starts[part], lengths[part], places)
        with reading("labels"), held_spans([table.labels], *spans[:3]):
            bad = gather(table.labels.addresses, spans, NO_LOSS, labels)
        if bad < 0:  # labels out of range are reported when their rows are written
            mask_context(places, np.minimum(context[part], lengths[part]), NO_LOSS, labels)
            trained[part] = count_trained(places, lengths[part], labels) > 0
        first = last
    return trained


CHUNK = 1 << 19
"""Documents cut together in a pass over all of them; even, so that pairs are not separated."""

_READ_TOGETHER = 1 << 18  # documents whose lengths are looked up together


class SegmentReader(Protocol):
    """Cuts ranges of documents into segments. Can be pickled."""

    @property
    def options(self) -> PackOptions:
        """Options of the pack, which say how documents are cut."""

    @property
    def documents(self) -> int:
        """Number of documents."""

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of some ranges, (first document, one after the last), one range after the other.

        `ranges` is int64, of shape (ranges, 2), ascending. A document that the options do not allow is a
        SourceError.
        """


class Chunk(NamedTuple):
    """Consecutive documents of a pass over all of them."""

    account: Account
    """Counts of documents and tokens by what becomes of them."""

    items: Segments
    """Segments of the documents, or pairs of segments as one."""

    values: NDArray[Any]
    """What the function of `each_chunk` makes of the items."""


def each_chunk(reader: SegmentReader, values_of: Callable[[Segments], NDArray[Any]], threads: int) -> Iterator[Chunk]:
    """Cut all documents, chunk by chunk in some threads, and yield the chunks in order."""

    def read(first: int) -> Chunk:
        segments = reader.segments(np.array([[first, min(first + CHUNK, reader.documents)]]))
        items = items_of(segments, reader.options.documents_each)
        return Chunk(account_of(segments, reader.options), items, values_of(items))

    return each_in_threads(read, range(0, reader.documents, CHUNK), threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planning:
    """Documents to plan, and what runs the tasks of the plan."""

    reader: SegmentReader
    """Reader of the documents."""

    rows_per_shard: int
    """Largest number of rows of a shard."""

    notes: Notes = field(default_factory=Notes)
    """Store of the results of tasks; a task that has left a note does not run again."""

    engine: Engine = field(default_factory=Engine)
    """Engine that runs the tasks."""

    progress: Progress = silent
    """Callback that is told of tasks, as "plan"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthsReader:
    """Reader of documents of which only the lengths are known."""

    lengths: NDArray[np.int32]
    """(documents,) tokens of each document, in memory or mapped from a file."""

    options: PackOptions
    """Options of the pack, which say how documents are cut."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of some ranges; see `SegmentReader`."""
        parts = [self.lengths[first:last] for first, last in ranges]
        lengths = np.array(parts[0]) if len(parts) == 1 else np.concatenate([np.zeros(0, np.int32), *parts])
        return cut_lengths_of(self.options, lengths, ranges)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceReader:
    """Reader of a mapped source, whose lengths are looked up in the mapped files."""

    source: Documents
    """Documents of a mapped source."""

    options: PackOptions
    """Options of the pack, which say how documents are cut."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.source.identity.documents

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of some ranges; see `SegmentReader`."""
        lengths = self._lengths(ranges)
        if self.options.split_at == "tokens" and self.options.untrained == "keep":
            return cut_lengths_of(self.options, lengths, ranges)
        documents = documents_of(ranges, np.arange(len(lengths)))
        table = self.source.table
        part = replace(table, lengths=lengths, lists=table.lists_of(documents), first_document=0)

        def describe(local: int) -> str:
            return self.source.describe(int(documents[local]))

        return cut_table(part, self.options, describe, ranges)

    def _lengths(self, ranges: NDArray[np.int64]) -> NDArray[np.int32]:
        """Look up the lengths of documents, a part at a time, because their numbers take twice as many bytes."""
        table = self.source.table
        lengths = np.empty(int(np.diff(ranges).sum()), np.int32)
        done = 0
        for begin, end in ranges.tolist():
            for first in range(begin, end, _READ_TOGETHER):
                documents = np.arange(first, min(first + _READ_TOGETHER, end))
                out = lengths[done : done + len(documents)]
                lengths_of(table.input_ids.addresses, table.lists_of(documents), out)
                done += len(documents)
        return lengths
