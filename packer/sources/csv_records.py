"""Text records in CSV files: the first line names the columns, and every value is a string."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from packer.errors import PackerError, SourceError
from packer.sources.documents import LONGEST, Columns, DocumentError, SourceFile, reading
from packer.sources.lines import CODECS
from packer.sources.text_records import RecordReader, in_blocks

Record = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvRecords(RecordReader):
    """A CSV file of text records, plain or compressed."""

    file: SourceFile
    path: Path
    fields: Mapping[str, str] | None
    """First record; None if there is no record."""

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[list[Record], int]]:
        """Yield records, about `BLOCK` characters at a time, with the bytes of the file up to the last of them.

        Raises:
            DocumentError: a record has another number of fields than the header, or the quotes are wrong.
        """
        with reading(self.file.name), _opened(self.path) as (text, position):
            sized = ((record, sum(map(len, record.values()))) for record in _records(text, self.file.name))
            for records in in_blocks(sized):
                yield records, position()

    def records(self, block: list[Record], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the records, which are decoded already."""
        return [*block]

    def require(self, columns: Sequence[str]) -> None:
        """Check that the header names each of these columns."""
        for column in columns:
            if self.fields is not None and column not in self.fields:
                raise PackerError(f"{self.file.name}: no column '{column}' (found: {', '.join(self.fields)})")


def open_csv_records(path: Path, name: str) -> CsvRecords:
    """Open a CSV file: read its header and its first record.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: the header is missing or names a column twice, or the first record is invalid.
        PackerError: the file cannot be read.
    """
    with reading(name), _opened(path) as (text, _):
        try:
            first = next(_records(text, name), None)
        except DocumentError as error:
            raise SourceError(f"document 0 ({name} row 0): {error.message}") from None
        return CsvRecords(file=SourceFile(name=name, bytes=path.stat().st_size), path=path, fields=first)


def column_names(path: Path, name: str) -> list[str]:
    """Return the names in the header."""
    return [*(open_csv_records(path, name).fields or ())]


def refuse_tokens(path: Path, name: str, columns: Columns) -> NoReturn:
    """Refuse to read tokens.

    Raises:
        PackerError: always.
    """
    raise PackerError(f"{name}: CSV holds text, not lists of tokens: set --tokenizer, or give another format")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.TextIOWrapper, Any]]:
    """Yield (the text of a file, a function that returns the bytes of the file read so far)."""
    with pa.OSFile(str(path)) as file:
        codec = CODECS.get(path.suffix)
        stream = pa.CompressedInputStream(file, codec) if codec else file
        yield io.TextIOWrapper(io.BufferedReader(stream, 1 << 20), encoding="utf-8-sig", newline=""), file.tell


def _records(text: io.TextIOWrapper, name: str) -> Iterator[Record]:
    """Yield the records after the header; blank lines are ignored."""
    csv.field_size_limit(LONGEST)
    rows = csv.reader(text, strict=True)
    header: list[str] | None = None
    count = 0
    try:
        for row in rows:
            if not row:
                continue
            if header is None:
                header = row
                if len(set(header)) < len(header):
                    twice = next(column for column in header if header.count(column) > 1)
                    raise SourceError(f"{name}: the header names the column '{twice}' twice; rename one of them")
                continue
            if len(row) != len(header):
                raise DocumentError(
                    count,
                    f"line {rows.line_num} ends a record of {len(row)} field(s), and the header names {len(header)}; "
                    "quote fields that hold commas or line breaks",
                )
            yield dict(zip(header, row, strict=True))
            count += 1
    except csv.Error as error:
        raise DocumentError(count, f"line {rows.line_num}: not valid CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise DocumentError(count, f"invalid UTF-8 after line {rows.line_num} ({error.reason})") from None
