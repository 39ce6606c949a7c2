"""JSON, plain or compressed: a file with an object per line, or with one array of objects.

A plain file of lines is cut into pieces, each read on its own. Blocks of others are parsed while the next are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa

from packer.errors import PackerError, SourceError
from packer.inputs import format_reader
from packer.inputs.column_types import check_per_token, holds_numbers, infer, join, require_column
from packer.inputs.document_errors import DocumentError, reading
from packer.inputs.documents import Batch, Columns, Places, RowPlaces, SourceFile
from packer.inputs.format_reader import CODECS, DecodedInput, ListDecoder, Reader, decoded_lists
from packer.inputs.json_lists import count_lines, parse_lines
from packer.inputs.line_blocks import (
    array_blocks,
    begins_with_array,
    filled_line_numbers,
    filled_lines,
    first_line,
    line_blocks,
    lines_before,
    next_line,
    read_record,
    read_records,
    spellings,
)
from packer.inputs.list_checks import Faults
from packer.stores import AnyPath

_BLOCK = 1 << 22  # bytes of token lists parsed at once, in over ten times the memory; a longer line extends it


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonFile(Reader):
    """A file of JSON objects, or a piece of one. Blank lines and unknown fields are ignored."""

    file: SourceFile
    path: AnyPath
    is_array: bool
    """Whether the file holds one array, each element of which is read as a line."""

    block: int
    """Bytes of the lines of a block."""

    fields: Mapping[str, object] | None = None
    """First record; None if there is no record."""

    fault: SourceError | None = None
    """Error for the first record if it is not valid."""

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Types of the extra columns in the first record; values of other types may follow."""

    start: int = 0
    """Byte offset of the first line."""

    stop: int | None = None
    """Byte offset of the end of the last line; None for the end of the file, as for arrays and compressed files."""

    @classmethod
    def open(cls, path: AnyPath, name: str) -> JsonFile:
        """Open a file of records: read the first one."""
        return _open(path, name, format_reader.BLOCK)

    @classmethod
    def open_lists(cls, path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> DecodedInput:
        """Open a file of token lists: read its first record.

        With `skips`, records that cannot be used are rejected, and the first usable one takes the place of the first.
        """
        reader = _open(path, name, _BLOCK)
        record = (_usable_record(reader, columns.input_ids, columns.labels) if skips else reader.fields) or {}
        reader = replace(reader, fields=record)
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

    @classmethod
    def column_names(cls, path: AnyPath, name: str, usable: str | None = None) -> list[str]:
        """Return the names of the fields of the first record.

        With a column as `usable`, the first record with a list in it counts, or else the first valid one.
        """
        reader = _open(path, name, _BLOCK)
        return list((reader.fields if usable is None else _usable_record(reader, usable)) or {})

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut a plain file between lines, near multiples of `size`; an array or a compressed file stays whole."""
        if self.is_array or self.path.suffix in CODECS or self.file.bytes <= size:
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
            if self.is_array:
                yield from array_blocks(self.path, self.block)
            else:
                yield from line_blocks(self.path, self.block, self.start, self.stop)

    def records(self, block: bytes, columns: Sequence[str]) -> tuple[list[dict[str, object]], Faults]:
        """Parse every line that is not blank."""
        return read_records(filled_lines(block))

    def lists(self, columns: Columns, *, has_labels: bool, skips: bool) -> ListDecoder:
        """Return a function that parses the lists of a block."""
        types = dict(self.types)  # of all values so far; parsing is fast while new values fit them

        def decode(block: tuple[bytes, int]) -> Batch:
            lines, done = block
            batch = parse_lines(lines, columns, types, has_labels=has_labels, skips=skips)
            for column, (values,) in batch.extra.items():
                types[column] = join(types.get(column, pa.null()), values.type) or values.type
            return batch._replace(done=done, lines=self.lines_of(lines) if skips else None)

        return decode

    def samples(self, having: Sequence[str] = ()) -> Iterator[Mapping[str, object]]:
        """Yield the valid records, up to where an array is damaged; see `Reader.samples`."""
        names = [spelling for column in having for spelling in spellings(column)]
        with contextlib.suppress(DocumentError):
            for block, _ in self.blocks(()):
                if not names or any(name in block for name in names):
                    for line in filled_lines(block):
                        if not names or any(name in line for name in names):
                            with contextlib.suppress(DocumentError):
                                yield read_record(line)

    def lines_of(self, block: bytes) -> bytes | None:
        """Return the block, which is made of the lines of the file; None for an array."""
        return None if self.is_array else block

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns is in some record; it is null in records without it.

        Only a file whose first record lacks one is searched.
        """
        for column in columns:
            if self.fields is None or column in self.fields:
                continue
            if not any(column in record for record in self.samples((column,))):
                found = ", ".join(self.fields) or "none"
                raise PackerError(f"{self.file.name}: no column '{column}' (found: {found}); all files need it")

    @property
    def places(self) -> Places:
        """Locations of the documents: the lines of this file, or rows of an array."""
        return RowPlaces(self.file.name) if self.is_array else self

    def place(self, row: int) -> str:
        """Return the line of a document, such as "rows.jsonl line 18"; reads the file again."""
        line = lines_before(self.path, self.start)
        for block, _ in line_blocks(self.path, _BLOCK, self.start, self.stop):
            count = count_lines(block)
            if not 0 <= count <= row:
                numbers = filled_line_numbers(block)
                if row < len(numbers):
                    return f"{self.file.name} line {line + numbers[row]}"
                count = len(numbers)
            row, line = row - count, line + block.count(b"\n")
        raise AssertionError(row)


def _open(path: AnyPath, name: str, block: int) -> JsonFile:
    with reading(name):
        file = SourceFile(name=name, bytes=path.stat().st_size)
        reader = JsonFile(file=file, path=path, is_array=begins_with_array(path), block=block)
    if reader.is_array:
        place = f"{name} row 0"
        try:
            with reading(name):
                line, _ = next(array_blocks(path, 1), (b"", 0))
        except DocumentError as error:
            raise SourceError(f"document 0 ({place}): {error.message}") from None
    else:
        number, line = first_line(path, name)
        place = f"{name} line {number}"
    try:
        return replace(reader, fields=read_record(line)) if line else reader
    except DocumentError as fault:
        fault.place = place
        return replace(reader, fault=fault.in_source(0))


def _usable_record(reader: JsonFile, column: str, labels: str = "") -> Mapping[str, object]:
    """Return the first record that has a list in a column, or else the first valid one; empty without any.

    Null labels are passed over: they do not say that there are none in other records.
    """
    for record in reader.samples((column,)):
        if isinstance(record.get(column), list) and record.get(labels, ...) is not None:
            return record
    return next(reader.samples(), {})


def _type_of(value: object, column: str) -> pa.DataType:
    """Infer the type of a value; null if it has none, which is an error when the documents are read."""
    try:
        return infer([value], column).type
    except DocumentError:
        return pa.null()
