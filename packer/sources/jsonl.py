"""Tokenized documents in JSON lines, plain or compressed, parsed by pyarrow in blocks of whole lines.

A plain file is cut into pieces, each read on its own. Blocks of a compressed file are parsed while it is decompressed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from packer.errors import PackerError
from packer.sources.column_checks import check_per_token, require_column
from packer.sources.column_types import join
from packer.sources.column_values import infer, shown
from packer.sources.decode_pool import DecodePool, pool_or_new
from packer.sources.documents import (
    MASKS,
    Batch,
    Columns,
    DocumentError,
    Input,
    Places,
    SourceFile,
    null_message,
    reading,
    value_message,
)
from packer.sources.json_blocks import Block, count_lines, parse_block
from packer.sources.lines import CODECS, first_line, has_field, line_blocks, lines_of, next_line, read_record, spellings
from packer.system_errors import shortage

_BLOCK = 1 << 22  # bytes of text parsed at once, in over ten times the memory; a longer line extends it


class _Parsed(NamedTuple):
    """A block of whole lines, the bytes of the file read up to its end, and its documents or the error in it."""

    text: bytes
    done: int
    result: Block | pa.ArrowException | DocumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLines(Input):
    """A file with one JSON object per line, or a piece of one. Blank lines and unknown fields are ignored."""

    file: SourceFile
    path: Path
    has_labels: bool | None
    columns: Columns
    types: Mapping[str, pa.DataType]
    """Types of the extra columns on the first line; values of other types may follow."""

    start: int = 0
    """Byte offset of the first line."""

    stop: int | None = None
    """Byte offset of the end of the last line; None for the end of the file, as for all compressed files."""

    def cut(self, size: int) -> Sequence[Input]:
        """Cut a plain file between lines, near multiples of `size`; a compressed one stays whole."""
        if self.path.suffix in CODECS or self.file.bytes <= size:
            return (self,)
        with reading(self.file.name), self.path.open("rb") as file:
            bounds = {0, self.file.bytes, *(next_line(file, at) for at in range(size, self.file.bytes, size))}
        return [
            replace(self, file=SourceFile(name=self.file.name, bytes=stop - start), start=start, stop=stop)
            for start, stop in pairwise(sorted(bounds))
        ]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, one `Batch` per block; blocks are parsed in parallel.

        Raises:
            DocumentError: a line is invalid.
        """
        row = line = 0
        types = dict(self.types)  # of all values so far; parsing is fast while new values fit them
        with pool_or_new(pool) as working:
            for block, done, result in working.in_order(partial(self._parse, types=types), self.blocks(_BLOCK)):
                if isinstance(result, pa.ArrowException):
                    raise self._find_fault(block, row, line, str(result))
                if isinstance(result, DocumentError):
                    raise DocumentError(row + result.row, result.message)
                tokens, labels, extra = result
                for column, values in extra.items():
                    types[column] = join(types.get(column, pa.null()), values.type) or values.type
                if len(tokens) != count_lines(block):
                    raise self._find_fault(block, row, line, "a line must hold one whole object")
                labels_wrong = labels.null_count if self.has_labels else labels.null_count < len(labels)
                if tokens.null_count or tokens.values.null_count or labels_wrong:
                    raise self._find_fault(block, row, line, "a list is missing")
                columns = {column: [values] for column, values in extra.items()}
                yield Batch([tokens], [labels] if self.has_labels else None, done, columns)
                row += len(tokens)
                line += block.count(b"\n")

    @property
    def places(self) -> Places:
        """Locations of the documents: `place` of the file itself."""
        return self

    def place(self, row: int) -> str:
        """Return the line of a document, such as "rows.jsonl line 18"; reads the file again."""
        line = 0
        for block, _ in self.blocks(_BLOCK):
            if 0 <= (count := count_lines(block)) <= row:
                row, line = row - count, line + block.count(b"\n")
                continue
            for text in lines_of(block):
                line += 1
                row -= bool(text.strip())
                if row < 0:
                    return f"{self.file.name} line {self._lines_before() + line}"
        return f"{self.file.name} line {self._lines_before() + line}"

    def _lines_before(self) -> int:
        """Count the lines of the file before this piece."""
        if not self.start:
            return 0
        return sum(block.count(b"\n") for block, _ in line_blocks(self.path, _BLOCK, stop=self.start))

    def blocks(self, size: int) -> Iterator[tuple[bytes, int]]:
        """Yield blocks of whole lines, about `size` bytes each, with the bytes of the piece read so far."""
        with reading(self.file.name):
            yield from line_blocks(self.path, size, self.start, self.stop)

    def _parse(self, block: tuple[bytes, int], types: Mapping[str, pa.DataType]) -> _Parsed:
        text, done = block
        try:
            self._refuse_masks(text)
            return _Parsed(text, done, parse_block(text, self.columns, dict(types)))
        except (pa.ArrowException, DocumentError) as error:
            if shortage(error) is not None:  # the lines may be valid
                raise
            return _Parsed(text, done, error)

    def _refuse_masks(self, block: bytes) -> None:
        """Raise a DocumentError if a line has a mask that is not read, since the first line has none."""
        for mask in MASKS:
            if mask not in self.columns.extra and any(name in block for name in spellings(mask)):
                for row, line in enumerate(line for line in lines_of(block) if line.strip()):
                    if mask in _fields(line):
                        raise DocumentError(
                            row, f"has '{mask}', and the first line has none; give it to all lines or none"
                        )

    def _find_fault(self, block: bytes, row: int, line: int, reason: str) -> DocumentError:
        """Return the error for the first invalid line of a block that follows `row` documents and `line` lines."""
        line += 1 + self._lines_before()
        first_row, first_line = row, line
        for text in lines_of(block):
            if text.strip():
                message = self._line_fault(text)
                if message:
                    return DocumentError(row, message, f"{self.file.name} line {line}")
                row += 1
            line += 1
        return DocumentError(first_row, reason.splitlines()[0], f"{self.file.name}, lines {first_line} to {line - 1}")

    def _line_fault(self, text: bytes) -> str | None:
        """Return what is wrong with a line, or None."""
        try:
            record = read_record(text)
        except ValueError as error:
            return str(error)
        if self.columns.input_ids not in record:
            return f"no '{self.columns.input_ids}' (found: {', '.join(record) or 'none'})"
        message = _list_fault(self.columns.input_ids, record[self.columns.input_ids], label=False)
        if message:
            return message
        labels = record.get(self.columns.labels)
        if (labels is not None) != bool(self.has_labels):
            here, there = ("no ", "") if self.has_labels else ("", "no ")
            return (
                f"{here}'{self.columns.labels}', but the file's first line has {there}such list; give it to all or none"
            )
        if labels is not None and (message := _list_fault(self.columns.labels, labels, label=True)):
            return message
        try:
            parse_block(text, self.columns._replace(extra=(), per_token=()), {})
        except pa.ArrowException as error:
            return str(error).splitlines()[0].removesuffix(" in row 0")
        return None


