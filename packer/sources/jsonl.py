"""JSON lines, plain or compressed: parsed by pyarrow block by block, cut at newlines, so that lines can be named.

A plain file is cut into pieces, each read on its own; of a compressed one, blocks are parsed while it is decompressed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.sources.crew import Crew
from packer.sources.documents import (
    LONGEST,
    Batch,
    Columns,
    DecodedSize,
    DocumentError,
    Input,
    SourceFile,
    find_columns,
    null_message,
    reading,
    require_column,
    value_message,
)
from packer.sources.lines import CODECS, first_line, line_blocks, lines_of, next_line, read_record

_BLOCK = 1 << 22  # bytes of text parsed at once (parsing takes over ten times that); a longer line extends it
_THREADS = 2  # at work on a file that is read as a stream
_NEWLINE, _BRACE = b"\n{"
_SPACES = b" \t\r\v\f"  # what may stand before an object, or be all that there is on a line


class _Parsed(NamedTuple):
    """A block of whole lines, the bytes of the file read up to its end, and its documents or why there are none."""

    block: bytes
    done: int
    found: pa.Table | pa.ArrowException


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLines:
    """A file with one JSON object on each line, or some of its lines; blank ones are skipped, other fields ignored."""

    file: SourceFile
    path: Path
    has_labels: bool | None
    columns: Columns
    types: Mapping[str, pa.DataType]
    """Of the columns beside the tokens, as the first line has them."""

    start: int = 0
    """Where in the file the first line begins."""

    stop: int | None = None
    """Where the last line ends; None: with the file, as where the file is compressed."""

    rows: int | None = None
    mapped: bool = False
    decoded: DecodedSize | None = None

    @classmethod
    def open(cls, path: Path, name: str, columns: Columns) -> JsonLines:
        """Look at the first line: are the columns there?

        Raises:
            PackerError: no such column, or the file cannot be read.
        """
        has_labels, types = None, {}
        with reading(name):
            file = SourceFile(name=name, bytes=path.stat().st_size)
        first, record = first_record(path, name)
        if record is not None:
            require_column(list(record), name, columns)
            has_labels = record.get(columns.labels) is not None
            types = {column: type_of(record, column, name, columns) for column in columns.extra}
        elif not first:  # no documents, of which a column's type could be known
            types = dict.fromkeys(columns.extra, pa.null())
        return cls(file=file, path=path, has_labels=has_labels, columns=columns, types=types)

    def cut(self, size: int) -> Sequence[Input]:
        """Cut a plain file at the newlines next to multiples of `size`."""
        if self.path.suffix in CODECS or self.file.bytes <= size:
            return (self,)
        with reading(self.file.name), self.path.open("rb") as file:
            bounds = {0, self.file.bytes, *(next_line(file, at) for at in range(size, self.file.bytes, size))}
        return [
            replace(self, file=SourceFile(name=self.file.name, bytes=stop - start), start=start, stop=stop)
            for start, stop in pairwise(sorted(bounds))
        ]

    def batches(self, crew: Crew | None = None) -> Iterator[Batch]:
        """Yield the documents of one block after the other; blocks are parsed side by side.

        Raises:
            DocumentError: a line is wrong.
        """
        if crew is not None:
            yield from self._batches(crew)
            return
        with closing(Crew(_THREADS)) as own, own.working():
            yield from self._batches(own)

    def _batches(self, crew: Crew) -> Iterator[Batch]:
        row = line = 0
        for block, done, table in crew.in_order(self._parse, self.blocks(_BLOCK)):
            if isinstance(table, pa.ArrowException):
                raise self._find_fault(block, row, line, str(table))
            tokens, labels = (_whole(table[column]) for column in (self.columns.input_ids, self.columns.labels))
            extra = {column: [_whole(table[column])] for column in self.columns.extra}
            if len(tokens) != _count_lines(block):
                raise self._find_fault(block, row, line, "a line must hold one whole object")
            labels_wrong = labels.null_count if self.has_labels else labels.null_count < len(labels)
            if tokens.null_count or tokens.values.null_count or labels_wrong:
                raise self._find_fault(block, row, line, "a list is missing")
            yield Batch([tokens], [labels] if self.has_labels else None, done, extra)
            row += len(tokens)
            line += block.count(b"\n")

    def place(self, row: int) -> str:
        """Name the line, counting again from the first."""
        line = 0
        for block, _ in self.blocks(_BLOCK):
            if 0 <= (count := _count_lines(block)) <= row:
                row, line = row - count, line + block.count(b"\n")
                continue
            for text in lines_of(block):
                line += 1
                row -= bool(text.strip())
                if row < 0:
                    return f"{self.file.name} line {self._lines_before() + line}"
        return f"{self.file.name} line {self._lines_before() + line}"

    def _lines_before(self) -> int:
        """Lines of the file before the first of these."""
        if not self.start:
            return 0
        return sum(block.count(b"\n") for block, _ in line_blocks(self.path, _BLOCK, stop=self.start))

    def blocks(self, size: int) -> Iterator[tuple[bytes, int]]:
        """Yield whole lines, about `size` bytes at a time, and how many bytes of these have been read."""
        with reading(self.file.name):
            yield from line_blocks(self.path, size, self.start, self.stop)

    def _parse(self, block: tuple[bytes, int]) -> _Parsed:
        text, done = block
        try:
            return _Parsed(text, done, _parse(text, self.columns, self.types))
        except pa.ArrowException as error:
            return _Parsed(text, done, error)

    def _find_fault(self, block: bytes, row: int, line: int, reason: str) -> DocumentError:
        """Find the line for which a block was refused; `row` and `line` are those before its start."""
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
        """What is wrong with a line, or None."""
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
        faults = (type_fault(column, record.get(column), kind) for column, kind in self.types.items())
        return next(filter(None, faults), None)


def first_record(path: Path, name: str) -> tuple[bytes, dict[str, Any] | None]:
    """The first line that holds something, and the object it is, if it is one."""
    _, first = first_line(path, name)
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return first, None  # reading the documents will say what is wrong, and where
    return first, record if isinstance(record, dict) else None


def _list_fault(column: str, tokens: Any, *, label: bool) -> str | None:
    """What is wrong with a parsed list of tokens or labels, or None."""
    if tokens is None:
        return null_message(column)
    if not isinstance(tokens, list):
        return f"'{column}' holds {_shown(tokens)} where a list of integers is expected"
    for position, token in enumerate(tokens):
        if type(token) is not int:  # a bool is an int to isinstance
            return f"'{column}' holds {_shown(token)} at position {position} where an integer is expected"
        if not -(2**31) <= token < 2**31:
            return value_message(column, token, position, label=label)
    return None


def _shown(value: Any) -> str:
    """Return the value as JSON, cut to what fits a message."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def type_fault(column: str, value: Any, kind: pa.DataType) -> str | None:
    """What is wrong with a value in a column whose type is that of the file's first line, or None."""
    try:
        pa.array([value], kind)
    except (pa.ArrowException, ValueError, TypeError):
        return f"'{column}' holds {_shown(value)}, where the file's first line has {kind}; make them alike"
    return None


