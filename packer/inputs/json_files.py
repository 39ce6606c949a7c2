"""JSON, plain or compressed: a file with an object per line, or with one array of objects.

A plain file of lines is cut into pieces, which are read in parallel. Other files are parsed block by block while the
next block is read. pyarrow parses a block of token lists. If that fails, Python reads its lines one by one, and finds
the lines at fault.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from packer.arrow import as_scalar
from packer.arrow import compute as pc
from packer.errors import PackerError, shortage
from packer.inputs import format_reader
from packer.inputs.column_types import infer, join, require_column, require_lists
from packer.inputs.documents import Columns, DocumentError, SourceFile, place_of_row, reading
from packer.inputs.format_reader import CODECS, DecodedInput, Reader, decoded_lists
from packer.inputs.line_blocks import (
    array_blocks,
    begins_with_array,
    filled_line_numbers,
    filled_lines,
    line_blocks,
    lines_before,
    next_line,
    read_record,
    read_records,
    spellings,
)
from packer.inputs.list_checks import BlockRecords, Faults
from packer.inputs.loss_columns import loss_columns
from packer.inputs.meanings import ONLY_LISTS

_FIRST = 1 << 16  # bytes read at once to find the first record
_SHORT = 1 << 14  # bytes of a line that is read a second time, a hundredth of the work for its block
_BLOCK = 1 << 22  # bytes of token lists parsed at once, in over ten times the memory; a longer line extends it


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonFile(Reader):
    """A file of JSON objects, or a piece of one. Blank lines and unknown fields are ignored."""

    file: SourceFile
    is_array: bool
    """Whether the file holds one array, each element of which is read as a line."""

    block: int
    fields: Mapping[str, object] | None = None
    lists: Columns | None = None
    """Columns of token lists, which pyarrow parses; None for other records."""

    types: dict[str, pa.DataType] = field(default_factory=dict, compare=False)
    """Types of the extra columns in all records so far; parsing is fast while new values fit them."""

    start: int = 0
    stop: int | None = None
    """Byte offset of the end of the last line; None for the end of the file, as for arrays and compressed files."""

    @classmethod
    def open(cls, file: SourceFile) -> JsonFile:
        """Open a file of records: read the first one."""
        return _open(file, format_reader.BLOCK)

    @classmethod
    def open_lists(cls, file: SourceFile, columns: Columns) -> DecodedInput:
        """Open a file of token lists: read its first valid record."""
        reader = _open(file, _BLOCK)
        record = reader.fields or {}
        if not record:
            return decoded_lists(reader, columns, has_labels=None)
        require_column(record, file.name, columns)
        reader.require(columns.extra)
        types = dict.fromkeys(columns.extra, pa.null())
        for column in columns.extra:
            with contextlib.suppress(DocumentError):  # which is raised when the documents are read
                types[column] = infer([record.get(column)], column).type
        no_numbers = pa.list_(pa.null())
        types |= {column: join(types[column], no_numbers) or no_numbers for column in columns.per_token}
        has_labels = record.get(columns.labels) is not None
        return decoded_lists(replace(reader, lists=columns, types=types), columns, has_labels=has_labels)

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut a plain file between lines, near multiples of `size`; an array or a compressed file stays whole."""
        if self.is_array or self.path.suffix in CODECS or self.file.bytes <= size:
            return (self,)
        with reading(self.file.name), self.path.open("rb") as file:
            bounds = {0, self.file.bytes, *(next_line(file, at) for at in range(size, self.file.bytes, size))}
        return [
            replace(self, file=replace(self.file, bytes=stop - start), start=start, stop=stop)
            for start, stop in pairwise(sorted(bounds))
        ]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        """Yield blocks of whole lines, with the bytes of the piece read so far."""
        with reading(self.file.name):
            if self.is_array:
                yield from array_blocks(self.path, self.block)
            else:
                yield from line_blocks(self.path, self.block, self.start, self.stop)

    def records(self, block: bytes, columns: Sequence[str]) -> tuple[BlockRecords, Faults]:
        """Parse every line that is not blank: all at once if they are token lists that pyarrow takes, or one by one."""
        if self.lists is not None:
            parsed = parse_lines(block, self.lists, self.types, has_labels=self.lists.labels in columns)
            if parsed is not None:
                for name in self.lists.extra:
                    kind = parsed.schema.field(name).type
                    self.types[name] = join(self.types[name], kind) or kind
                return parsed, {}
        return read_records(filled_lines(block))

    def names_in(self, block: bytes, records: BlockRecords) -> Collection[str]:
        """Return the names of all fields; of token lists that pyarrow parsed, of the first line if it is short."""
        if not isinstance(records, pa.RecordBatch):
            return set[str]().union(*records)
        with contextlib.suppress(DocumentError):  # blank, or with a field twice, which pyarrow takes
            return read_record(block[: max(block.find(b"\n", 0, _SHORT), 0)])
        return ()

    def lines_of(self, block: bytes) -> bytes | None:
        """Return the block, which is made of the lines of the file; None for an array."""
        return None if self.is_array else block

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns is in some record. It is null in records without it.

        Only a file whose first record lacks one is searched.
        """
        for column in columns:
            if self.fields is None or column in self.fields:
                continue
            if not self._has(column):
                found = ", ".join(self.fields) or "none"
                raise PackerError(f"{self.file.name}: no column '{column}' (found: {found}); all files need it")

    def _has(self, column: str) -> bool:
        """Whether a valid record has a column, up to where an array is damaged."""
        names = spellings(column)
        with contextlib.suppress(DocumentError):
            for line in chain.from_iterable(filled_lines(block) for block, _ in self.blocks(())):
                with contextlib.suppress(DocumentError):
                    if any(name in line for name in names) and column in read_record(line):
                        return True
        return False

    @property
    def place(self) -> Callable[[int], str]:
        """Function from a record to its location: its line, or its row in an array."""
        return partial(place_of_row, self.file.name, 0) if self.is_array else self.line_of

    def line_of(self, row: int) -> str:
        """Return the line of a record, such as "rows.jsonl line 18"; reads the file again."""
        line = lines_before(self.path, self.start)
        for block, _ in line_blocks(self.path, _BLOCK, self.start, self.stop):
            numbers = filled_line_numbers(block)
            if row < len(numbers):
                return f"{self.file.name} line {line + numbers[row]}"
            row, line = row - len(numbers), line + block.count(b"\n")
        raise AssertionError(row)


def _open(file: SourceFile, block: int) -> JsonFile:
    with reading(file.name):
        reader = JsonFile(file=file, is_array=begins_with_array(file.stored), block=block)
        first: DocumentError | None = None
        try:
            for lines, _ in replace(reader, block=_FIRST).blocks(()):
                for line in filled_lines(lines):
                    try:
                        return replace(reader, fields=read_record(line))
                    except DocumentError as fault:
                        first = first or fault
        except DocumentError as fault:  # the array is damaged
            first = first or fault
        if first is None:
            return reader
        first.place = reader.place(0)
        raise first.in_source(0)


_NEWLINE, _BRACE = b"\n{"
_SPACES = b" \t\r\v\f"  # may precede an object, or fill a blank line
_EXACT = 2**53  # below it, doubles represent every integer
_LIST = pa.list_(pa.int32())


def parse_lines(
    block: bytes, columns: Columns, types: Mapping[str, pa.DataType], *, has_labels: bool
) -> pa.RecordBatch | None:
    """Parse a block of whole lines with token lists; columns that a line lacks are null there.

    `types` are tried first for the extra columns, and may differ from block to block. Returns None if a line may be
    invalid.
    """
    try:
        _refuse_absent(block, columns)
        parsed = _parse(block, columns, types)
        _require_lists(parsed, columns, count_lines(block), has_labels=has_labels)
    except (pa.ArrowException, DocumentError) as error:
        if shortage(error) is not None:  # the lines may be valid
            raise
        return None
    names = dict.fromkeys(columns.wanted(has_labels=has_labels))
    return pa.record_batch([parsed[name] for name in names], names=[*names])


def _parse(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """Parse a block of whole lines to its columns.

    `types` are tried first for the extra columns: pyarrow parses them at full speed. If they do not hold every value of
    the block exactly, the values are read again one by one. Raises an ArrowInvalid, which does not say where, if a line
    is invalid, and a DocumentError if no type holds all values of an extra column.
    """
    if count_lines(block) < 0:  # checked first, since pyarrow crashes on a line `null`
        raise pa.ArrowInvalid("a line does not hold an object")
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(str(error)) from None
    if types and all(map(_is_checked, types.values())):
        try:
            parsed = _read(block, columns, types)
            if all(_is_exact(parsed[column]) for column in columns.extra):
                return parsed
        except pa.ArrowInvalid:  # a value may merely be of another type
            pass
    lists = _read(block, columns, {})
    records = [read_record(line) for line in filled_lines(block)] if columns.extra else []
    return _infer_extra({name: [record.get(name) for record in records] for name in columns.extra}, columns) | lists


def _read(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    schema = {**types, columns.input_ids: _LIST, columns.labels: _LIST}
    table = pyarrow.json.read_json(
        pa.BufferReader(block),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(list(schema.items())), unexpected_field_behavior="ignore"
        ),
    )
    return {name: table[name].chunk(0) for name in schema}  # the only chunk, since there is one block


def _infer_extra(values: Mapping[str, Sequence[object]], columns: Columns) -> dict[str, pa.Array]:
    """Return the values of the extra columns as arrays of inferred types."""
    extra = {name: infer(values[name], name) for name in columns.extra}
    return extra | {name: require_lists(extra[name], name) for name in columns.per_token}


def _is_checked(kind: pa.DataType) -> bool:
    """Whether pyarrow refuses all values that do not fit a type, except large integers for doubles.

    Structs are not checked: pyarrow ignores unknown fields.
    """
    if pa.types.is_list(kind):
        return _is_checked(kind.value_type)
    return not pa.types.is_struct(kind)


def _is_exact(array: pa.Array) -> bool:
    """Whether every integer was parsed exactly."""
    if pa.types.is_list(array.type):
        return _is_exact(array.flatten())
    if not pa.types.is_floating(array.type):
        return True
    return not pc.any(pc.greater_equal(pc.abs(array), as_scalar(_EXACT, array.type))).as_py()


def count_lines(block: bytes) -> int:
    """Count the lines that are not blank. Returns -1 if a line does not begin with a brace."""
    first = _first_bytes(block)
    if not (first == _BRACE).all():  # blank, indented or invalid lines
        first = _first_bytes(block.translate(None, _SPACES))
        first = first[first != _NEWLINE]
    return len(first) if (first == _BRACE).all() else -1


def _first_bytes(block: bytes) -> NDArray[np.uint8]:
    """First byte of every line, which is the newline if the line is empty."""
    text = np.frombuffer(block, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(text == _NEWLINE) + 1])
    first: NDArray[np.uint8] = text[starts[starts < len(text)]]
    return first


def _require_lists(parsed: Mapping[str, pa.Array], columns: Columns, lines: int, *, has_labels: bool) -> None:
    """Raise an ArrowInvalid if a line holds no object of its own, or lacks a list."""
    tokens, labels = parsed[columns.input_ids], parsed[columns.labels]
    if len(tokens) != lines:
        raise pa.ArrowInvalid("a line must hold one whole object")
    labels_wrong = labels.null_count if has_labels else labels.null_count < len(labels)
    if tokens.null_count or tokens.values.null_count or labels_wrong:
        raise pa.ArrowInvalid("a list is missing")


def _refuse_absent(block: bytes, columns: Columns) -> None:
    """Raise an ArrowInvalid if a line has a column that says what is trained and is not read, as the first has none."""
    if columns.absent and _pattern(columns.absent).search(block):
        for line in filled_lines(block):
            if loss_columns(read_record(line), columns.absent):
                raise pa.ArrowInvalid("a column is not read")


@cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Return the pattern of fields with one of these names, and with a list as their value where they need one."""
    ways = (rf'{name}"\s*:' + r"\s*\[" * (name in ONLY_LISTS) for name in names)
    return re.compile(f'"(?:{"|".join(ways)})'.encode())
