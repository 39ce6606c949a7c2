"""JSON lines, plain or compressed: token lists parsed by pyarrow in blocks of whole lines, other records by Python.

A plain file is cut into pieces, each read on its own. Blocks of a compressed file are parsed while it is decompressed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from packer.errors import PackerError, SourceError
from packer.sources.columns.column_checks import check_per_token, require_column
from packer.sources.columns.column_types import holds_numbers, infer, join
from packer.sources.decoding.decoded_input import DecodedInput, decoded_lists
from packer.sources.documents import Batch, Columns, DocumentError, Places, SourceFile, reading
from packer.sources.readers import format_reader
from packer.sources.readers.format_reader import ListDecoder, Reader, reject
from packer.sources.readers.json_arrays import is_array, open_json_array
from packer.sources.readers.json_blocks import count_lines, parse_lines
from packer.sources.readers.line_blocks import (
    CODECS,
    filled_lines,
    first_line,
    has_field,
    line_blocks,
    lines_before,
    lines_of,
    next_line,
    object_on,
    read_record,
    spellings,
)
from packer.stores import AnyPath

_BLOCK = 1 << 22  # bytes of token lists parsed at once, in over ten times the memory; a longer line extends it


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLines(Reader):
    """A file with one JSON object per line, or a piece of one. Blank lines and unknown fields are ignored."""

    file: SourceFile
    path: AnyPath
    fields: Mapping[str, Any] | None = None
    """First record; None if there is no record."""

    fault: SourceError | None = None
    """Error for the first record if it is not valid."""

    block: int = 0
    """Bytes of the lines of a block."""

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Types of the extra columns on the first line; values of other types may follow."""

    start: int = 0
    """Byte offset of the first line."""

    stop: int | None = None
    """Byte offset of the end of the last line; None for the end of the file, as for all compressed files."""

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut a plain file between lines, near multiples of `size`; a compressed one stays whole."""
        if self.path.suffix in CODECS or self.file.bytes <= size:
            return (self,)
        with reading(self.file.name), self.path.open("rb") as file:
            bounds = {0, self.file.bytes, *(next_line(file, at) for at in range(size, self.file.bytes, size))}
        return [
            replace(self, file=SourceFile(name=self.file.name, bytes=stop - start), start=start, stop=stop)
            for start, stop in pairwise(sorted(bounds))
        ]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        """Yield blocks of whole lines, with the bytes of the piece read so far."""
        with reading(self.file.name):
            yield from line_blocks(self.path, self.block, self.start, self.stop)

    def records(
        self, block: bytes, columns: Sequence[str], rejected: list[DocumentError] | None = None
    ) -> list[dict[str, Any]]:
        """Parse every line that is not blank."""
        records: list[dict[str, Any]] = []
        for line in filled_lines(block):
            try:
                records.append(read_record(line))
            except ValueError as error:
                reject(DocumentError(len(records), str(error), reason="unreadable"), rejected)
                records.append({})
        return records

    def lists(self, columns: Columns, *, has_labels: bool, skips: bool) -> ListDecoder:
        """Return a function that parses the lists of a block."""
        types = dict(self.types)  # of all values so far; parsing is fast while new values fit them

        def decode(block: tuple[bytes, int]) -> Batch:
            lines, done = block
            parsed, rejected = parse_lines(lines, columns, types, has_labels=has_labels, skips=skips)
            for column, values in parsed.extra.items():
                types[column] = join(types.get(column, pa.null()), values.type) or values.type
            return Batch(
                [parsed.input_ids],
                [parsed.labels] if has_labels else None,
                done,
                {column: [values] for column, values in parsed.extra.items()},
                rejected=rejected,
                lines=lines if skips else None,
            )

        return decode

    def samples(self) -> Iterator[Mapping[str, Any]]:
        """Yield the valid records."""
        for block, _ in self.blocks(()):
            for line in filled_lines(block):
                with contextlib.suppress(ValueError):
                    yield read_record(line)

    def lines_of(self, block: bytes) -> bytes:
        """Return the block, which is made of lines."""
        return block

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns is on some line; on lines without it, it is null.

        Only a file whose first line lacks one is searched.
        """
        for column in columns:
            if self.fields is not None and column not in self.fields:
                with reading(self.file.name):
                    is_found = has_field(self.path, column)
                if not is_found:
                    found = ", ".join(self.fields) or "none"
                    raise PackerError(f"{self.file.name}: no column '{column}' (found: {found}); all files need it")

    @property
    def places(self) -> Places:
        """Locations of the documents: `place` of the file itself."""
        return self

    def place(self, row: int) -> str:
        """Return the line of a document, such as "rows.jsonl line 18"; reads the file again."""
        line = 0
        for block, _ in line_blocks(self.path, _BLOCK, self.start, self.stop):
            if 0 <= (count := count_lines(block)) <= row:
                row, line = row - count, line + block.count(b"\n")
                continue
            for text in lines_of(block):
                line += 1
                row -= bool(text.strip())
                if row < 0:
                    break
            if row < 0:
                break
        return f"{self.file.name} line {lines_before(self.path, self.start) + line}"


