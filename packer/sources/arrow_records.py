"""Records of text in Arrow: files, saved datasets, and tables in memory, also under an indices mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.column_checks import check_indices, require_kept
from packer.sources.documents import Places, RowPlaces, SourceFile, reading
from packer.sources.hugging_face import STATE, Found
from packer.sources.ipc import lies_in, record_batches
from packer.sources.record_batches import map_file, schema_of
from packer.sources.text_records import ROWS, RecordReader, rows_at_once, with_columns


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrowRecords(RecordReader):
    """Rows of Arrow record batches: of a file, of the files of a saved dataset, or in memory."""

    file: SourceFile
    path: Path | None
    fields: pa.Schema
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    """Yields the record batches from the first on, with at least the named columns."""

    rows: int
    first_row: int = 0
    """Rows before these."""

    at_once: int = ROWS
    """Rows of a stretch."""

    whole: bool = False
    """Whether it costs too much to read it in pieces: it is compressed."""

    indices: NDArray[Any] | None = None
    """Row i is row indices[i] of the record batches, which lie in memory."""

    def require(self, columns: Sequence[str]) -> None:
        """Check that there is each of these columns, once, of a type that can be kept."""
        require_kept(self.fields, columns, self.file.name)

    def cut(self, size: int) -> Sequence[RecordReader]:
        """Cut into equal runs of rows."""
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
        """Yield runs of rows."""
        done = 0
        for table in self._selected(columns) if self.indices is not None else self._in_order(columns):
            done += len(table)
            yield table, self.file.bytes * done // max(self.rows, 1)

    def records(self, block: pa.Table, columns: Sequence[str]) -> pa.Table:
        """They are Arrow's already; a column that is not there is null throughout."""
        return with_columns(block, columns)

    @property
    def places(self) -> Places:
        """What names the records."""
        return RowPlaces(self.file.name, self.first_row, self.indices)

    def _in_order(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        skip, left = self.first_row, self.rows
        for batch in self.read(columns):
            if skip >= len(batch):
                skip -= len(batch)
                continue
            for start in range(skip, min(len(batch), skip + left), self.at_once):
                part = batch.slice(start, min(self.at_once, skip + left - start))
                yield pa.Table.from_batches([part])
            left -= min(len(batch) - skip, left)
            skip = 0
            if not left:
                return

    def _selected(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        assert self.indices is not None
        batches = list(self.read(columns))
        ends = np.cumsum([len(batch) for batch in batches])
        for start in range(self.first_row, self.first_row + self.rows, self.at_once):
            rows = self.indices[start : min(start + self.at_once, self.first_row + self.rows)].astype(np.int64)
            numbers = np.searchsorted(ends, rows, side="right")
            local = rows - (ends - [len(batch) for batch in batches])[numbers]
            runs = groupby(zip(numbers.tolist(), local.tolist(), strict=True), key=lambda pair: pair[0])
            yield pa.Table.from_batches(
                [batches[number].take(pa.array([row for _, row in run])) for number, run in runs]
            )


def open_arrow_records(path: Path, name: str) -> ArrowRecords:
    """Map an Arrow stream or file and count its rows.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: truncated or corrupt.
    """

    def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        there = tuple(column for column in columns if column in fields.names)
        yield from record_batches(buffer, name, there, only=there if whole else None)

    with reading(name):
        file = SourceFile(name=name, bytes=path.stat().st_size)
        if not file.bytes:
            raise SourceError(f"{name}: 0 bytes, neither an Arrow stream nor an Arrow file; remove it")
        buffer = map_file(path)
        fields = schema_of(buffer)
        rows, whole = 0, False
        for batch in record_batches(buffer, name, ()):
            rows += len(batch)
            whole = whole or not lies_in(buffer, batch, batch.schema.names)
    at_once = rows_at_once(file, rows)
    return ArrowRecords(file=file, path=path, fields=fields, read=read, rows=rows, at_once=at_once, whole=whole)


def select_arrow_records(found: Found, files: Sequence[ArrowRecords] = ()) -> ArrowRecords:
    """Take a table in memory, or the files of a saved dataset, in the order of an indices mapping if there is one.

    Args:
        found: the dataset.
        files: its files, if it is a saved one.

    Raises:
        SourceError: the mapping reaches beyond the rows.
    """
    table: pa.Table = found.table.table if found.table is not None else None
    if table is not None:
        file, path, fields, rows = SourceFile(name=found.name, bytes=table.nbytes), None, table.schema, len(table)
    else:
        (first, *_), rows = files, sum(one.rows for one in files)
        file = SourceFile(name=STATE, bytes=sum(one.file.bytes for one in files))
        path, fields = Path(found.name) / STATE, first.fields

    def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if table is not None:
            yield from table.select([column for column in columns if column in fields.names]).to_batches()
        for one in files:
            yield from one.read(columns)

    indices = found.indices
    if indices is not None:
        check_indices(found.name, indices, rows)
        rows = len(indices)
    at_once = rows_at_once(file, rows)
    return ArrowRecords(file=file, path=path, fields=fields, read=read, rows=rows, at_once=at_once, indices=indices)
