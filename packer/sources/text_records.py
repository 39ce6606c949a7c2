"""Records that hold text: what reads them from a file, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from packer.sources.documents import Places, RowPlaces, SourceFile

BLOCK = 1 << 20
"""Bytes of records encoded at once: some hundred thousand tokens."""

ROWS = 1 << 12
"""Most rows of a table encoded at once."""


class RecordReader(Protocol):
    """A file of records, or a piece of one. A class that derives from it may leave out `rows`, `places` and `cut`."""

    @property
    def file(self) -> SourceFile:
        """Name and size."""

    @property
    def path(self) -> Path | None:
        """Path of the file; None for data in memory."""

    @property
    def rows(self) -> int | None:
        """Number of records; None where only reading tells."""
        return None

    @property
    def fields(self) -> pa.Schema | Mapping[str, Any] | None:
        """The schema, or the first record; None where there is no record."""

    @property
    def places(self) -> Places:
        """What names the records."""
        return RowPlaces(self.file.name)

    def require(self, columns: Sequence[str]) -> None:
        """Check that records have these columns, which are to be kept beside the tokens.

        Raises:
            PackerError: a column is missing, or the file cannot be read.
            SourceError: several columns have its name, or its type cannot be kept.
        """

    def cut(self, size: int) -> Sequence[RecordReader]:
        """Cut into pieces of about `size` bytes, a function of the file alone."""
        return (self,)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
        """Yield stretches of records, undecoded where that takes long, and the bytes of the file up to their end."""

    def records(self, block: Any, columns: Sequence[str]) -> pa.Table | list[dict[str, Any]]:
        """Decode a stretch; raises `DocumentError` with a row of it."""


def rows_at_once(file: SourceFile, rows: int) -> int:
    """How many rows come to about a block."""
    return min(max(BLOCK * rows // max(file.bytes, 1), 1), ROWS)


def with_columns(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Add the columns that are not there: a file of conversations may have no tools where another has."""
    for column in columns:
        if column not in table.schema.names:
            table = table.append_column(column, pa.nulls(len(table)))
    return table