def open_lists(path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> DecodedInput:
    """Open a file of token lists: read its first line.

    Args:
        path: the file.
        name: its name in messages and in the manifest.
        columns: the columns to read.
        skips: reject lines that cannot be used; the first usable line then takes the place of the first.

    Raises:
        PackerError: a column is missing, or the file cannot be read.
    """
    with reading(name):
        file = SourceFile(name=name, bytes=path.stat().st_size)
    record = _usable_record(path, name, columns.input_ids, columns.labels) if skips else _first_record(path, name)
    reader = JsonLines(file=file, path=path, fields=record, block=_BLOCK)
    if not record:
        return decoded_lists(reader, columns, has_labels=None, skips=skips)
    require_column(list(record), name, columns)
    reader.require(columns.extra)
    types = {column: _type_of(record.get(column), column) for column in columns.extra}
    for column in columns.per_token:
        if skips and not holds_numbers(types[column]):
            types[column] = pa.null()
        check_per_token(types[column], column, name)
        types[column] = join(types[column], pa.list_(pa.null())) or types[column]
    has_labels = record.get(columns.labels) is not None
    return decoded_lists(replace(reader, types=types), columns, has_labels=has_labels, skips=skips)


def open_records(path: AnyPath, name: str) -> Reader:
    """Open a file of JSON lines, or of one JSON array: read its first record.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: a JSON array does not begin with a valid object.
        PackerError: the file cannot be read.
    """
    with reading(name):
        if is_array(path):
            return open_json_array(path, name)
        file = SourceFile(name=name, bytes=path.stat().st_size)
    reader = JsonLines(file=file, path=path, block=format_reader.BLOCK)
    number, line = first_line(path, name)
    try:
        return replace(reader, fields=read_record(line)) if number else reader
    except ValueError as error:
        fault = DocumentError(0, str(error), f"{name} line {number}", reason="unreadable")
        return replace(reader, fault=fault.in_source(0))


def column_names(path: AnyPath, name: str, usable: str | None = None) -> list[str]:
    """Return the names of the fields on the first line that is not blank.

    With a column as `usable`, the first line with a list in it counts, or else the first with an object.
    """
    return list(_first_record(path, name) if usable is None else _usable_record(path, name, usable))


def _first_record(path: AnyPath, name: str) -> dict[str, Any]:
    """Return the object on the first line that is not blank; empty if there is none."""
    _, first = first_line(path, name)
    return object_on(first)  # errors are raised when the documents are read, with the line


def _usable_record(path: AnyPath, name: str, column: str, labels: str = "") -> dict[str, Any]:
    """Return the object on the first line that has a list in a column, or else the first object; empty without any.

    Null labels are passed over: they do not say that there are none on other lines.
    """
    first: dict[str, Any] = {}
    with reading(name):
        for block, _ in line_blocks(path, 1 << 20):
            has_column = any(spelling in block for spelling in spellings(column))
            for line in lines_of(block) if has_column or not first else ():
                record = object_on(line)
                if isinstance(record.get(column), list) and record.get(labels, ...) is not None:
                    return record
                first = first or record
    return first


def _type_of(value: Any, column: str) -> pa.DataType:
    """Infer the type of a value; null if it has none, which is an error when the documents are read."""
    try:
        return infer([value], column).type
    except DocumentError:
        return pa.null()
