"""Compare the rows of a packed dataset with its source: every document, token and label."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.arrow import format_value
from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.gather import Spans, TokenColumn, gather, held_spans, mask_context
from packer.options import PackOptions
from packer.pipeline.recounting import SourceCounts
from packer.pipeline.segments.packable_segments import cut_table
from packer.plan.segments import Segments, context_of
from packer.progress import Progress
from packer.shards.kept_columns import KeptValues, same_values, tokens_at
from packer.shards.manifest import Manifest
from packer.sources.columns.column_types import cast, join
from packer.sources.documents import TokenTable, reading
from packer.sources.packed.packed_rows import PackedRows
from packer.sources.packed.segment_index import SegmentIndex, SortedSegments, sorted_for_now
from packer.sources.source_order import SourceOrder
from packer.stores import AnyPath

_TOGETHER = 1 << 18  # segments of the source, approximately, that are compared with those of the rows
_COMPARED_TOGETHER = 4 << 20  # tokens
_SEGMENTS_TOGETHER = 1 << 16  # whose kept values may be long


def compare_with_source(
    folder: AnyPath,
    manifest: Manifest,
    source: SourceOrder,
    progress: Progress,
) -> Generator[str, None, bool]:
    """Yield a sentence for each difference between the rows and the source; the rows should hold all of it once.

    If the rows have no faults, the totals of the manifest are counted again. Without groups, resident memory does not
    grow with the number of documents: the segments of the rows are sorted in a temporary folder (`sorted_for_now`),
    and then read for one part of the source after the other.

    Args:
        folder: packed dataset, itself verified before.
        manifest: its manifest, or that of one of its generations, whose documents are numbered from 0 here.
        source: source that was packed; of a mixture, the documents that were taken.
        progress: callback, called as `progress("compare", done, total)`, in tokens.

    Returns:
        Whether rows and totals agree with the source.

    Raises:
        PackerError: a document of the source is wrong, a file cannot be read, or the temporary files cannot be written.
    """
    options = manifest.options
    algorithm = get_algorithm(options.algorithm)
    keeps_whole = not isinstance(algorithm, OrderAlgorithm) or algorithm.keeps_whole
    counts = SourceCounts(options, keeps_whole=keeps_whole)
    documents = tokens = faults = 0

    def number_documents(segments: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
        return source.numbers(segments) - manifest.first.document

    rows = PackedRows.of(folder, manifest, options.kept, options.stored_keep_tokens)
    index = SegmentIndex(
        packed=folder, manifest=manifest, folder=folder, number_documents=number_documents, is_source=False
    )
    with sorted_for_now(index) as index:
        tables = source.tables()
        for table in tables:
            differences = TableDifferences(options, source, rows)
            for part in _parts(table, options.max_len):
                found = index.read(part.first_document, part.first_document + len(part.lengths))
                policy = segments = cut_table(part, options, source.describe)
                if not keeps_whole:
                    segments = policy.cut_at(*_cuts(found, part.first_document, policy))
                differences.compare(ExpectedSegments.of(segments), found, part)
                if differences.in_structure:
                    break
                counts.add(part, policy, segments, found)
            documents += len(table.lengths)
            if differences.in_structure:
                yield from _other_number(manifest, source, documents, tables)
            for fault in differences.faults():
                faults += 1
                yield fault
            if differences.in_structure:
                return False
            tokens += int(table.lengths.sum(dtype=np.int64))
            progress("compare", tokens, manifest.totals.tokens)
        unexpected = len(index.read(documents, np.iinfo(np.int64).max).documents)
        if unexpected:
            yield from _other_number(manifest, source, documents, tables)
            yield f"{unexpected:,} segments in the rows are not in the source"
            return False
    if not faults:
        for fault in counts.faults(manifest, source.rejected(), source.describe):
            faults += 1
            yield fault
    return not faults


def _other_number(manifest: Manifest, source: SourceOrder, done: int, rest: Iterator[TokenTable]) -> Iterator[str]:
    """Yield a sentence if a source does not have as many documents as were packed: it may be another source.

    Args:
        manifest: manifest of the dataset.
        source: the source.
        done: documents that have been read.
        rest: tables that follow, read only to count them; an error in them must not hide a difference that was found.
    """
    found, packed = source.documents, manifest.totals.documents
    with suppress(PackerError):
        found = done + sum(len(table.lengths) for table in rest) if found is None else found
        if found != packed:
            yield f"the source has {found:,} documents, the manifest says {packed:,}"


def _parts(table: TokenTable, max_len: int) -> Iterator[TokenTable]:
    """Split a table into parts of even numbers of documents that have about as many segments as are read together."""
    segments = np.cumsum(table.lengths // max_len + 1, dtype=np.int64)
    first, count = 0, len(table.lengths)
    while first < count:
        before = int(segments[first - 1]) if first else 0
        last = int(np.searchsorted(segments, before + _TOGETHER, side="right"))
        last = min(max(last - (last - first) % 2, first + 2), count)
        lists = table.lists_of(np.arange(first, last))
        yield replace(
            table, lengths=table.lengths[first:last], lists=lists, first_document=table.first_document + first
        )
        first = last


def _cuts(
    found: SortedSegments, first_document: int, segments: Segments
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (documents, starts) at which the rows cut the documents of a table, as `Segments.cut_at` takes them.

    Starts are counted from the first kept token of a document. Impossible cuts are left out: the comparison reports
    such segments.

    Args:
        found: segments that the rows have of the documents.
        first_document: number of the first document.
        segments: the documents, cut by the long-document policy.
    """
    documents = found.documents - first_document
    starts = found.starts - segments.kept_starts(documents)
    is_cut = (starts > 0) & (starts < segments.kept_lengths()[documents])
    is_cut[1:] &= (documents[1:] != documents[:-1]) | (starts[1:] != starts[:-1])
    return documents[is_cut], starts[is_cut].astype(np.int32)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedSegments:
    """Segments of consecutive documents of the source, by document and start; int64 arrays of shape (segments,)."""

    documents: NDArray[np.int64]
    """Documents of the segments, counted from the first of these documents."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    context: NDArray[np.int64]
    """Tokens at the start of the segments that have no loss."""

    @classmethod
    def of(cls, segments: Segments) -> ExpectedSegments:
        """Sort segments by document and start."""
        documents, starts, lengths = segments.locate(segments.numbers())
        order = np.lexsort((starts, documents))
        documents, starts, lengths = documents[order], starts[order], lengths[order]
        return cls(documents=documents, starts=starts, lengths=lengths, context=context_of(starts, segments.overlap))

    def __len__(self) -> int:
        return len(self.documents)


class TableDifferences:
    """First differences between a table of the source, which is compared part by part, and rows.

    If segments differ, the first document whose segments differ is reported. Otherwise, the first difference in each
    kept column is reported, and the first in the tokens, or in the labels if the tokens are equal.
    """

    def __init__(self, options: PackOptions, source: SourceOrder, rows: PackedRows) -> None:
        self._rows = rows
        self._kept_names = (*options.stored_keep_tokens, *options.kept)
        self._describe = source.describe
        self._structure: str | None = None
        self._kept: dict[str, str] = {}  # a sentence per column that differs
        self._tokens: dict[str, str] = {}

    @property
    def in_structure(self) -> bool:
        """Whether segments differ in their documents, starts or lengths."""
        return self._structure is not None

    def faults(self) -> list[str]:
        """Return a sentence for each difference to report."""
        if self._structure is not None:
            return [self._structure]
        kept = [self._kept[name] for name in self._kept_names if name in self._kept]
        return kept + [self._tokens[name] for name in ("input_ids", "labels") if name in self._tokens][:1]

    def compare(self, expected: ExpectedSegments, found: SortedSegments, part: TokenTable) -> None:
        """Compare the next part of the table.

        Args:
            expected: segments of the documents of the part.
            found: segments that the rows have of them.
            part: the documents.
        """
        self._compare_structure(expected, found, part)
        if self.in_structure:
            return
        ends = np.cumsum(expected.lengths)
        begin = 0
        while begin < len(expected):
            before = ends[begin] - expected.lengths[begin]
            end = max(begin + 1, int(np.searchsorted(ends, before + _COMPARED_TOGETHER, side="right")))
            here = slice(begin, min(end, begin + _SEGMENTS_TOGETHER))
            pieces = _Pieces(
                rows=self._rows,
                part=part,
                segments=found.of(here),
                lists=part.lists_of(expected.documents[here]),
                context=expected.context[here],
                places=ends[here] - expected.lengths[here] - before,
            )
            columns = [column for column in (part.input_ids, part.labels) if column is not None]
            columns += [part.extra[name].addresses() for name in self._rows.kept_tokens]
            segments = pieces.segments
            with reading("the source"), held_spans(columns, pieces.lists, segments.starts, segments.lengths):
                self._compare_kept(pieces)
                self._compare_tokens(pieces)
            begin = here.stop

    def _compare_structure(self, expected: ExpectedSegments, found: SortedSegments, part: TokenTable) -> None:
        documents = expected.documents + part.first_document
        columns = [documents, expected.starts, expected.lengths]
        short = min(len(expected), len(found.documents))
        differs = np.zeros(short, bool)
        for one, other in zip(columns, found, strict=False):
            differs |= one[:short] != other[:short]
        at = int(differs.argmax()) if differs.any() else short
        if at < max(len(expected), len(found.documents)):
            first = min(int(each[at]) for each in (documents, found.documents) if at < len(each))
            self._structure = (
                f"{self._describe(first)} is in the source, but missing from the rows, repeated or cut elsewhere there"
            )

    def _compare_kept(self, pieces: _Pieces) -> None:
        for name in self._kept_names:
            if name in self._kept:
                continue
            expected, found = pieces.kept(name)
            at = _difference(expected, found)
            if at is not None:
                segment = at if name in self._rows.kept else int(np.searchsorted(pieces.places, at, side="right")) - 1
                which = self._describe(int(pieces.segments.documents[segment]))
                values = format_value(expected[at]), format_value(found[at])
                self._kept[name] = f"{which}: {name} is {values[0]} in the source, {values[1]} in the rows"

    def _compare_tokens(self, pieces: _Pieces) -> None:
        for name, column in self._rows.tokens.items():
            if name in self._tokens:
                return
            fault = self._token_fault(pieces, name, column)
            if fault is not None:
                self._tokens[name] = fault
                return

    def _token_fault(self, pieces: _Pieces, name: str, column: TokenColumn) -> str | None:
        part, places, segments = pieces.part, pieces.places, pieces.segments
        origin = part.labels if name == "labels" and part.labels is not None else part.input_ids
        expected, found = np.empty(pieces.size, np.int32), np.empty(pieces.size, np.int32)
        bad = gather(origin.addresses, pieces.in_source, NO_LOSS if name == "labels" else 0, expected)
        if bad >= 0:
            return f"{self._describe(int(segments.documents[bad]))}: {name} of the source is out of range"
        gather(column.addresses, pieces.in_rows, NO_LOSS, found)
        if name == "labels":
            mask_context(places, pieces.context, NO_LOSS, expected)
        differ = np.flatnonzero(expected != found)
        if not len(differ):
            return None
        segment = int(np.searchsorted(places, differ[0], side="right")) - 1
        position = int(segments.starts[segment] + differ[0] - places[segment])
        return (
            f"{self._describe(int(segments.documents[segment]))}: {name} at position {position} is "
            f"{expected[differ[0]]} in the source, {found[differ[0]]} in row {pieces.in_rows.lists[segment]}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pieces:
    """Segments whose values are compared together; arrays have the shape (segments,)."""

    rows: PackedRows
    part: TokenTable
    segments: SortedSegments
    """Segments in the rows, with the starts and lengths that they should have."""

    lists: NDArray[np.int64]
    """Lists of the source that the segments come from."""

    context: NDArray[np.int64]
    places: NDArray[np.int64]
    """Positions of the segments among the compared values."""

    @property
    def size(self) -> int:
        """Number of compared values."""
        return int(self.segments.lengths.sum())

    @property
    def in_source(self) -> Spans:
        """Spans that copy the values from columns of the source."""
        return Spans(self.lists, self.segments.starts, self.segments.lengths, self.places)

    @property
    def in_rows(self) -> Spans:
        """Spans that copy the values from the rows."""
        rows, offsets = np.divmod(self.segments.places, self.rows.manifest.max_len)
        return Spans(rows, offsets, self.segments.lengths, self.places)

    def kept(self, name: str) -> tuple[pa.Array, pa.Array]:
        """Return the values of a kept column in the source and in the rows."""
        column = self.part.extra[name]
        if name in self.rows.kept:
            values = KeptValues.of({name: column}, self.lists)
            expected = values.column(name, self.lists, np.zeros(len(self.lists), bool))
            return expected, self.rows.kept_at(name, self.in_rows.lists, self.segments.numbers)
        origin = column.addresses()
        return (
            tokens_at(origin, column.type.value_type, self.in_source, self.size),
            tokens_at(self.rows.token_columns[name], self.rows.kept_tokens[name], self.in_rows, self.size),
        )


def _difference(expected: pa.Array, found: pa.Array) -> int | None:
    """Return the first position where the values of two arrays differ, or None; 1 and 1.0 are equal.

    Types may differ: the values of a part of the source may have a narrower type than those of the whole.
    """
    kind = join(expected.type, found.type)
    if kind is not None:
        try:
            return same_values(cast(expected, kind), cast(found, kind))
        except pa.ArrowInvalid:  # some value does not fit the joint type: compare one by one
            if len(expected) == 1:
                return 0
    elif len(expected) == 1:
        return 0 if expected.null_count + found.null_count < 2 else None
    parts = ((expected.slice(at, 1), found.slice(at, 1)) for at in range(len(expected)))
    return next((at for at, pair in enumerate(parts) if _difference(*pair) is not None), None)
