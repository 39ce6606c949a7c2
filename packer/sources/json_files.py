"""JSON, plain or compressed: files with one object per line, or with one array of objects.

A plain file of lines is cut into pieces, which are read in parallel. Other files are parsed block by block while the
next block is read. pyarrow parses blocks of token lists. If it fails, Python reads the lines one by one and finds the
faulty ones.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, pairwise
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from packer.arrow import as_scalar
from packer.arrow import compute as pc
from packer.errors import PackerError, SourceError, shortage
from packer.sources import documents, format_reader
from packer.sources.column_types import infer, join, loss_columns, require_lists
from packer.sources.documents import Columns, DocumentError, SourceFile, place_of_row, reading, too_long
from packer.sources.format_reader import CODECS, Lists, Reader, opened
from packer.sources.list_checks import BlockRecords, Faults
from packer.sources.meanings import ONLY_LISTS
from packer.stores import AnyPath

_FIRST = 1 << 16  # number of bytes read at once to find the first record
_SHORT = 1 << 14  # maximum length in bytes of a line that is parsed twice: 1% of the work for its block
_BLOCK = 1 << 22  # bytes parsed at once, which takes over ten times the memory; a longer line makes a larger block


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonFile(Reader):
    """A file of JSON objects, or a piece of one. Blank lines and unknown fields are ignored."""

    file: SourceFile
    is_array: bool
    """Whether the file holds one array; each element is then read like a line."""

    block: int
    fields: Mapping[str, object] | None = None
    lists: Columns | None = None
    """Columns of token lists, which pyarrow parses; None for other records."""

    types: dict[str, pa.DataType] = field(default_factory=dict, compare=False)
    """Types of the extra columns seen so far. Blocks whose values fit are parsed fast."""

    start: int = 0
    stop: int | None = None
    """Byte offset of the end of the last line; None for the end of the file, as for arrays and compressed files."""

    @classmethod
    def open(cls, file: SourceFile) -> JsonFile:
        """Open a file, and read its first valid record."""
        with reading(file.name):
            reader = cls(file=file, is_array=_begins_with_array(file.stored), block=format_reader.BLOCK)
            first: DocumentError | None = None
            try:
                for lines, _ in replace(reader, block=_FIRST).blocks(()):
                    for line in _filled_lines(lines):
                        try:
                            return replace(reader, fields=_read_record(line))
                        except DocumentError as fault:
                            first = first or fault
            except DocumentError as fault:  # the array is damaged
                first = first or fault
            if first is None:
                return reader
            first.place = reader.place(0)
            raise first.in_source(0)

    def for_lists(self, columns: Columns) -> Lists:
        """Prepare to parse blocks of token lists."""
        _, has_labels, _ = Reader.for_lists(self, columns)
        record, types = self.fields or {}, dict.fromkeys(columns.extra, pa.null())
        for column in columns.extra:
            with contextlib.suppress(DocumentError):  # raised again when the documents are read
                types[column] = infer([record.get(column)], column).type
        no_numbers = pa.list_(pa.null())
        types |= {column: join(types[column], no_numbers) or no_numbers for column in columns.per_token}
        return Lists(replace(self, block=_BLOCK, lists=columns if record else None, types=types), has_labels)

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut a plain file between lines, near multiples of `size`. Arrays and compressed files stay whole."""
        if self.is_array or self.path.suffix in CODECS or self.file.bytes <= size:
            return (self,)
        with reading(self.file.name), self.path.open("rb") as file:
            bounds = {0, self.file.bytes, *(_next_line(file, at) for at in range(size, self.file.bytes, size))}
        return [
            replace(self, file=replace(self.file, bytes=stop - start), start=start, stop=stop)
            for start, stop in pairwise(sorted(bounds))
        ]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        """Yield (block of whole lines, number of bytes of the piece read so far)."""
        with reading(self.file.name):
            if self.is_array:
                yield from _array_blocks(self.path, self.block)
            else:
                yield from _line_blocks(self.path, self.block, self.start, self.stop)

    def records(self, block: bytes, columns: Sequence[str]) -> tuple[BlockRecords, Faults]:
        """Parse every line that is not blank: with pyarrow if it accepts the token lists, otherwise line by line."""
        if self.lists is not None:
            parsed = _parse_lines(block, self.lists, self.types, has_labels=self.lists.labels in columns)
            if parsed is not None:
                for name in self.lists.extra:
                    kind = parsed.schema.field(name).type
                    self.types[name] = join(self.types[name], kind) or kind
                return parsed, {}
        return _read_records(_filled_lines(block))

    def names_in(self, block: bytes, records: BlockRecords) -> Collection[str]:
        """Return the names of all fields in a block. If pyarrow parsed the block, a short first line is enough."""
        if not isinstance(records, pa.RecordBatch):
            return set[str]().union(*records)
        with contextlib.suppress(DocumentError):  # a blank line or a repeated field, both of which pyarrow accepts
            return _read_record(block[: max(block.find(b"\n", 0, _SHORT), 0)])
        return ()

    def lines_of(self, block: bytes) -> bytes | None:
        """Return the block, which consists of lines of the file; None for an array, whose elements are not lines."""
        return None if self.is_array else block

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns is in some record; other records get null.

        The file is searched only if its first record lacks a column.
        """
        for column in columns:
            if self.fields is None or column in self.fields:
                continue
            if not self._has(column):
                found = ", ".join(self.fields) or "none"
                raise PackerError(f"{self.file.name}: no column '{column}' (found: {found}); all files need it")

    def _has(self, column: str) -> bool:
        """Whether any valid record has a column. In a damaged array, only records before the damage count."""
        # names as JSON writes them: with escapes for non-ASCII letters, and as UTF-8
        names = json.dumps(column).encode(), json.dumps(column, ensure_ascii=False).encode(errors="replace")
        with contextlib.suppress(DocumentError):
            for line in chain.from_iterable(_filled_lines(block) for block, _ in self.blocks(())):
                with contextlib.suppress(DocumentError):
                    if any(name in line for name in names) and column in _read_record(line):
                        return True
        return False

    @property
    def place(self) -> Callable[[int], str]:
        """Function that returns the location of a record: its line, or its row in an array."""
        return partial(place_of_row, self.file.name, 0) if self.is_array else self.line_of

    def line_of(self, row: int) -> str:
        """Return the line of a record, such as "rows.jsonl line 18". Reads the file again."""
        line = lines_before(self.path, self.start)
        for block, _ in _line_blocks(self.path, _BLOCK, self.start, self.stop):
            numbers = filled_line_numbers(block)
            if row < len(numbers):
                return f"{self.file.name} line {line + numbers[row]}"
            row, line = row - len(numbers), line + block.count(b"\n")
        raise AssertionError(row)


_NEWLINE, _BRACE = b"\n{"
_SPACES = b" \t\r\v\f"  # may precede an object, or fill a blank line
_EXACT = 2**53  # below it, doubles represent every integer
_LIST = pa.list_(pa.int32())


def _parse_lines(
    block: bytes, columns: Columns, types: Mapping[str, pa.DataType], *, has_labels: bool
) -> pa.RecordBatch | None:
    """Parse a block of whole lines with token lists. Columns that a line lacks are null there.

    `types` are tried first for the extra columns, and may differ between blocks. Returns None if a line may be invalid.
    """
    try:
        _refuse_absent(block, columns)
        parsed = _parse(block, columns, types)
        _require_lists(parsed, columns, _count_lines(block), has_labels=has_labels)
    except (pa.ArrowException, DocumentError) as error:
        if shortage(error) is not None:  # the lines may be valid
            raise
        return None
    names = dict.fromkeys(columns.wanted(has_labels=has_labels))
    return pa.record_batch([parsed[name] for name in names], names=[*names])


def _parse(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """Parse a block of whole lines to its columns.

    `types` are tried first for the extra columns, because pyarrow then parses at full speed. If they do not represent
    every value exactly, the values are read again one by one. Raises an ArrowInvalid, without a location, if a line is
    invalid. Raises a DocumentError if no type represents all values of an extra column.
    """
    if _count_lines(block) < 0:  # checked first, since pyarrow crashes on a line `null`
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
        except pa.ArrowInvalid:  # perhaps a value only has another type
            pass
    lists = _read(block, columns, {})
    records = [_read_record(line) for line in _filled_lines(block)] if columns.extra else []
    extra = {name: infer([record.get(name) for record in records], name) for name in columns.extra}
    return extra | {name: require_lists(extra[name], name) for name in columns.per_token} | lists


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


def _is_checked(kind: pa.DataType) -> bool:
    """Whether pyarrow refuses all values that do not fit a type, except integers that are too large for a double.

    It does not for structs, whose unknown fields it ignores.
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


