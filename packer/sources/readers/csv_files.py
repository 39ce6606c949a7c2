"""Text records in CSV files: the first line names the columns, and every value is a string."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from packer.errors import PackerError, SourceError
from packer.sources import documents
from packer.sources.documents import Columns, DocumentError, SourceFile, reading
from packer.sources.files.file_access import open_stream
from packer.sources.readers.format_reader import Object, ObjectReader
from packer.sources.readers.line_blocks import decompressed, too_long
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvFile(ObjectReader):
    """A CSV file of text records, plain or compressed."""

    file: SourceFile
    path: AnyPath
    fields: Mapping[str, str] | None = None
    """First record; None if there is no record."""

    fault: SourceError | None = None
    """Error for the first record if it is not valid."""

    def objects(self) -> Iterator[tuple[Object, int, int]]:
        """Yield the records; one with another number of fields than the header is replaced by the error for it.

        Raises:
            DocumentError: the quotes are wrong, or the file is not UTF-8.
        """
        with reading(self.file.name), open_stream(self.path) as file:
            stream = io.BufferedReader(decompressed(self.path, file), 1 << 20)
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            for record in _records(text, self.file.name):
                size = 0 if isinstance(record, DocumentError) else sum(map(len, record.values()))
                yield record, size, file.tell()

    def require(self, columns: Sequence[str]) -> None:
        """Check that the header names each of these columns."""
        for column in columns:
            if self.fields is not None and column not in self.fields:
                raise PackerError(f"{self.file.name}: no column '{column}' (found: {', '.join(self.fields)})")


def open_records(path: AnyPath, name: str) -> CsvFile:
    """Open a CSV file: read its header and its first record.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: the header is missing or names a column twice, or the file does not parse up to the first record.
        PackerError: the file cannot be read.
    """
    with reading(name):
        reader = CsvFile(file=SourceFile(name=name, bytes=path.stat().st_size), path=path)
    fields, fault = reader.first()
    return replace(reader, fields=fields, fault=fault)


def open_lists(path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> NoReturn:
    """Refuse to read tokens.

    Raises:
        PackerError: always.
    """
    raise PackerError(f"{name}: CSV holds text, not lists of tokens: set --tokenizer, or give another format")


def column_names(path: AnyPath, name: str, usable: str | None = None) -> list[str]:
    """Return the names in the header; none if there is no valid record."""
    return [*next(open_records(path, name).samples(), ())]


def _records(text: io.TextIOWrapper, name: str) -> Iterator[Object]:
    """Yield the records after the header, or the errors for them; blank lines are ignored."""
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
