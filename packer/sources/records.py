"""Records that hold text, a stretch at a time: what a reader of them is, those of JSON lines and of Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from packer.errors import SourceError
from packer.sources.documents import Columns, DocumentError, Places, SourceFile, reading
from packer.sources.jsonl import JsonLines
from packer.sources.lines import filled_lines, first_line, read_record
from packer.sources.row_groups import RowGroups

_BLOCK = 1 << 20  # bytes of records encoded at once: some hundred thousand tokens
ROWS = 1 << 12


class Reader(Protocol):
    """A file of records, or a piece of one."""

    @property
    def file(self) -> SourceFile:
        """Name and size."""

    @property
    def path(self) -> Path | None:
        """Where the file is; None for data in memory."""

    @property
    def rows(self) -> int | None:
        """Records; None where only reading tells."""

    @property
    def fields(self) -> pa.Schema | Mapping[str, Any] | None:
        """The schema, or the first record; None where there is no record."""

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut into pieces of about `size` bytes, a function of the file alone."""

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
        """Yield stretches of records, undecoded where that takes long, and the bytes of the file up to their end."""

    def records(self, block: Any, columns: Sequence[str]) -> pa.Table | list[dict[str, Any]]:
        """Decode a stretch; raises `DocumentError` with a row of it."""

    @property
    def places(self) -> Places:
        """What names the records."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonRecords:
    """A file with one JSON object on each line."""

    lines: JsonLines
    fields: Mapping[str, Any] | None = None
    rows: int | None = None

    @classmethod
    def open(cls, path: Path, name: str) -> JsonRecords:
        """Read the first line that is not blank.

        Raises:
            SourceError: it holds no object.
            PackerError: the file cannot be read.
        """
        with reading(name):
            file = SourceFile(name=name, bytes=path.stat().st_size)
        lines = JsonLines(file=file, path=path, has_labels=None, columns=Columns("", ""), types={})
        number, line = first_line(path, name)
        if not number:
            return cls(lines=lines)
        try:
            return cls(lines=lines, fields=read_record(line))
        except ValueError as error:
            raise SourceError(f"document 0 ({name} line {number}): {error}") from None

    @property
    def file(self) -> SourceFile:
        """Name and size."""
        return self.lines.file

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.lines.path

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut a plain file between lines."""
        pieces = self.lines.cut(size)
        return [replace(self, lines=piece) for piece in pieces if isinstance(piece, JsonLines)]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        """Yield whole lines."""
        return self.lines.blocks(_BLOCK)

    def records(self, block: bytes, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Read every line that is not blank."""
        records: list[dict[str, Any]] = []
        for line in filled_lines(block):
            try:
                records.append(read_record(line))
            except ValueError as error:
                raise DocumentError(len(records), str(error)) from None
        return records

    @property
    def places(self) -> Places:
        """What names the records."""
        return self.lines


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetRecords:
    """A Parquet file, or a run of its row groups."""

    groups: RowGroups
    """Measured by bytes, decompressed."""

    @classmethod
    def open(cls, path: Path, name: str) -> ParquetRecords:
        """Read the file's footer.

        Raises:
            SourceError: truncated or corrupt.
        """
        with reading(name), pq.ParquetFile(path, memory_map=True) as parquet:
            return cls(groups=RowGroups.survey(parquet, path, name, lambda group: group.total_byte_size))

    @property
    def file(self) -> SourceFile:
        """Name and size."""
        return self.groups.file

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.groups.path

    @property
    def rows(self) -> int:
        """Records."""
        return self.groups.rows

    @property
    def fields(self) -> pa.Schema:
        """The schema."""
        return self.groups.schema

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut between row groups: as many together as come to `size` when they are decompressed."""
        return [replace(self, groups=piece) for piece in self.groups.cut(lambda group: group.size >= size)]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[pa.Table, int]]:
        """Yield runs of rows."""
        there = [column for column in columns if column in self.fields.names]
        at_once = int(min(max(_BLOCK / self.groups.size_of_a_row, 1), ROWS))
        for batch, done in self.groups.batches(there, at_once):
            yield pa.Table.from_batches([batch]), done

    def records(self, block: pa.Table, columns: Sequence[str]) -> pa.Table:
        """They are Arrow's already; a column that is not there is null throughout."""
        return with_columns(block, columns)

    @property
    def places(self) -> Places:
        """What names the records."""
        return self.groups.places


def rows_at_once(file: SourceFile, rows: int) -> int:
    """How many rows come to about a block."""
    return min(max(_BLOCK * rows // max(file.bytes, 1), 1), ROWS)


def with_columns(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Add the columns that are not there: a file of conversations may have no tools where another has."""
    for column in columns:
        if column not in table.schema.names:
            table = table.append_column(column, pa.nulls(len(table)))
    return table
