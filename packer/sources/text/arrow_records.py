"""Text records in Arrow: files, saved datasets and tables in memory, with or without an indices mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.columns.column_checks import check_indices, require_kept
from packer.sources.documents import DocumentError, SourceFile, reading
from packer.sources.files.file_access import headers_of, map_file
from packer.sources.files.hugging_face import STATE, Found
from packer.sources.mapped.ipc import is_within, record_batches
from packer.sources.mapped.record_batches import schema_of
from packer.sources.places import Places, RowPlaces
from packer.sources.text.text_records import ROWS, RecordReader, rows_per_block, with_columns
from packer.stores import AnyPath, RemotePath, any_path
from packer.stores.map_whole import map_whole


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrowRecords(RecordReader):
    """Records in the record batches of a file, of the files of a saved dataset, or of a table in memory."""

    file: SourceFile
    path: AnyPath | None
    fields: pa.Schema
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    """Yields all record batches in order, with at least the named columns."""

    rows: int
    first_row: int = 0
    """Number of records before these."""

    per_block: int = ROWS
    """Largest number of records in a block."""

    whole: bool = False
    """Whether the file is compressed, so that each piece would decompress all of it."""

    indices: NDArray[Any] | None = None
    """Record i is row indices[i] of the record batches; None for row i."""

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns exists exactly once and has a type that can be kept."""
        require_kept(self.fields, columns, self.file.name)

    def cut(self, size: int) -> Sequence[RecordReader]:
        """Cut into runs of equally many records; a compressed file stays whole."""
        pieces = 1 if self.whole else max(1, min(self.file.bytes // size, self.rows))
        return [
            replace(
                self,
                file=SourceFile(name=self.file.name, bytes=self.file.bytes * stop // max(self.rows, 1) - before),
                first_row=self.first_row + start,
                rows=stop - start,
            )
            for start, stop in pairwise(self.rows * piece // pieces for piece in range(pieces + 1))
            for before in [self.file.bytes * start // max(self.rows, 1)]
        ]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[pa.Table, int]]:
        """Yield tables of consecutive records, each with the bytes of the file up to its end."""
        done = 0
        for table in self._selected(columns) if self.indices is not None else self._in_order(columns):
            done += len(table)
            yield table, self.file.bytes * done // max(self.rows, 1)

    def records(self, block: pa.Table, columns: Sequence[str], rejected: list[DocumentError] | None = None) -> pa.Table:
        """Return the table, with missing columns added as nulls."""
        return with_columns(block, columns)

    @property
    def places(self) -> Places:
        """Locations of the records, for messages."""
        return RowPlaces(self.file.name, self.first_row, self.indices)

    def _in_order(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        skip, left = self.first_row, self.rows
        for batch in self.read(columns):
            if skip >= len(batch):
                skip -= len(batch)
                continue
            for start in range(skip, min(len(batch), skip + left), self.per_block):
                part = batch.slice(start, min(self.per_block, skip + left - start))
                yield pa.Table.from_batches([part])
            left -= min(len(batch) - skip, left)
            skip = 0
            if not left:
                return

    def _selected(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        assert self.indices is not None
        batches = list(self.read(columns))
        ends = np.cumsum([len(batch) for batch in batches])
        for start in range(self.first_row, self.first_row + self.rows, self.per_block):
            rows = self.indices[start : min(start + self.per_block, self.first_row + self.rows)].astype(np.int64)
            numbers = np.searchsorted(ends, rows, side="right")
            rows_in_batch = rows - (ends - [len(batch) for batch in batches])[numbers]
            runs = groupby(zip(numbers.tolist(), rows_in_batch.tolist(), strict=True), key=lambda pair: pair[0])
            yield pa.Table.from_batches(
                [batches[number].take(pa.array([row for _, row in run])) for number, run in runs]
            )


def open_arrow_records(path: AnyPath, name: str) -> ArrowRecords:
    """Map an Arrow stream or file and count its records.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: the file is truncated or corrupt.
    """

    def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        present = tuple(column for column in columns if column in fields.names)
        yield from record_batches(
            map_whole(path) if isinstance(path, RemotePath) else buffer, name, present, only=present if whole else None
        )

    with reading(name):
        file = SourceFile(name=name, bytes=path.stat().st_size)
        if not file.bytes:
            raise SourceError(f"{name}: 0 bytes, neither an Arrow stream nor an Arrow file; remove it")
        buffer = map_file(path)
        fields = schema_of(buffer)
        if isinstance(path, RemotePath):
            rows, whole = headers_of(path)
        else:
            rows, whole = 0, False
            for batch in record_batches(buffer, name, ()):
                rows += len(batch)
                whole = whole or not all(is_within(buffer, column.buffers()) for column in batch.columns)
    per_block = rows_per_block(file, rows)
    return ArrowRecords(file=file, path=path, fields=fields, read=read, rows=rows, per_block=per_block, whole=whole)


def select_arrow_records(found: Found, files: Sequence[ArrowRecords] = ()) -> ArrowRecords:
    """Read a table in memory, or the files of a saved dataset, through its indices mapping if it has one.

    Args:
        found: the dataset.
        files: its files; empty for a table in memory.

    Raises:
        SourceError: an index is out of range.
    """
    table: pa.Table = found.table.table if found.table is not None else None
    if table is not None:
        file, path, fields, rows = SourceFile(name=found.name, bytes=table.nbytes), None, table.schema, len(table)
    else:
        (first, *_), rows = files, sum(part.rows for part in files)
        file = SourceFile(name=STATE, bytes=sum(part.file.bytes for part in files))
        path, fields = any_path(found.name) / STATE, first.fields

    def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if table is not None:
            yield from table.select([column for column in columns if column in fields.names]).to_batches()
        for part in files:
            yield from part.read(columns)

    indices = found.indices
    if indices is not None:
        check_indices(found.name, indices, rows)
        rows = len(indices)
    per_block = rows_per_block(file, rows)
    return ArrowRecords(file=file, path=path, fields=fields, read=read, rows=rows, per_block=per_block, indices=indices)
