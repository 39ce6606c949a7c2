"""Tokenized documents in JSON lines, plain or compressed, parsed by pyarrow in blocks of whole lines.

A plain file is cut into pieces, each read on its own. Blocks of a compressed file are parsed while it is decompressed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from packer.errors import PackerError
from packer.sources.columns.column_checks import check_per_token, holds_numbers, require_column
from packer.sources.columns.column_types import join
from packer.sources.columns.column_values import infer
from packer.sources.decoding.decode_pool import DecodePool, pool_or_new
from packer.sources.documents import (
    MASKS,
    Batch,
    Columns,
    DocumentError,
    Input,
    Rejection,
    SourceFile,
    reading,
)
from packer.sources.json_lines.json_blocks import Block, count_lines, parse_block
from packer.sources.json_lines.line_faults import line_fault, other_mask, parse_usable
from packer.sources.json_lines.lines import (
    CODECS,
    first_line,
    has_field,
    line_blocks,
    lines_before,
    lines_of,
    next_line,
    spellings,
)
from packer.sources.places import Places
from packer.stores import AnyPath
from packer.system_errors import shortage

_BLOCK = 1 << 22  # bytes of text parsed at once, in over ten times the memory; a longer line extends it


class _Parsed(NamedTuple):
    """A block of whole lines, the bytes of the file read up to its end, and its documents or the error in it."""

    text: bytes
    done: int
    result: Block | pa.ArrowException | DocumentError
    rejected: tuple[Rejection, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLines(Input):
    """A file with one JSON object per line, or a piece of one. Blank lines and unknown fields are ignored."""

    file: SourceFile
    path: AnyPath
    has_labels: bool | None
    columns: Columns
    types: Mapping[str, pa.DataType]
    """Types of the extra columns on the first line; values of other types may follow."""

    start: int = 0
    """Byte offset of the first line."""

    stop: int | None = None
    """Byte offset of the end of the last line; None for the end of the file, as for all compressed files."""

    skips: bool = False
    """Whether lines that cannot be used are rejected, with an empty document in the place of each."""

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
            for parsed in working.in_order(partial(self._parse, types=types), self.blocks(_BLOCK)):
                block, done, result, rejected = parsed
                if isinstance(result, pa.ArrowException):
                    raise self._find_fault(block, row, line, str(result))
                if isinstance(result, DocumentError):
                    raise result.at(row + result.row)
                tokens, labels, extra = result
                for column, values in extra.items():
                    types[column] = join(types.get(column, pa.null()), values.type) or values.type
                columns = {column: [values] for column, values in extra.items()}
                lines = block if self.skips else None
                yield Batch(
                    [tokens], [labels] if self.has_labels else None, done, columns, rejected=rejected, lines=lines
                )
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
        return lines_before(self.path, self.start)

    def blocks(self, size: int) -> Iterator[tuple[bytes, int]]:
        """Yield blocks of whole lines, about `size` bytes each, with the bytes of the piece read so far."""
        with reading(self.file.name):
            yield from line_blocks(self.path, size, self.start, self.stop)

    def _parse(self, block: tuple[bytes, int], types: Mapping[str, pa.DataType]) -> _Parsed:
        text, done = block
        try:
            self._refuse_masks(text)
            found = parse_block(text, self.columns, dict(types))
            self._require_lists(found, count_lines(text))
            return _Parsed(text, done, found)
        except (pa.ArrowException, DocumentError) as error:
            if shortage(error) is not None:  # the lines may be valid
                raise
            if not self.skips:
                return _Parsed(text, done, error)
        try:
            usable, rejected = parse_usable(text, self.columns, dict(types), has_labels=bool(self.has_labels))
            return _Parsed(text, done, usable, rejected)
        except DocumentError as error:
            return _Parsed(text, done, error)

    def _require_lists(self, found: Block, lines: int) -> None:
        """Raise an ArrowInvalid if a line holds no object of its own, or lacks a list."""
        tokens, labels, _ = found
        if len(tokens) != lines:
            raise pa.ArrowInvalid("a line must hold one whole object")
        labels_wrong = labels.null_count if self.has_labels else labels.null_count < len(labels)
        if tokens.null_count or tokens.values.null_count or labels_wrong:
            raise pa.ArrowInvalid("a list is missing")

    def _refuse_masks(self, block: bytes) -> None:
        """Raise a DocumentError if a line has a mask that is not read, since the first line has none."""
        for mask in MASKS:
            if mask not in self.columns.extra and any(name in block for name in spellings(mask)):
                for row, line in enumerate(line for line in lines_of(block) if line.strip()):
                    if mask in _fields(line):
                        raise other_mask(row, mask)

    def _find_fault(self, block: bytes, row: int, line: int, reason: str) -> DocumentError:
        """Return the error for the first invalid line of a block that follows `row` documents and `line` lines."""
        line += 1 + self._lines_before()
        first_row, first_line = row, line
        for text in lines_of(block):
            if text.strip():
                fault = line_fault(text, self.columns, has_labels=bool(self.has_labels))
                if fault is not None:
                    fault.place = f"{self.file.name} line {line}"
                    return fault.at(row)
                row += 1
            line += 1
        return DocumentError(first_row, reason.splitlines()[0], f"{self.file.name}, lines {first_line} to {line - 1}")


def open_json_lines(path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> JsonLines:
    """Open a file of JSON lines: read its first line.

    Args:
        path: the file.
        name: its name in messages and in the manifest.
        columns: the columns to read.
        skips: reject lines that cannot be used; the first usable line then takes the place of the first.

    Raises:
        PackerError: a column is missing, or the file cannot be read.
    """
    has_labels, types = None, {}
    with reading(name):
        file = SourceFile(name=name, bytes=path.stat().st_size)
    record = _usable_record(path, name, columns.input_ids, columns.labels) if skips else _first_record(path, name)
    if record:
        require_column(list(record), name, columns)
        require_fields(path, name, record, columns.extra)
        has_labels = record.get(columns.labels) is not None
        types = {column: _type_of(record.get(column), column) for column in columns.extra}
        for column in columns.per_token:
            if skips and not holds_numbers(types[column]):
                types[column] = pa.null()
            check_per_token(types[column], column, name)
            types[column] = join(types[column], pa.list_(pa.null())) or types[column]
    return JsonLines(file=file, path=path, has_labels=has_labels, columns=columns, types=types, skips=skips)


def open_usable_lines(path: AnyPath, name: str, columns: Columns) -> JsonLines:
    """Open a file of JSON lines, whose unusable lines are rejected; see `open_json_lines`."""
    return open_json_lines(path, name, columns, skips=True)


def usable_names(path: AnyPath, name: str, column: str) -> list[str]:
    """Return the names of the fields on the first line with a list in `column`, or else on the first with an object."""
    return list(_usable_record(path, name, column))


def column_names(path: AnyPath, name: str) -> list[str]:
    """Return the names of the fields on the first line that is not blank."""
    return list(_first_record(path, name))


def _first_record(path: AnyPath, name: str) -> dict[str, Any]:
    """Return the object on the first line that is not blank; empty if there is none."""
    _, first = first_line(path, name)
    return _fields(first)  # errors are raised when the documents are read, with the line


def _usable_record(path: AnyPath, name: str, column: str, labels: str = "") -> dict[str, Any]:
    """Return the object on the first line that has a list in a column, or else the first object; empty without any.

    Null labels are passed over: they do not say that there are none on other lines.
    """
    first: dict[str, Any] = {}
    with reading(name):
        for block, _ in line_blocks(path, 1 << 20):
            has_column = any(spelling in block for spelling in spellings(column))
            for line in lines_of(block) if has_column or not first else ():
                record = _fields(line)
                if isinstance(record.get(column), list) and record.get(labels, ...) is not None:
                    return record
                first = first or record
    return first


def _fields(line: bytes) -> dict[str, Any]:
    """Return the fields of the object on a line; empty if there is no object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def require_fields(path: AnyPath, name: str, record: Mapping[str, Any], columns: Sequence[str]) -> None:
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
