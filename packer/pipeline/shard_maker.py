"""Make the rows of shards; the bytes of a shard depend only on the source, the plan and its number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.facts.rejection import REMEDY
from packer.gather import Spans, held_spans
from packer.pipeline.partitions.leftover_values import LeftoverValues
from packer.pipeline.segments.segment_reader import MappedDocuments
from packer.plan.located_rows import LocatedRows, Plan, ShardRows
from packer.plan.segments import context_of, extents_of
from packer.shards.kept_columns import KeptValues
from packer.shards.row_block import RowBlock
from packer.shards.row_format import RowFormat
from packer.shards.segment_values import SegmentValues
from packer.shards.writer import BadTokenError, Counts, SourceColumns, build_batches
from packer.sources.documents import TokenTable, reading, value_message, wrong_values
from packer.sources.origins import Origins
from packer.stores.mirror import in_use

Batches: TypeAlias = Iterator[tuple[list[pa.RecordBatch], Counts]]
"""Record batches of each block of rows, and their counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMaker:
    """Everything that the bytes of the shards depend on. Can be pickled; makes the same bytes in any process."""

    mapped: MappedDocuments
    """Documents that are packed."""

    plan: Plan
    """Segments of the rows of each shard."""

    row_format: RowFormat
    """Format of the rows."""

    overlap: int
    """Tokens that each piece of a split document repeats from the end of the piece before it."""

    leftovers: LeftoverValues | None = None
    """Notes with the values of leftovers; None if every shard reads its segments from the source."""

    first_document: int = 0
    """Number that the first document has in the rows; above 0 if they are appended to others."""

    @property
    def table(self) -> TokenTable:
        """Columns of all documents, by address."""
        return self.mapped.table

    @property
    def origins(self) -> Origins:
        """Source, document and copy that each document comes from."""
        return self.mapped.documents.origins

    def batches(self, shard: int) -> Batches:
        """Yield (record batches, their counts) of each block of rows of a shard, in order.

        Raises:
            SourceError: a token or label of the source is out of range.
        """
        rows = self.plan.rows(shard)
        kept, schema = self._kept(rows), self.row_format.schema
        is_collected = self.leftovers is not None and self.leftovers.plan.is_of_pool(shard)
        segments = 0
        with self._read(shard, rows) as columns:
            for first, last in self.row_format.blocks(len(rows)):
                block = self.block(rows.part(first, last))
                if is_collected:
                    block = replace(block, lists=np.arange(segments, segments + len(block.lists)))
                segments += len(block.lists)
                try:
                    yield build_batches(block, columns, kept, self.row_format, schema)
                except BadTokenError as bad:
                    raise SourceError(self._explain(bad, block)) from bad

    def block(self, rows: LocatedRows) -> RowBlock:
        """Return the segments of some rows with everything that the writer needs."""
        documents, starts, lengths = rows.documents, rows.starts, rows.lengths
        sources, ids, copies = self.origins.of(documents)
        lists = self.table.lists_of(documents)
        return RowBlock(
            lists=lists,
            kept_lists=lists,
            documents=ids + self.first_document if self.first_document else ids,
            source_ids=sources,
            copies=copies,
            starts=starts,
            lengths=lengths,
            extents=extents_of(lengths, self.row_format.align),
            context=context_of(starts, self.overlap),
            row_starts=rows.row_starts,
        )

    def copy_values(self, pieces: NDArray[Any], places: NDArray[np.int64], out: SegmentValues) -> None:
        """Copy the values of segments from the source.

        Args:
            pieces: (segments,) an array of PIECE.
            places: (segments,) index of the first value of each in `out`.
            out: receives the values.

        Raises:
            SourceError: a token or label of the source is out of range.
        """
        block, columns = self.block(LocatedRows.one_row(pieces)), self._columns()
        with self._held(columns, pieces):
            try:
                out.fill(columns, Spans(block.lists, block.starts, block.lengths, places))
            except BadTokenError as bad:
                raise SourceError(self._explain(bad, block)) from bad

    def _columns(self) -> SourceColumns:
        kept = {name: self.table.extra[name].addresses() for name in self.row_format.stored_kept_tokens}
        labels = self.table.labels if "labels" in self.row_format.token_columns else None
        return SourceColumns(input_ids=self.table.input_ids, labels=labels, kept_tokens=kept)

    @contextmanager
    def _read(self, shard: int, rows: ShardRows) -> Iterator[SourceColumns]:
        """Yield the columns that a shard is made of, with all values in memory that it needs.

        List i of collected leftovers is segment i of the shard; otherwise, lists are those of the source.
        """
        columns = self._columns()
        if self.leftovers is None:
            if not in_use():
                yield columns
                return
            with self._held(columns, rows.part(0, len(rows)).pieces):
                yield columns
            return
        every = rows.part(0, len(rows))
        if self.leftovers.plan.is_of_pool(shard):
            yield self.leftovers.collected(shard, every.pieces, self.copy_values).columns(every.starts, every.lengths)
        else:
            left = self.leftovers.left_by(shard)
            with self._held(columns, np.concatenate([every.pieces, left])):
                self.leftovers.save(shard, left, self.copy_values)
                yield columns

    @contextmanager
    def _held(self, columns: SourceColumns, pieces: NDArray[Any]) -> Iterator[None]:
        """Hold segments of a source in object storage, which is read in as few requests as possible."""
        tokens = None if self.row_format.index_only else columns.input_ids
        read = [column for column in (tokens, columns.labels, *columns.kept_tokens.values()) if column]
        rows = LocatedRows.one_row(pieces)
        lists = self.table.lists_of(rows.documents)
        with reading(self.mapped.documents.source.name), held_spans(read, lists, rows.starts, rows.lengths):
            yield

    def _kept(self, rows: ShardRows) -> KeptValues:
        """Return the values that the documents of a shard have in kept columns."""
        if not self.row_format.kept:
            return KeptValues(lists=np.empty(0, np.int64), values={})
        lists = self.table.lists_of(rows.part(0, len(rows)).documents)
        return KeptValues.of({name: self.table.extra[name] for name in self.row_format.kept}, lists)

    def _explain(self, bad: BadTokenError, block: RowBlock) -> str:
        """Return a message that names the document, position and value that is not a token id."""
        column = self.table.input_ids if bad.column == "input_ids" else self.table.labels
        assert column is not None
        start = int(block.starts[bad.segment])
        values = column.list_at(int(block.lists[bad.segment])).slice(start, int(block.lengths[bad.segment]))
        found = values.to_numpy(zero_copy_only=False)
        position = int(wrong_values(found, label=bad.column == "labels").argmax())
        document = int(block.documents[bad.segment]) - self.first_document
        source = self.mapped.documents.source
        where = self.origins.describe(int(block.source_ids[bad.segment]), document)
        name = source.columns.labels if bad.column == "labels" else source.columns.input_ids
        message = value_message(name, int(found[position]), start + position, label=bad.column == "labels")
        return f"{where}: {message}; {REMEDY}"
