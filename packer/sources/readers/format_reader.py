"""The protocol of readers, which take records from a file in blocks, and the parts that several readers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from packer.errors import SourceError
from packer.sources.columns.column_checks import require_kept
from packer.sources.columns.column_types import as_plain
from packer.sources.documents import Batch, Columns, DocumentError, Places, RowPlaces, SourceFile
from packer.stores import AnyPath

Record = TypeVar("Record")

Records: TypeAlias = pa.RecordBatch | Sequence[Mapping[str, Any]]
"""Records of a block, as columns or as Python objects."""

Object: TypeAlias = dict[str, Any] | DocumentError
"""A record as a Python object, or the error for one that is not valid."""

ListDecoder: TypeAlias = Callable[[tuple[Any, int]], Batch]
"""Function that decodes a block of token lists, given with the bytes of the file up to its end."""

BLOCK = 1 << 20
"""Bytes of records tokenized at once, some hundred thousand tokens."""

ROWS = 1 << 12
"""Largest number of records tokenized at once."""

LISTS = 1 << 22
"""Token ids decoded at once: 16 to 32 MB."""

LIST_ROWS = 1 << 16
"""Largest number of token lists decoded at once."""


class Reader(Protocol):
    """A file of one format, or a piece of one, read in blocks of records.

    `blocks` cuts the file quickly, in one thread; `records` and the function that `lists` returns decode a block in any
    thread. Subclasses may leave out every member but `file`, `path`, `fields`, `blocks` and `records`.
    """

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

    @property
    def token_count(self) -> int | None:
        """Number of tokens in lists, or slightly more; None if it is known only after reading, as for text."""
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

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut into pieces of about `size` bytes, which depend on nothing but the file and `size`."""
        return (self,)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
        """Yield blocks of records with at least these columns, each with the bytes of the file up to its end."""

    def records(self, block: Any, columns: Sequence[str], rejected: list[DocumentError] | None = None) -> Records:
        """Decode a block.

        Args:
            block: one of `blocks`.
            columns: columns to decode.
            rejected: list to which the error for every record that is not valid is added, in order; such a record has
                no fields. None to raise the first error.

        Raises:
            DocumentError: a record is not valid; with its index in the block.
        """

    def lists(self, columns: Columns, *, has_labels: bool, skips: bool) -> ListDecoder:
        """Return a function that decodes blocks of token lists in one pass over the file.

        Args:
            columns: the columns to decode.
            has_labels: whether the file has labels.
            skips: whether records that cannot be parsed are rejected, with an empty document in the place of each.
        """
        raise AssertionError(f"{self.file.name} holds no lists")

    def lines_of(self, block: Any) -> bytes | None:
        """Return the lines that a block is made of; None if records are located by number."""
        return None


class TableReader(Reader, Protocol):
    """A reader of a format with a schema, whose blocks are record batches."""

    @property
    def fields(self) -> pa.Schema:
        """Schema of the file."""

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns exists exactly once and has a type that can be kept."""
        require_kept(self.fields, columns, self.file.name)

    def records(
        self, block: pa.RecordBatch, columns: Sequence[str], rejected: list[DocumentError] | None = None
    ) -> pa.RecordBatch:
        """Return the record batch, with missing columns added as nulls: of two files of chats, one may have tools."""
        for column in columns:
            if column not in block.schema.names:
                block = block.append_column(column, pa.nulls(len(block)))
        return block

    def lists(self, columns: Columns, *, has_labels: bool, skips: bool) -> ListDecoder:
        """Return a function that takes the columns of a record batch."""

        def decode(block: tuple[pa.RecordBatch, int]) -> Batch:
            batch, done = block
            labels = [batch.column(columns.labels)] if has_labels else None
            extra = {name: [as_plain(batch.column(name))] for name in columns.extra}
            return Batch([batch.column(columns.input_ids)], labels, done, extra)

        return decode


class ObjectReader(Reader, Protocol):
    """A reader of a format without a schema, whose records are parsed one after the other."""

    def objects(self) -> Iterator[tuple[Object, int, int]]:
        """Yield (record, its characters, bytes of the file read so far).

        Raises:
            DocumentError: the file cannot be parsed after the last record.
        """

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[list[Object], int]]:
        """Yield records, about `BLOCK` characters at a time, with the bytes of the file up to the last of them."""
        done = 0

        def sized() -> Iterator[tuple[Object, int]]:
            nonlocal done
            for record, size, done in self.objects():  # noqa: B007 (yielded with the block)
                yield record, size

        for records in in_blocks(sized()):
            yield records, done

    def records(
        self, block: list[Object], columns: Sequence[str], rejected: list[DocumentError] | None = None
    ) -> list[dict[str, Any]]:
        """Return the records, which are parsed already."""
        records: list[dict[str, Any]] = []
        for row, record in enumerate(block):
            if isinstance(record, DocumentError):
                reject(record.at(row), rejected)
            records.append({} if isinstance(record, DocumentError) else record)
        return records

    def samples(self) -> Iterator[Mapping[str, Any]]:
        """Yield the valid records."""
        return (record for record, *_ in self.objects() if not isinstance(record, DocumentError))

    def first(self) -> tuple[dict[str, Any] | None, SourceError | None]:
        """Return (fields, fault) of the first record; None for both if there is none.

        Raises:
            SourceError: the file cannot be parsed up to its end.
        """
        try:
            first, *_ = next(self.objects(), (None,))
        except DocumentError as error:
            raise SourceError(f"document 0 ({self.file.name} row 0): {error.message}") from None
        if not isinstance(first, DocumentError):
            return first, None
        first.place = f"{self.file.name} row 0"
        return None, first.in_source(0)


def reject(fault: DocumentError, rejected: list[DocumentError] | None) -> None:
    """Add an error to a list, or raise it if there is no list."""
    if rejected is None:
        raise fault
    rejected.append(fault)


def rows_per_block(file: SourceFile, rows: int, size: int | None = None, most: int = ROWS) -> int:
    """Return the number of records in a block of about `size` bytes, by default `BLOCK`, and at most `most`."""
    return min(max((size or BLOCK) * rows // max(file.bytes, 1), 1), most)


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
