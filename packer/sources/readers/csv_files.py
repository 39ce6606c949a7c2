"""Text records in CSV files: the first line names the columns, and every value is a string."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from packer.errors import PackerError, SourceError
from packer.sources import documents
from packer.sources.documents import Columns, DocumentError, SourceFile, reading
from packer.sources.files.file_access import open_stream
from packer.sources.readers.format_reader import Reader, in_blocks, valid_records
from packer.sources.readers.line_blocks import decompressed, too_long
from packer.stores import AnyPath

Record = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvFile(Reader):
    """A CSV file of text records, plain or compressed."""

    file: SourceFile
    path: AnyPath
    fields: Mapping[str, str] | None
    """First record; None if there is no record."""

    fault: SourceError | None = None
    """Error for the first record if it is not valid."""

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[list[Record | DocumentError], int]]:
        """Yield records, about `BLOCK` characters at a time, with the bytes of the file up to the last of them.

        A record with another number of fields than the header is replaced by the error for it.

        Raises:
            DocumentError: the quotes are wrong, or the file is not UTF-8.
        """
        with reading(self.file.name), _opened(self.path) as (text, position):
            sized = ((record, _size(record)) for record in _records(text, self.file.name))
            for records in in_blocks(sized):
                yield records, position()

    def records(
        self,
        block: list[Record | DocumentError],
        columns: Sequence[str],
        rejected: list[DocumentError] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the records, which are decoded already."""
        return valid_records(block, rejected)

    def samples(self) -> Iterator[Mapping[str, Any]]:
        """Yield the first valid record: all have the same fields."""
        with reading(self.file.name), _opened(self.path) as (text, _):
            yield from islice((record for record in _records(text, self.file.name) if isinstance(record, dict)), 1)

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
    with reading(name), _opened(path) as (text, _):
        try:
            first = next(_records(text, name), None)
        except DocumentError as error:
            raise SourceError(f"document 0 ({name} row 0): {error.message}") from None
        file = SourceFile(name=name, bytes=path.stat().st_size)
        if isinstance(first, DocumentError):
            first.place = f"{name} row 0"
            return CsvFile(file=file, path=path, fields=None, fault=first.in_source(0))
        return CsvFile(file=file, path=path, fields=first)


def open_lists(path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> NoReturn:
    """Refuse to read tokens.

    Raises:
        PackerError: always.
    """
    raise PackerError(f"{name}: CSV holds text, not lists of tokens: set --tokenizer, or give another format")


def column_names(path: AnyPath, name: str, usable: str | None = None) -> list[str]:
    """Return the names in the header; none if there is no valid record."""
    return [*next(open_records(path, name).samples(), ())]


def _size(record: Record | DocumentError) -> int:
    return 0 if isinstance(record, DocumentError) else sum(map(len, record.values()))


@contextmanager
def _opened(path: AnyPath) -> Iterator[tuple[io.TextIOWrapper, Any]]:
    """Yield (the text of a file, a function that returns the bytes of the file read so far)."""
    with open_stream(path) as file:
        stream = io.BufferedReader(decompressed(path, file), 1 << 20)
        yield io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), file.tell


def _records(text: io.TextIOWrapper, name: str) -> Iterator[Record | DocumentError]:
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
