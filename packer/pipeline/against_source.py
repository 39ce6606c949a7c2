"""Compare mapped rows with their source, and count the totals of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.bounds import cut_bound
from packer.algorithms.index_arrays import extents_of
from packer.arrow import as_arrow, as_numpy, format_value, has_dtype
from packer.column_names import NO_LOSS
from packer.errors import PackerError, SourceError
from packer.inputs.arrow_files import ArrowReader
from packer.inputs.column_types import as_plain, cast, cast_to_common_type, join, plain_type
from packer.inputs.documents import Columns, DocumentError, reading
from packer.inputs.mapped_files import MappedFile
from packer.inputs.token_tables import MappedLists, TokenTable, ValueColumn, chunks_with
from packer.manifest_fields import Account
from packer.options import RowOptions
from packer.plan.segments import Segments, cut_documents
from packer.plan.whole_plan import group_totals, together_bound
from packer.shards.check_shards import differences
from packer.shards.manifest import Manifest
from packer.shards.reader import open_shard
from packer.shards.sharing import group_codes, group_fault, group_values
from packer.shards.writer import KeptValues, tokens_at
from packer.sources.segment_index import SortedSegments
from packer.stores import AnyPath
from packer.token_memory import Spans, TokenColumn, gather, held_spans

_COMPARED_TOGETHER = 4 << 20  # tokens
_SEGMENTS_TOGETHER = 1 << 16  # whose kept values may be long


class TableDifferences:
    """First differences between a table of the source, which is compared part by part, and rows.

    If segments differ, the first document whose segments differ is reported. Otherwise, the first difference in each
    kept column is reported, and the first in the tokens, or in the labels if the tokens are equal.
    """

    def __init__(self, options: RowOptions, describe: Callable[[int], str], rows: PackedRows) -> None:
        self._rows = rows
        self._kept_names = (*options.stored_keep_tokens, *options.kept)
        self.describe = describe
        """Function that names a document in messages."""
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

    def compare(self, expected: Segments, found: SortedSegments, part: TokenTable) -> None:
        """Compare the documents of the next part of the table, cut into segments, with those found in the rows."""
        self._compare_structure(expected, found, part)
        if self.in_structure:
            return
        ends, lists = np.cumsum(found.lengths), part.lists_of(found.documents - part.first_document)
        begin, together = 0, _COMPARED_TOGETHER // max([1, *self._rows.widths.values()])
        while begin < len(ends):
            before = ends[begin] - found.lengths[begin]
            end = max(begin + 1, int(np.searchsorted(ends, before + together, side="right")))
            here = slice(begin, min(end, begin + _SEGMENTS_TOGETHER))
            pieces = _Pieces(
                rows=self._rows,
                part=part,
                segments=found.of(here),
                lists=lists[here],
                places=ends[here] - found.lengths[here] - before,
            )
            columns = [column for column in (part.input_ids, part.labels) if column is not None]
            columns += [part.extra[name].addresses for name in self._rows.kept_tokens]
            segments = pieces.segments
            with reading("the source"), held_spans(columns, pieces.lists, segments.starts, segments.lengths):
                self._compare_kept(pieces)
                self._compare_tokens(pieces)
            begin = here.stop

    def _compare_structure(self, expected: Segments, found: SortedSegments, part: TokenTable) -> None:
        pieces = expected.locate(expected.numbers())
        pieces = pieces[np.lexsort((pieces["start"], pieces["document"]))]
        columns = [pieces["document"] + part.first_document, pieces["start"], pieces["length"]]
        short, longer = sorted((len(pieces), len(found.documents)))
        differs = np.zeros(short, bool)
        for one, other in zip(columns, found, strict=False):
            differs |= one[:short] != other[:short]
        at = int(differs.argmax()) if differs.any() else short
        if at < longer:
            first = min(int(each[at]) for each in (columns[0], found.documents) if at < len(each))
            self._structure = (
                f"{self.describe(first)} is in the source, but missing from the rows, repeated or cut elsewhere there"
            )

    def _compare_kept(self, pieces: _Pieces) -> None:
        for name in self._kept_names:
            if name in self._kept:
                continue
            expected, found = pieces.kept(name)
            at = _difference(expected, found)
            if at is not None:
                segment = at if name in self._rows.kept else int(np.searchsorted(pieces.places, at, side="right")) - 1
                which = self.describe(int(pieces.segments.documents[segment]))
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
            return f"{self.describe(int(segments.documents[bad]))}: {name} of the source is out of range"
        gather(column.addresses, pieces.in_rows, NO_LOSS, found)
        if name == "labels":
            expected[places] = NO_LOSS
        differ = np.flatnonzero(expected != found)
        if not len(differ):
            return None
        segment = int(np.searchsorted(places, differ[0], side="right")) - 1
        position = int(segments.starts[segment] + differ[0] - places[segment])
        return (
            f"{self.describe(int(segments.documents[segment]))}: {name} at position {position} is "
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
            expected = KeptValues.of({name: column}, self.lists).column(name, self.lists)
            return expected, self.rows.kept_at(name, self.in_rows.lists, self.segments.numbers)
        origin = column.addresses
        return (
            tokens_at(origin, column.type.value_type, self.in_source, self.size),
            tokens_at(self.rows.token_columns[name], self.rows.kept_tokens[name], self.in_rows, self.size),
        )


class SourceCounts:
    """Totals of a source, added up table by table."""

    def __init__(self, options: RowOptions) -> None:
        self._options = options
        self._account: Account | None = None
        self._policy = np.zeros(options.max_len + 1, np.int64)
        self._groups: list[pa.DictionaryArray] = []  # values of the documents of each table
        self._grouped: list[SortedSegments] = []  # segments in the rows of the documents of each table

    def add(self, table: TokenTable, policy: Segments, segments: Segments, found: SortedSegments) -> None:
        """Count the documents of a table, and the segments that rows have of them.

        `policy` are the segments that the long-document policy makes of them, untrained ones left out, and
        `segments` those in the rows; wrapping cuts elsewhere.
        """
        self._account = segments.account if self._account is None else self._account + segments.account
        self._policy += policy.histogram
        name = self._options.group_by
        if name is not None:
            lists = table.lists_of(np.arange(len(table.lengths)))
            values = KeptValues.of({name: table.extra[name]}, lists).column(name, lists)
            self._groups.append(group_values(values, name))
            self._grouped.append(found)

    def faults(self, manifest: Manifest, rejected: Mapping[str, int], describe: Callable[[int], str]) -> Iterator[str]:
        """Yield a sentence for each total that the source contradicts, and for the first row with wrong groups.

        `rejected` has numbers of rejected documents by reason, which are among the empty ones here.
        """
        totals = manifest.totals
        counted: dict[str, object] = {"documents": 0, "tokens": 0}
        if self._account is not None:
            counted = self._account.to_dict()
            if self._options.on_error == "skip":
                counted = self._account.with_rejected(sum(rejected.values())).to_dict()
                counted["documents_rejected"] = dict(rejected)
        others = [
            f"the source has {counted[what]:,} {what}, the manifest says {recorded:,}"
            for what, recorded in (("documents", totals.documents), ("tokens", totals.tokens))
            if counted[what] != recorded
        ]
        yield from others or differences(totals, counted, "the source")
        if self._groups:
            yield from self._group_faults(manifest, describe)
        elif not self._options.keeps_whole:
            bound = cut_bound(self._policy, self._options.max_segments)
            yield from differences(totals, {"lower_bound": bound}, "the source")

    def _group_faults(self, manifest: Manifest, describe: Callable[[int], str]) -> Iterator[str]:
        options, totals = self._options, manifest.totals
        groups = _joined(self._groups)
        documents, _, lengths, places, _ = map(np.concatenate, zip(*self._grouped, strict=True))
        of_segments, rows = groups.take(as_arrow(documents)), places // manifest.max_len
        fault = group_fault(rows, of_segments, manifest.options, lambda at: describe(int(documents[at])))
        if fault is not None:
            yield f"row {fault[0]} {fault[1]}"
        extents = extents_of(lengths, options.align)
        segments = cut_documents(extents.astype(np.int32, copy=False), options.max_len, "error")
        ungrouped = totals.groups.rows_ungrouped if totals.groups is not None else 0  # depends on the algorithm
        counted = group_totals(group_codes(groups), ungrouped)
        yield from differences(totals, {"groups": counted.to_dict()}, "the source")
        bound = together_bound(segments, group_codes(of_segments), options.max_segments)
        yield from differences(totals, {"lower_bound": bound}, "the source")


def _difference(expected: pa.Array, found: pa.Array) -> int | None:
    """Return the first position where the values of two arrays differ, or None; 1 and 1.0 are equal, as are two NaN.

    Types may differ: the values of a part of the source may have a narrower type than those of the whole.
    """
    kind = join(expected.type, found.type)
    with suppress(pa.ArrowInvalid):  # some value does not fit the joint type: compare one by one
        if kind is not None:
            expected, found = cast(expected, kind), cast(found, kind)
            if expected.equals(found):
                return None
    if expected.type == found.type and has_dtype(found.type) and not expected.null_count + found.null_count:
        one, other = (as_numpy(each).reshape(len(found), -1) for each in (expected, found))
        differ = np.flatnonzero(((one != other) & ((one == one) | (other == other))).any(axis=1))
        return int(differ[0]) if len(differ) else None
    pairs = enumerate(zip(expected, found, strict=True))
    return next((at for at, (one, other) in pairs if not _is_same(one, other)), None)


def _is_same(one: pa.Scalar, other: pa.Scalar) -> bool:
    """Whether two values are equal; NaN equals NaN, also inside a nested value."""
    if one.equals(other):
        return True
    try:
        values = one.as_py(), other.as_py()
    except (OverflowError, ValueError):  # a date outside Python's range
        return False
    return bool(values[0] == values[1]) or repr(values[0]) == repr(values[1])


def _joined(groups: list[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Join the groups of the parts of a source; a SourceError if no type holds all values."""
    try:
        values = cast_to_common_type([part.dictionary for part in groups], "group_by")
    except DocumentError as fault:
        raise SourceError(fault.message) from None
    return pa.concat_arrays(
        [pa.DictionaryArray.from_arrays(part.indices, each) for part, each in zip(groups, values, strict=True)]
    )


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Mapped rows of a packed dataset; each is a list of max_len tokens."""

    folder: AnyPath
    manifest: Manifest
    """Its manifest."""

    shards: tuple[MappedFile, ...]
    kept: Mapping[str, pa.DataType]
    """Types of the kept columns to read that have a value per segment."""

    kept_tokens: Mapping[str, pa.DataType]
    """Types of the values of the kept columns to read that have a value per token."""

    @classmethod
    def of(cls, folder: AnyPath, manifest: Manifest, kept: Sequence[str], kept_tokens: Sequence[str]) -> PackedRows:
        """Map all shards; those in object storage are read as a whole.

        Kept columns have a value per segment or, in `kept_tokens`, per
        token. A PackerError is raised if a shard is damaged, or contradicts the manifest.
        """
        first = open_shard(folder, manifest.shards[0], manifest).schema
        for name in (*kept, *kept_tokens):
            if first.names.count(name) != 1:
                raise PackerError(
                    f"{folder / manifest.shards[0].file} lacks the column {name}: restore it, or pack again"
                )
        row_format = manifest.row_format  # an index has no tokens, so its lists are addressed by their boundaries
        lists = "seq_lengths" if row_format.index_only else row_format.input_ids
        columns = Columns(lists, "labels", tuple(kept_tokens), tuple(kept_tokens))
        shards = tuple(_mapped(folder, entry.file, columns) for entry in manifest.shards)
        for shard in shards:
            schema = shard.schema
            if any(schema.field(name).type != first.field(name).type for name in (*kept, *kept_tokens)):
                raise PackerError(
                    f"{folder / shard.state.name} and {manifest.shards[0].file} have columns of different types"
                )
        return cls(
            folder=folder,
            manifest=manifest,
            shards=shards,
            kept={name: plain_type(first.field(name).type.value_type) for name in kept},
            kept_tokens={name: first.field(name).type.value_type for name in kept_tokens},
        )

    @property
    def widths(self) -> dict[str, int]:
        """Values per token, of the kept columns that have several."""
        kinds = self.kept_tokens.items()
        return {name: kind.list_size for name, kind in kinds if pa.types.is_fixed_size_list(kind)}

    @cached_property
    def tokens(self) -> dict[str, TokenColumn]:
        """Addresses of the columns "input_ids" and "labels" of all rows; an index has neither."""
        row_format = self.manifest.row_format
        return {
            name: TokenColumn.joined([shard.tokens[column] for shard in self.shards])
            for name, column in (("input_ids", row_format.input_ids), ("labels", "labels"))
            if column in row_format.stored_token_columns
        }

    @cached_property
    def token_columns(self) -> dict[str, TokenColumn]:
        """Addresses of the kept columns with a value per token."""
        return {name: ValueColumn(name, kind, self.shards).addresses for name, kind in self.kept_tokens.items()}

    def kept_at(self, name: str, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> pa.Array:
        """Return the values of a kept column for segments in any order, given their rows and numbers in these."""
        ends = np.cumsum([shard.ends[-1] for shard in self.shards])
        order = np.argsort(rows, kind="stable")
        rows, numbers = rows[order], numbers[order]
        of_shards = np.searchsorted(ends, rows, side="right")
        parts: list[pa.Array] = []
        for number in np.unique(of_shards).tolist():
            of_shard, shard = slice(*np.searchsorted(of_shards, [number, number + 1])), self.shards[number]
            first, inside = ends[number] - shard.ends[-1], numbers[of_shard]
            for column, lists, here in chunks_with(shard, name, rows[of_shard] - first):
                places = as_numpy(column.offsets).astype(np.int64)[lists] + inside[here]
                parts.append(as_plain(column.values.take(as_arrow(places))))
        values = pa.concat_arrays(parts) if parts else pa.nulls(0, self.kept[name])
        return values.take(as_arrow(np.argsort(order)))


def _mapped(folder: AnyPath, name: str, columns: Columns) -> MappedFile:
    opened = ArrowReader.open_lists(folder / name, name, columns)
    if not isinstance(opened, MappedLists):
        raise PackerError(f"{folder / name} is compressed, which packed datasets are not: restore it, or pack again")
    (shard,) = opened.stores
    assert isinstance(shard, MappedFile), shard
    return shard.whole()