def _count_lines(block: bytes) -> int:
    """Count the lines that are not blank. Returns -1 if a line does not begin with a brace."""
    first = _first_bytes(block)
    if not (first == _BRACE).all():  # blank, indented or invalid lines
        first = _first_bytes(block.translate(None, _SPACES))
        first = first[first != _NEWLINE]
    return len(first) if (first == _BRACE).all() else -1


def _first_bytes(block: bytes) -> NDArray[np.uint8]:
    """Return the first byte of every line; for an empty line, its newline."""
    text = np.frombuffer(block, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(text == _NEWLINE) + 1])
    first: NDArray[np.uint8] = text[starts[starts < len(text)]]
    return first


def _require_lists(parsed: Mapping[str, pa.Array], columns: Columns, lines: int, *, has_labels: bool) -> None:
    """Raise an ArrowInvalid if a line does not hold exactly one object, or lacks a list."""
    tokens, labels = parsed[columns.input_ids], parsed[columns.labels]
    if len(tokens) != lines:
        raise pa.ArrowInvalid("a line must hold one whole object")
    labels_wrong = labels.null_count if has_labels else labels.null_count < len(labels)
    if tokens.null_count or tokens.values.null_count or labels_wrong:
        raise pa.ArrowInvalid("a list is missing")


def _refuse_absent(block: bytes, columns: Columns) -> None:
    """Raise an ArrowInvalid if a line has a mask or weight that the first record lacks: it would not be read."""
    if columns.absent and _pattern(columns.absent).search(block):
        for line in _filled_lines(block):
            if loss_columns(_read_record(line), columns.absent):
                raise pa.ArrowInvalid("a column is not read")


@cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Return a regular expression for fields with these names. Some names match only if their value is a list."""
    ways = (rf'{name}"\s*:' + r"\s*\[" * (name in ONLY_LISTS) for name in names)
    return re.compile(f'"(?:{"|".join(ways)})'.encode())


_READ = 1 << 16  # number of bytes of an array read at once, unless an element is longer
_MARK = b"\xef\xbb\xbf"  # byte order mark that some editors write before UTF-8

_QUOTE, _COMMA = b'",'
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_IS_MARK = _STEPS != 0
_IS_MARK[[_QUOTE, _COMMA]] = True


def _line_blocks(path: AnyPath, size: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, int]]:
    """Yield (block of whole lines, about `size` bytes each; number of bytes of the file read since `start`).

    The first line begins at byte `start`, which is 0 for compressed files. The last one ends before byte `stop`; None
    is the end of the file. Raises a SourceError if a line has more than `MOST_RECORD` bytes.
    """
    with opened(path) as (file, stream):
        if start:
            file.seek(start)
        taken = start

        def read(limit: int) -> bytes:
            nonlocal taken
            read: bytes = stream.read(limit if stop is None else min(limit, stop - file.tell()))
            taken += len(read)
            return read

        parts: list[bytes] = []
        held = 0  # number of bytes in `lines`
        block = read(size) if start else read(len(_MARK)).removeprefix(_MARK) + read(size)
        while block:
            end = block.rfind(b"\n") + 1
            if end:
                yield b"".join([*parts, block[:end]]), file.tell() - start
                parts, held = [], 0
            parts.append(block[end:])
            held += len(block) - end
            if held > documents.MOST_RECORD:
                raise SourceError(f"{path} line {lines_before(path, taken - held) + 1}: {too_long('bytes')}")
            block = read(size)
        if any(parts):
            yield b"".join(parts), file.tell() - start


def _begins_with_array(path: AnyPath) -> bool:
    """Whether a file begins like a JSON array."""
    with opened(path) as (_, stream):
        start: bytes = stream.read(1 << 12)
    return start.removeprefix(_MARK).lstrip().startswith(b"[")


def _array_blocks(path: AnyPath, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield (block of about `size` bytes with an element of a JSON array per line, number of bytes of the file read).

    If the file does not hold exactly one array, or an element has more than `MOST_RECORD` bytes, yields the elements
    before this fault, then raises a DocumentError.
    """
    block: list[bytes] = []
    held, fault = 0, None
    with opened(path) as (file, stream):
        try:
            for element in _elements(stream):
                block.append(element.replace(b"\n", b" "))  # JSON strings contain no newline
                held += len(element)
                if held >= size:
                    yield b"\n".join(block), file.tell()
                    block, held = [], 0
        except DocumentError as error:
            fault = error
        if block:
            yield b"\n".join(block), file.tell()
        if fault is not None:
            raise fault


