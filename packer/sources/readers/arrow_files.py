"""Arrow: files, saved datasets and tables in memory. Token lists are mapped if they can be, all else is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.columns.column_checks import check_indices, find_columns
from packer.sources.columns.column_types import plain_type
from packer.sources.decoding.decoded_input import DecodedInput, decoded_lists
from packer.sources.documents import Columns, Places, RowPlaces, SourceFile, reading
from packer.sources.files.file_access import headers_of, map_file
from packer.sources.files.hugging_face import STATE, Found
from packer.sources.mapped.ipc import is_within, map_lists, record_batches
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.mapped.record_batches import schema_of
from packer.sources.readers.format_reader import LIST_ROWS, LISTS, ROWS, TableReader, rows_per_block
from packer.stores import AnyPath, RemotePath, any_path
from packer.stores.mirror import map_whole


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrowReader(TableReader):
    """Records in the record batches of a file, of the files of a saved dataset, or of a table in memory."""

    file: SourceFile
    path: AnyPath | None
    fields: pa.Schema
    rows: int
    parts: tuple[ArrowReader | pa.Table, ...] = ()
    """Files of the dataset, or the table; empty for a single file."""

    first_row: int = 0
    """Number of records before these."""

    per_block: int = ROWS
    """Largest number of records in a block."""

    whole: bool = False
    """Whether the file is compressed, so that each piece would decompress all of it."""

    indices: NDArray[Any] | None = None
    """Record i is row indices[i] of the record batches; None for row i."""

    def cut(self, size: int) -> Sequence[ArrowReader]:
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

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield runs of records, each with the bytes of the file up to its end."""
        done = 0
        present = tuple(column for column in columns if column in self.fields.names)
        for batch in self._selected(present) if self.indices is not None else self._in_order(present):
            done += len(batch)
            yield batch, self.file.bytes * done // max(self.rows, 1)

    @property
    def places(self) -> Places:
        """Locations of the records, for messages."""
        return RowPlaces(self.file.name, self.first_row, self.indices)

    def _read(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield all record batches in order, with these columns."""
        for part in self.parts:
            yield from part.select(columns).to_batches() if isinstance(part, pa.Table) else part._read(columns)
        if self.parts:
            return
        assert self.path is not None
        with reading(self.file.name):
            buffer = map_whole(self.path)
        for batch in record_batches(buffer, self.file.name, columns, only=columns if self.whole else None):
            yield batch.select(columns)

    def _in_order(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        skip, left = self.first_row, self.rows
        for batch in self._read(columns):
            if skip >= len(batch):
                skip -= len(batch)
                continue
            for start in range(skip, min(len(batch), skip + left), self.per_block):
                yield batch.slice(start, min(self.per_block, skip + left - start))
            left -= min(len(batch) - skip, left)
            skip = 0
            if not left:
                return

    def _selected(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        assert self.indices is not None
        batches = list(self._read(columns))
        ends = np.cumsum([len(batch) for batch in batches])
        for start in range(self.first_row, self.first_row + self.rows, self.per_block):
            rows = self.indices[start : min(start + self.per_block, self.first_row + self.rows)].astype(np.int64)
            numbers = np.searchsorted(ends, rows, side="right")
            rows_in_batch = rows - (ends - [len(batch) for batch in batches])[numbers]
            runs = groupby(zip(numbers.tolist(), rows_in_batch.tolist(), strict=True), key=lambda pair: pair[0])
            taken = [batches[number].take(pa.array([row for _, row in run])) for number, run in runs]
            yield from pa.Table.from_batches(taken).combine_chunks().to_batches()


def open_lists(path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> MappedLists | DecodedInput:
    """Map the token lists of a stream or file, or prepare to decode them if they cannot be mapped.

    Args:
        path: the file.
        name: its name in messages and in the manifest.
        columns: the columns to read.
        skips: not needed: every record of an undamaged file can be parsed.

    Raises:
        PackerError: a column is missing, or the file cannot be read.
        SourceError: the file is truncated or corrupt, or the type of a column is not supported.
    """
    with reading(name):
        file = _file(path, name)
        fields = schema_of(map_file(path))
        has_labels = find_columns(fields, name, columns)
        is_plain = all(plain_type(kind).equals(kind) for kind in (fields.field(name).type for name in columns.extra))
        mapped, rows = map_lists(path, file, columns, has_labels=has_labels)
    if mapped is not None and is_plain:
        return mapped
    per_block = rows_per_block(file, rows, 4 * LISTS, LIST_ROWS)
    reader = ArrowReader(file=file, path=path, fields=fields, rows=rows, per_block=per_block, whole=mapped is None)
    return decoded_lists(reader, columns, has_labels=has_labels)


def open_records(path: AnyPath, name: str) -> ArrowReader:
    """Map a stream or file and count its records.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: the file is truncated or corrupt.
    """
    with reading(name):
        file = _file(path, name)
        buffer = map_file(path)
        if isinstance(path, RemotePath):
            rows, whole = headers_of(path)
        else:
            rows, whole = 0, False
            for batch in record_batches(buffer, name, ()):
                rows += len(batch)
                whole = whole or not all(is_within(buffer, column.buffers()) for column in batch.columns)
    fields, per_block = schema_of(buffer), rows_per_block(file, rows)
    return ArrowReader(file=file, path=path, fields=fields, rows=rows, per_block=per_block, whole=whole)


def select_records(found: Found, files: Sequence[ArrowReader] = ()) -> ArrowReader:
    """Read a table in memory, or the files of a saved dataset, through its indices mapping if it has one.

    Args:
        found: the dataset.
        files: its files; empty for a table in memory.

    Raises:
        SourceError: an index is out of range.
    """
    path, parts = None, tuple(files)
    if found.table is not None:
        table: pa.Table = found.table.table
        file, fields, rows = SourceFile(name=found.name, bytes=table.nbytes), table.schema, len(table)
        parts = (table,)
    else:
        file = SourceFile(name=STATE, bytes=sum(each.file.bytes for each in files))
        path, fields, rows = any_path(found.name) / STATE, files[0].fields, sum(each.rows for each in files)
    if found.indices is not None:
        check_indices(found.name, found.indices, rows)
        rows = len(found.indices)
    return ArrowReader(
        file=file,
        path=path,
        fields=fields,
        rows=rows,
        parts=parts,
        per_block=rows_per_block(file, rows),
        indices=found.indices,
    )


def column_names(path: AnyPath, name: str, usable: str | None = None) -> list[str]:
    """Return the column names of a stream or file; none if it is empty."""
    with reading(name):
        return list(schema_of(map_file(path)).names) if path.stat().st_size else []


def _file(path: AnyPath, name: str) -> SourceFile:
    """Return the name and size of a file; raises a SourceError if it is empty."""
    file = SourceFile(name=name, bytes=path.stat().st_size)
    if not file.bytes:
        raise SourceError(f"{name}: 0 bytes, neither an Arrow stream nor an Arrow file; remove it or write it again")
    return file
