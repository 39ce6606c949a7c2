"""Text records, and the protocol of readers that take them from files in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from packer.errors import SourceError
from packer.sources.documents import DocumentError, SourceFile
from packer.sources.places import Places, RowPlaces
from packer.stores import AnyPath

Record = TypeVar("Record")

BLOCK = 1 << 20
"""Bytes of records tokenized at once, some hundred thousand tokens."""

ROWS = 1 << 12
"""Largest number of records of a table tokenized at once."""


class RecordReader(Protocol):
    """A file of text records, or a piece of one. Subclasses may leave out `rows`, `places` and `cut`."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""

    @property
    def rows(self) -> int | None:
        """Number of records; None if it is known only after reading."""
        return None

    @property
    def fields(self) -> pa.Schema | Mapping[str, Any] | None:
        """Schema of the file, or its first record; None if there is no record."""

    @property
    def places(self) -> Places:
        """Locations of the records, for messages."""
        return RowPlaces(self.file.name)

    @property
    def fault(self) -> SourceError | None:
        """Error for the first record if it is not valid."""
        return None

    def samples(self) -> Iterator[pa.Schema | Mapping[str, Any]]:
        """Yield `fields` of each valid record in turn, to find one from which the kind of the records is known."""
        if self.fields is not None:
            yield self.fields

    def require(self, columns: Sequence[str]) -> None:
        """Check that records have these columns, which are to be kept.

        Raises:
            PackerError: a column is missing, or the file cannot be read.
            SourceError: several columns have the same name, or a type cannot be kept.
        """

    def cut(self, size: int) -> Sequence[RecordReader]:
        """Cut into pieces of about `size` bytes, which depend on nothing but the file and `size`."""
        return (self,)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
        """Yield blocks of records, each with the bytes of the file up to its end; `records` does any slow decoding."""

    def records(
        self, block: Any, columns: Sequence[str], rejected: list[DocumentError] | None = None
    ) -> pa.Table | list[dict[str, Any]]:
        """Decode a block.

        Args:
            block: one of `blocks`.
            columns: columns to decode.
            rejected: list to which the error for every record that is not valid is added, in order; such a record has
                no fields. None to raise the first error.

        Raises:
            DocumentError: a record is not valid; with its index in the block.
        """

    def lines_of(self, block: Any) -> bytes | None:
        """Return the lines that a block is made of; None if records are located by number."""
        return None


def reject(fault: DocumentError, rejected: list[DocumentError] | None) -> None:
    """Add an error to a list, or raise it if there is no list."""
    if rejected is None:
        raise fault
    rejected.append(fault)


def valid_records(
    block: Sequence[dict[str, Any] | DocumentError], rejected: list[DocumentError] | None
) -> list[dict[str, Any]]:
    """Return the records of a block that holds errors for those that are not valid; see `RecordReader.records`."""
    records: list[dict[str, Any]] = []
    for row, record in enumerate(block):
        if isinstance(record, DocumentError):
            reject(record.at(row), rejected)
        records.append({} if isinstance(record, DocumentError) else record)
    return records


def rows_per_block(file: SourceFile, rows: int) -> int:
    """Return the number of records in a block of about `BLOCK` bytes."""
    return min(max(BLOCK * rows // max(file.bytes, 1), 1), ROWS)


def in_blocks(records: Iterator[tuple[Record, int]]) -> Iterator[list[Record]]:
    """Yield records in blocks of about `BLOCK` bytes.

    Args:
        records: (record, size) in order; a `DocumentError` that they raise is about the record after the last one.

    Raises:
        DocumentError: with the index of the record in its block.
    """
    block: list[Record] = []
    total = 0
    try:
        for record, size in records:
            block.append(record)
            total += size
            if total >= BLOCK or len(block) == ROWS:
                yield block
                block, total = [], 0
    except DocumentError as error:
        raise error.at(len(block)) from None
    if block:
        yield block


def with_columns(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Add missing columns as nulls: of two files of chats, only one may have tools."""
    for column in columns:
        if column not in table.schema.names:
            table = table.append_column(column, pa.nulls(len(table)))
    return table
