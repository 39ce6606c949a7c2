"""Text in CSV files, whose first line names the columns, and in plain files, each of which is one document."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar, TypeAlias

from packer.errors import PackerError, SourceError
from packer.sources import documents, format_reader
from packer.sources.documents import DocumentError, SourceFile, reading, too_long
from packer.sources.format_reader import ROWS, Reader, opened
from packer.sources.list_checks import Faults

COLUMN = "text"
"""Column of a plain text file."""

_READ = 1 << 20  # number of bytes of a plain file read at once

_Record: TypeAlias = dict[str, str] | DocumentError
"""A record, or the error for a record whose number of fields differs from the header's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvFile(Reader):
    """A CSV file of text records, plain or compressed; every value is a string."""

    no_lists: ClassVar[str] = "CSV holds text, not lists of tokens"
    file: SourceFile
    fields: Mapping[str, str] | None = None

    @classmethod
    def open(cls, file: SourceFile) -> CsvFile:
        """Open a CSV file, and read its header."""
        reader = cls(file=file)
        try:
            header, _ = next(reader.parsed(), (None, 0))
        except DocumentError as fault:
            raise SourceError(f"{file.name}: {fault.message}") from None
        assert not isinstance(header, DocumentError)
        return replace(reader, fields=header)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[list[_Record], int]]:
        """Yield (records of about `BLOCK` characters, number of bytes of the file read so far).

        Raises a DocumentError, with the index of the record in its block, for wrong quotes and for bytes that are not
        UTF-8.
        """
        block: list[_Record] = []
        size = done = 0
        try:
            for record, done in islice(self.parsed(), 1, None):
                block.append(record)
                size += 0 if isinstance(record, DocumentError) else sum(map(len, record.values()))
                if size >= format_reader.BLOCK or len(block) == ROWS:
                    yield block, done
                    block, size = [], 0
        except DocumentError as error:
            raise error.at(len(block)) from None
        if block:
            yield block, done

    def parsed(self) -> Iterator[tuple[_Record, int]]:
        """Yield the header and then the records, each with the number of bytes of the file read so far."""
        with reading(self.file.name), opened(self.path) as (file, stream):
            text = io.TextIOWrapper(io.BufferedReader(stream, 1 << 20), encoding="utf-8-sig", newline="")
            for record in _records(text, self.file.name):
                yield record, file.tell()

    def records(self, block: list[_Record], columns: Sequence[str]) -> tuple[list[dict[str, str]], Faults]:
        """Return the records, which are already parsed."""
        faults = {row: record.at(row) for row, record in enumerate(block) if isinstance(record, DocumentError)}
        return [{} if isinstance(record, DocumentError) else record for record in block], faults

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns is in the header."""
        for column in columns:
            if self.fields is not None and column not in self.fields:
                raise PackerError(f"{self.file.name}: no column '{column}' (found: {', '.join(self.fields)})")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainText(Reader):
    """A file whose whole content is one document, in the column `text`."""

    no_lists: ClassVar[str] = "a text file holds no tokens"
    file: SourceFile
    fields: Mapping[str, str] = field(default_factory=lambda: {COLUMN: ""})
    rows: int = 1

    @classmethod
    def open(cls, file: SourceFile) -> PlainText:
        """Open a text file, without reading it."""
        return cls(file=file)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        """Yield the content of the file. Raises a DocumentError if it has more than `MOST_RECORD` bytes."""
        parts: list[bytes] = []
        held = 0
        with reading(self.file.name), opened(self.path) as (_, stream):
            while part := stream.read(_READ):
                parts.append(part)
                held += len(part)
                if held > documents.MOST_RECORD:
                    raise DocumentError(0, too_long("bytes"))
            yield b"".join(parts), self.file.bytes

    def records(self, block: bytes, columns: Sequence[str]) -> tuple[list[dict[str, str]], Faults]:
        """Decode the content, without a byte order mark."""
        try:
            return [{COLUMN: block.decode("utf-8-sig")}], {}
        except UnicodeDecodeError as error:
            message = f"invalid UTF-8 at byte {error.start}; write the file as UTF-8"
            return [{}], {0: DocumentError(0, message, reason="unreadable")}

    def require(self, columns: Sequence[str]) -> None:
        """Check that no other column is requested."""
        for column in columns:
            if column != COLUMN:
                raise PackerError(f"{self.file.name}: a text file has no column '{column}': leave it out")


def _records(text: io.TextIOWrapper, name: str) -> Iterator[_Record]:
    """Yield a record of empty strings for the header, then records or their errors. Blank lines are ignored."""
    csv.field_size_limit(documents.MOST_RECORD)
    header: list[str] | None = None
    count = size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        while line := text.readline(documents.MOST_RECORD + 1):
            size += len(line)
            if size > documents.MOST_RECORD:
                raise DocumentError(count, f"line {rows.line_num + 1}: {too_long('characters')}")
            yield line

    rows = csv.reader(lines(), strict=True)
    try:
        for row in rows:
            size = 0
            if not row:
                continue
            if header is None:
                header = row
                if len(set(header)) < len(header):
                    twice = next(column for column in header if header.count(column) > 1)
                    raise SourceError(f"{name}: the header names the column '{twice}' twice; rename one of them")
                yield dict.fromkeys(header, "")
                continue
            if len(row) != len(header):
                yield DocumentError(
                    count,
                    f"line {rows.line_num} ends a record of {len(row)} field(s), and the header names {len(header)}; "
                    "quote fields that hold commas or line breaks",
                    reason="unreadable",
                )
            else:
                yield dict(zip(header, row, strict=True))
            count += 1
    except csv.Error as error:
        raise DocumentError(count, f"line {rows.line_num}: not valid CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise DocumentError(count, f"invalid UTF-8 after line {rows.line_num} ({error.reason})") from None
