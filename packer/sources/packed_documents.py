"""Documents of a packed dataset: taken out of its rows in the order of their numbers, split ones joined again.

Rows hold documents in random order, so their boundaries are sorted first (`segment_index.py`), which takes 28 bytes a
segment on disk. Then any range of documents can be decoded alone: its segments are looked up, and their tokens are
gathered from the mapped shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.arrow import compute as pc
from packer.column_names import NO_LOSS
from packer.engine import DecodePool, Engine
from packer.errors import PackerError
from packer.gather import Spans, TokenColumn, gather
from packer.inputs.arrow_files import ArrowReader
from packer.inputs.column_types import as_plain, plain_type
from packer.inputs.documents import (
    TURN_STARTS,
    Batch,
    Columns,
    DecodedSize,
    DocumentError,
    Input,
    Places,
    RowPlaces,
    SourceFile,
)
from packer.inputs.format_reader import share_of
from packer.inputs.mapped_files import MappedFile
from packer.inputs.token_tables import MappedLists, ValueColumn, chunks_with
from packer.options import PackOptions
from packer.progress import Progress
from packer.shards.file_names import MANIFEST
from packer.shards.manifest import Manifest
from packer.shards.reader import open_shard
from packer.shards.writer import tokens_at
from packer.sources.segment_index import SegmentIndex, SortedSegments, sorted_for_now, write_runs
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Mapped rows of a packed dataset; each is a list of max_len tokens. Can be pickled."""

    folder: AnyPath
    manifest: Manifest
    """Its manifest, or that of one of its generations."""

    shards: tuple[MappedFile, ...]
    kept: Mapping[str, pa.DataType]
    """Types of the kept columns to read that have a value per segment."""

    kept_tokens: Mapping[str, pa.DataType]
    """Types of the values of the kept columns to read that have a value per token."""

    @classmethod
    def of(cls, folder: AnyPath, manifest: Manifest, kept: Sequence[str], kept_tokens: Sequence[str]) -> PackedRows:
        """Map all shards; those in object storage are read as a whole.

        The manifest may be that of one generation. Kept columns have a value per segment or, in `kept_tokens`, per
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

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without addresses


def _mapped(folder: AnyPath, name: str, columns: Columns) -> MappedFile:
    opened = ArrowReader.open_lists(folder / name, name, columns)
    if not isinstance(opened, MappedLists):
        raise PackerError(f"{folder / name} is compressed, which packed datasets are not: restore it, or pack again")
    (shard,) = opened.stores
    assert isinstance(shard, MappedFile), shard
    return shard.whole()


_PIECE = 32 << 20  # bytes of decoded documents, if they are read as a stream
_VALUES = 1 << 22  # tokens in a batch: 16 MB
_DOCUMENTS = 1 << 16  # documents in a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedDocuments(Input):
    """The documents of a packed dataset, those of preference pairs in turn; or a range of them."""

    rows_of: PackedRows
    columns: Columns
    """Columns of the documents; the extra ones are kept columns of the rows."""

    documents: range
    index: SegmentIndex | None = None
    """Sorted segments of all rows; None if they have to be sorted to be read."""

    @property
    def file(self) -> SourceFile:
        """All shards under one name, and the share of their bytes that belongs to these documents."""
        shards = self.rows_of.manifest.shards
        every = SourceFile(name=f"data-*-of-{len(shards):05d}.arrow", bytes=int(shards.column("bytes").sum()))
        return share_of(every, self.documents.start, self.documents.stop, self.rows_of.manifest.totals.documents)

    @property
    def path(self) -> AnyPath:
        """Path of the manifest, which has the hashes of all shards."""
        return self.rows_of.folder / MANIFEST

    @property
    def rows(self) -> int:
        """Number of documents, with those that are in no row."""
        return len(self.documents)

    @property
    def has_labels(self) -> bool:
        """Whether the documents have labels; if not, their tokens are the labels."""
        return self.rows_of.manifest.source.labels

    @property
    def decoded(self) -> DecodedSize:
        """Size of the documents once decoded; of a range, its share by the number of documents."""
        totals = self.rows_of.manifest.totals
        every = DecodedSize.of(totals.tokens_packed, totals.documents, has_labels=self.has_labels)
        return DecodedSize(*(size * self.rows // max(totals.documents, 1) for size in every))

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Types of the extra columns."""
        kept_tokens = {name: pa.list_(kind) for name, kind in self.rows_of.kept_tokens.items()}
        return {name: {**self.rows_of.kept, **kept_tokens}[name] for name in self.columns.extra}

    @property
    def places(self) -> Places:
        """Numbers of the documents in the rows."""
        return RowPlaces(self.file.name, self.documents.start, what="document")

    def cut(self, size: int) -> Sequence[PackedDocuments]:
        """Cut into ranges of documents that begin at even ones, each of about `size` bytes if all are equally long."""
        ranges = max(1, -(-self.decoded.bytes // size))
        step = max(2, -(-self.rows // ranges))
        starts = range(0, self.rows, step + step % 2)
        return [replace(self, documents=self.documents[start : start + starts.step]) for start in starts] or [self]

    def sorted(self, folder: AnyPath, engine: Engine, progress: Progress) -> PackedDocuments:
        """Sort the segments of the rows, which any piece needs before it is read; return the same documents."""
        index = self._index(folder)
        write_runs(index, engine, progress)
        return replace(self, index=index)

    def _index(self, folder: AnyPath) -> SegmentIndex:
        state, rows = self.path.stat(), self.rows_of
        made_from = {"bytes": state.st_size, "mtime_ns": state.st_mtime_ns, "documents": rows.manifest.totals.documents}
        return SegmentIndex(packed=rows.folder, manifest=rows.manifest, folder=folder, made_from=made_from)

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order; without an index, segments are sorted in a temporary folder first.

        A DocumentError is raised if a document is not in the rows as a whole, or holds a value that is no token.
        """
        if self.index is not None:
            yield from self._indexed(self.index)
            return
        first = done = 0
        with sorted_for_now(self._index(self.rows_of.folder)) as index:
            for piece in self.cut(_PIECE):
                try:
                    for batch in piece._indexed(index):
                        yield batch._replace(done=done + batch.done)
                except DocumentError as fault:
                    raise fault.at(first + fault.row) from None
                first, done = first + piece.rows, done + piece.file.bytes

    def _indexed(self, index: SegmentIndex) -> Iterator[Batch]:
        """Yield the documents, given the index of all segments."""
        documents = self.documents
        segments = index.read(documents.start, documents.stop)
        joined = join_segments(segments, documents, self.rows_of.manifest.options)
        first = 0
        while first < len(documents):
            most = _VALUES // max([1, *self.rows_of.widths.values()])
            limit = joined.ends[first] - joined.lengths[first] + most
            last = int(np.searchsorted(joined.ends, limit, side="right"))
            last = min(max(last, first + 1), first + _DOCUMENTS, len(documents))
            last += (last - first) % 2 if self.rows_of.manifest.options.in_pairs else 0
            yield self._batch(joined, segments, slice(first, last))
            first = last

    def _batch(self, joined: JoinedSegments, segments: SortedSegments, part: slice) -> Batch:
        """Copy some of the documents out of the rows."""
        lengths, max_len = joined.lengths[part], self.rows_of.manifest.max_len
        first, last = np.searchsorted(joined.rows, [part.start, part.stop])
        sizes, places = joined.new_lengths[first:last], joined.new_places[first:last]
        spans = Spans(places // max_len, places % max_len, sizes, np.cumsum(sizes) - sizes)
        offsets = np.concatenate([[0], np.cumsum(lengths)])

        def lists(values: pa.Array) -> pa.Array:
            return pa.LargeListArray.from_arrays(as_arrow(offsets), values)

        def copied(column: TokenColumn, name: str, allowed: int) -> pa.Array:
            out = np.empty(int(offsets[-1]), np.int32)
            bad = gather(column.addresses, spans, allowed, out)
            if bad >= 0:
                raise DocumentError(
                    int(joined.rows[first + bad]),
                    f"'{name}' of the rows holds a value that is not a token: check them with `packer verify`",
                )
            return lists(as_arrow(out))

        tokens, extra = self.rows_of.tokens, {}
        for name in self.columns.extra:
            if name in self.columns.per_token:
                column, kind = self.rows_of.token_columns[name], self.rows_of.kept_tokens[name]
                extra[name] = [lists(tokens_at(column, kind, spans, int(offsets[-1])))]
            else:
                extra[name] = [self._kept(name, segments, joined.firsts[part])]
        return Batch(
            [copied(tokens["input_ids"], "input_ids", 0)],
            [copied(tokens["labels"], "labels", NO_LOSS)] if self.has_labels else None,
            self.file.bytes * part.stop // len(self.documents),
            extra,
        )

    def _kept(self, name: str, segments: SortedSegments, firsts: NDArray[np.int64]) -> pa.Array:
        """Return a kept column at the first segments of documents; null, or no turns, where there is none (-1)."""
        has_segment = firsts >= 0
        places, numbers = segments.places[firsts[has_segment]], segments.numbers[firsts[has_segment]]
        values = self.rows_of.kept_at(name, places // self.rows_of.manifest.max_len, numbers)
        found = values.take(as_arrow(np.cumsum(has_segment) - 1, has_segment))
        if name == TURN_STARTS and not pa.types.is_null(found.type):
            return pc.if_else(as_arrow(has_segment), found, pa.scalar([], found.type))
        return found


def files_read(input_: Input) -> list[tuple[AnyPath, str]]:
    """Return path and name of every file that an input is read from; a dataset in memory has none."""
    if isinstance(input_, PackedDocuments):
        rows = input_.rows_of
        return [(rows.folder / name, name) for name in (MANIFEST, *(shard.file for shard in rows.manifest.shards))]
    return [] if input_.path is None else [(input_.path, input_.file.name)]


class JoinedSegments(NamedTuple):
    """Documents put together from segments: each token is taken from the first segment that has it.

    Of the segments [0, 6) and [4, 10) of a document, the first gives 6 tokens and the second 4, from its third on. A
    repeated token has its label in the earlier segment, where it is trained.
    """

    lengths: NDArray[np.int64]  # (documents,) tokens of each document, 0 if it has no segment
    ends: NDArray[np.int64]  # (documents,) tokens of all documents up to its end
    firsts: NDArray[np.int64]  # (documents,) first segment of each document, -1 if it has none
    rows: NDArray[np.int64]  # (segments,) document of each segment, counted from 0
    new_places: NDArray[np.int64]  # (segments,) row * max_len + offset of the first token that is taken
    new_lengths: NDArray[np.int64]  # (segments,) tokens that are taken


def join_segments(segments: SortedSegments, documents: range, options: PackOptions) -> JoinedSegments:
    """Join all segments of some documents.

    A DocumentError is raised if tokens between two segments of a document, or before the first, are in no row, or are
    in two of them.
    """
    of, starts, lengths = segments.documents, segments.starts, segments.lengths
    ends = starts + lengths
    is_first = np.diff(of, prepend=-1) != 0
    covered = np.where(is_first, 0, np.concatenate([[0], ends[:-1]]))
    rows = of - documents.start
    wrong = np.flatnonzero(starts != covered)
    if len(wrong):
        raise _fault(int(rows[wrong[0]]), int(covered[wrong[0]]), int(starts[wrong[0]]), options)
    skipped = covered - starts
    of_documents = np.bincount(rows, lengths - skipped, minlength=len(documents)).astype(np.int64)  # exact below 2**53
    firsts = np.full(len(documents), -1, np.int64)
    firsts[rows[is_first]] = np.flatnonzero(is_first)
    return JoinedSegments(
        lengths=of_documents,
        ends=np.cumsum(of_documents),
        firsts=firsts,
        rows=rows,
        new_places=segments.places + skipped,
        new_lengths=lengths - skipped,
    )


def _fault(row: int, covered: int, start: int, options: PackOptions) -> DocumentError:
    """Return the error for a document whose tokens from `covered` to `start` are missing, or repeated."""
    if start <= covered:
        return DocumentError(row, "it is in the rows more than once: check them with `packer verify`")
    if options.untrained == "drop":
        return DocumentError(
            row,
            f"its tokens {covered:,} to {start - 1:,} were left out by --untrained drop, so it cannot be joined: "
            "pack its source again",
        )
    return DocumentError(
        row, f"its tokens {covered:,} to {start - 1:,} are in no row: check these with `packer verify`"
    )