def open_json_lines(path: Path, name: str, columns: Columns) -> JsonLines:
    """Open a file of JSON lines: read its first line.

    Args:
        path: the file.
        name: its name in messages and in the manifest.
        columns: the columns to read.

    Raises:
        PackerError: a column is missing, or the file cannot be read.
    """
    has_labels, types = None, {}
    with reading(name):
        file = SourceFile(name=name, bytes=path.stat().st_size)
    record = _first_record(path, name)
    if record:
        require_column(list(record), name, columns)
        require_fields(path, name, record, columns.extra)
        has_labels = record.get(columns.labels) is not None
        types = {column: _type_of(record.get(column), column) for column in columns.extra}
        for column in columns.per_token:
            check_per_token(types[column], column, name)
            types[column] = join(types[column], pa.list_(pa.null())) or types[column]
    return JsonLines(file=file, path=path, has_labels=has_labels, columns=columns, types=types)


def column_names(path: Path, name: str) -> list[str]:
    """Return the names of the fields on the first line that is not blank."""
    return list(_first_record(path, name))


def _first_record(path: Path, name: str) -> dict[str, Any]:
    """Return the object on the first line that is not blank; empty if there is none."""
    _, first = first_line(path, name)
    return _fields(first)  # errors are raised when the documents are read, with the line


def _fields(line: bytes) -> dict[str, Any]:
    """Return the fields of the object on a line; empty if there is no object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def require_fields(path: Path, name: str, record: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Check that each column is on some line of a file; on lines without it, it is null.

    Args:
        path: the file, searched only for columns that its first line lacks.
        name: name of the file in messages.
        record: object on its first line.
        columns: columns to look for.

    Raises:
        PackerError: a column is on no line, or the file cannot be read.
    """
    for column in columns:
        if column not in record:
            with reading(name):
                is_found = has_field(path, column)
            if not is_found:
                found = ", ".join(record) or "none"
                raise PackerError(f"{name}: no column '{column}' (found: {found}); all files need it")


def _type_of(value: Any, column: str) -> pa.DataType:
    """Infer the type of a value; null if it has none, which is an error when the documents are read."""
    try:
        return infer([value], column).type
    except DocumentError:
        return pa.null()


def _list_fault(column: str, tokens: Any, *, label: bool) -> str | None:
    """Return what is wrong with a parsed list of tokens or labels, or None."""
    if tokens is None:
        return null_message(column)
    if not isinstance(tokens, list):
        return f"'{column}' holds {shown(tokens)} where a list of integers is expected"
    for position, token in enumerate(tokens):
        if type(token) is not int:  # a bool is an int to isinstance
            return f"'{column}' holds {shown(token)} at position {position} where an integer is expected"
        if not -(2**31) <= token < 2**31:
            return value_message(column, token, position, label=label)
    return None