def _elements(stream: pa.NativeFile) -> Iterator[bytes]:
    """Yield the elements of an array without surrounding space. Their content is not checked."""
    text: bytes = stream.read(len(_MARK)).removeprefix(_MARK) + stream.read(_READ)
    text = text[text.index(b"[") + 1 :]
    is_first = True
    while True:
        start, ends = 0, _ends_of_elements(text)
        for end in ends:
            element = text[start:end].strip()
            if element:
                yield element
            elif not (is_first and text[end:].startswith(b"]")):
                raise DocumentError(0, f"not a valid JSON array: {chr(text[end])!r} where one of {{ is expected")
            start, is_first = end + 1, False
        if start and text[start - 1 :].startswith(b"]"):
            break
        text = text[start:]
        if len(text) > documents.MOST_RECORD:
            raise DocumentError(0, too_long("bytes"))
        more = stream.read(max(_READ, len(text)))
        if not more:
            raise DocumentError(0, "not a valid JSON array: the end of the file where one of ,] is expected")
        text += more
    rest: bytes = text[start:].strip()
    while not rest and (more := stream.read(_READ)):
        rest = more.strip()
    if rest:
        raise DocumentError(0, f"{rest.decode(errors='replace')[:20]!r} follows the end of the array; remove it")


def _ends_of_elements(text: bytes) -> list[int]:
    """Return the positions of the commas between elements, and of the closing bracket of the array if it is there.

    '{"a": [1, 2]}, 5]' -> [13, 16]
    """
    unescaped = text.replace(rb"\\", b"__").replace(rb"\"", b"__")  # replacements keep the length
    characters = np.frombuffer(unescaped, np.uint8)
    places = np.flatnonzero(_IS_MARK[characters])
    marks = characters[places]
    is_outside = np.cumsum(marks == _QUOTE) % 2 == 0  # outside of strings
    depth = np.cumsum(np.where(is_outside, _STEPS[marks], 0))
    ends: list[int] = places[is_outside & (depth == 0) & (marks == _COMMA)].tolist()
    closing = places[depth < 0][:1].tolist()
    return [end for end in ends if end < closing[0]] + closing if closing else ends


def lines_before(path: AnyPath, end: int) -> int:
    """Count the lines in the first `end` bytes of the decompressed file."""
    lines = 0
    with opened(path) as (_, stream):
        while end > 0 and (block := stream.read(min(end, 1 << 22))):
            lines, end = lines + block.count(b"\n"), end - len(block)
    return lines


def _next_line(file: BinaryIO, at: int) -> int:
    """Return the offset of the first line that begins at byte `at` or later."""
    file.seek(at - 1)
    while block := file.read(1 << 16):
        end = block.find(b"\n")
        if end >= 0:
            return file.tell() - len(block) + end + 1
    return file.tell()


def _filled_lines(block: bytes) -> list[bytes]:
    """Split a block into the lines that are not blank, without leading whitespace."""
    return [line for line in map(bytes.lstrip, block.rstrip().split(b"\n")) if line]


def filled_line_numbers(block: bytes) -> list[int]:
    """Return the numbers, from 1, of the lines in a block that are not blank."""
    return [number for number, line in enumerate(block.split(b"\n"), start=1) if line.strip()]


def _read_record(line: bytes) -> dict[str, object]:
    """Parse the object on a line. Raises a DocumentError if there is none."""
    try:
        text = line.decode()
        record, end = _DECODER.raw_decode(text) if text[:1] == "{" else (None, -1)
        if end != len(text):  # json.loads skips spaces, and tells what is wrong
            record = json.loads(text, object_pairs_hook=_unique_fields)
    except UnicodeDecodeError as error:
        message = f"invalid UTF-8 at byte {error.start} of the line; write the file as UTF-8"
        raise DocumentError(0, message, reason="unreadable") from None
    except (ValueError, RecursionError) as error:
        raise DocumentError(0, f"not valid JSON: {error}", reason="unreadable") from None
    if not isinstance(record, dict):
        what = {list: "an array", str: "a string", type(None): "null"}.get(type(record), "a number")
        message = f"{what} where an object is expected; write one object per line (jq -c '.[]' unrolls an array)"
        raise DocumentError(0, message, reason="unreadable")
    return record


def _read_records(lines: Iterable[bytes]) -> tuple[list[dict[str, object]], Faults]:
    """Parse the objects on lines. Returns (records, faults): an invalid line has an empty record and a fault."""
    records, faults = list[dict[str, object]](), Faults()
    for row, line in enumerate(lines):
        try:
            records.append(_read_record(line))
        except DocumentError as fault:
            faults[row] = fault.at(row)
            records.append({})
    return records, faults


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object from its fields. Raises a ValueError if a field occurs twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"a field is given twice: '{next(name for name in names if names.count(name) > 1)}'")
    return record


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_fields)  # json.loads would make one for each line