def type_of(record: Mapping[str, Any], column: str, name: str, columns: Columns) -> pa.DataType:
    """The type of a column beside the tokens, by its value in the first line.

    Raises:
        PackerError: the column is not there, null, or an empty list.
        SourceError: a column of lists per token is something else.
    """
    if column not in record:
        raise PackerError(f"{name}: no column '{column}' (found: {', '.join(record) or 'none'}); all files need it")
    kind = pa.array([record[column]]).type
    if pa.types.is_null(kind) or (pa.types.is_list(kind) and pa.types.is_null(kind.value_type)):
        raise PackerError(f"{name} line 1: '{column}' is {_shown(record[column])}, which says no type; give it a value")
    find_columns(pa.schema([(columns.input_ids, pa.list_(pa.int32())), (column, kind)]), name,
                 Columns(columns.input_ids, "", (), tuple({column} & {*columns.per_token})))  # fmt: skip
    return kind


def _parse(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Parse whole lines.

    Raises:
        ArrowInvalid: a line is wrong; which one, the caller finds out.
    """
    if _count_lines(block) < 0 or len(block) > LONGEST:  # before the parser: a line `null` crashes it
        raise pa.ArrowInvalid("a line does not hold an object")
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(str(error)) from None
    return pyarrow.json.read_json(
        pa.BufferReader(block),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=min(len(block) + 1, LONGEST)),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(
                [(column, pa.list_(pa.int32())) for column in (columns.input_ids, columns.labels)] + [*types.items()]
            ),
            unexpected_field_behavior="ignore",
        ),
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return the one chunk that a block is parsed into."""
    assert column.num_chunks == 1
    return column.chunk(0)


def _count_lines(block: bytes) -> int:
    """Lines that hold something, or -1 if one of them begins with anything but a brace."""
    first = _first_bytes(block)
    if not (first == _BRACE).all():  # blank, indented, or wrong
        first = _first_bytes(block.translate(None, _SPACES))
        first = first[first != _NEWLINE]
    return len(first) if (first == _BRACE).all() else -1


def _first_bytes(block: bytes) -> NDArray[np.uint8]:
    """The first byte of every line; that of an empty one is its newline."""
    text = np.frombuffer(block, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(text == _NEWLINE) + 1])
    first: NDArray[np.uint8] = text[starts[starts < len(text)]]
    return first
