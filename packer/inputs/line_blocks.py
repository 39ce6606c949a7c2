"""Read JSON, plain or compressed, in blocks of whole lines, and parse the object on a line.

A file with one JSON array is read as lines, too: each of its elements becomes a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from packer.errors import SourceError
from packer.inputs import documents
from packer.inputs.documents import DocumentError, too_long
from packer.inputs.format_reader import opened
from packer.inputs.list_checks import Faults
from packer.stores import AnyPath

_READ = 1 << 16  # bytes of an array read at once, unless an element is longer
_BETWEEN = re.compile(rb"\n\s*")
_MARK = b"\xef\xbb\xbf"  # byte order mark, which some editors write before UTF-8

_QUOTE, _COMMA = b'",'
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_IS_MARK = _STEPS != 0
_IS_MARK[[_QUOTE, _COMMA]] = True


def line_blocks(path: AnyPath, size: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines, about `size` bytes each, with the bytes of the file read since `start`.

    The first line begins at byte `start`, which is 0 for compressed files, and the last one ends before byte `stop`,
    None for the end of the file. A SourceError is raised if a line has more than `MOST_RECORD` bytes.
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
        held = 0  # bytes in them
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


def begins_with_array(path: AnyPath) -> bool:
    """Whether a file begins like a JSON array."""
    with opened(path) as (_, stream):
        start: bytes = stream.read(1 << 12)
    return start.removeprefix(_MARK).lstrip().startswith(b"[")


def array_blocks(path: AnyPath, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the elements of a JSON array as blocks of lines, about `size` bytes each, with the bytes of the file read.

    A DocumentError is raised after all elements before it if the file does not hold one whole array, or an element has
    more than `MOST_RECORD` bytes.
    """
    block: list[bytes] = []
    held, fault = 0, None
    with opened(path) as (file, stream):
        try:
            for element in _elements(stream):
                block.append(element.replace(b"\n", b" "))  # a string cannot hold one
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
    """Yield the elements of an array without the space around them; what is inside them is not checked."""
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
    """Return the places of the commas between elements, and of the bracket that closes the array if it is there.

    '{"a": [1, 2]}, 5]' -> [13, 16]
    """
    unescaped = text.replace(rb"\\", b"__").replace(rb"\"", b"__")  # of the same length
    characters = np.frombuffer(unescaped, np.uint8)
    places = np.flatnonzero(_IS_MARK[characters])
    marks = characters[places]
    is_outside = np.cumsum(marks == _QUOTE) % 2 == 0  # of strings
    depth = np.cumsum(np.where(is_outside, _STEPS[marks], 0))
    ends: list[int] = places[is_outside & (depth == 0) & (marks == _COMMA)].tolist()
    closing = places[depth < 0][:1].tolist()
    return [end for end in ends if end < closing[0]] + closing if closing else ends


def lines_before(path: AnyPath, end: int) -> int:
    """Count the lines in the first `end` bytes of a file, decompressed."""
    lines = 0
    with opened(path) as (_, stream):
        while end > 0 and (block := stream.read(min(end, 1 << 22))):
            lines, end = lines + block.count(b"\n"), end - len(block)
    return lines


def next_line(file: BinaryIO, at: int) -> int:
    """Return the offset of the first line that begins at byte `at` or later."""
    file.seek(at - 1)
    while block := file.read(1 << 16):
        end = block.find(b"\n")
        if end >= 0:
            return file.tell() - len(block) + end + 1
    return file.tell()


def filled_lines(block: bytes) -> list[bytes]:
    """Split a block into the lines that are not blank, without leading whitespace."""
    stripped = block.strip()
    return _BETWEEN.split(stripped) if stripped else []


def filled_line_numbers(block: bytes) -> list[int]:
    """Return the number of each line of a block that is not blank, counted from 1."""
    return [number for number, line in enumerate(block.split(b"\n"), start=1) if line.strip()]


def spellings(column: str) -> tuple[bytes, bytes]:
    """Return the name of a field as JSON writes it: with escapes for letters beyond ASCII, and as UTF-8."""
    return json.dumps(column).encode(), json.dumps(column, ensure_ascii=False).encode(errors="replace")


def read_record(line: bytes) -> dict[str, object]:
    """Parse the object on a line. Raises a DocumentError if there is none."""
    try:
        record = json.loads(line.decode(), object_pairs_hook=_unique_fields)
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


def read_records(lines: Iterable[bytes]) -> tuple[list[dict[str, object]], Faults]:
    """Parse the objects on lines. Returns (records, faults): an invalid line has an empty record and a fault."""
    records, faults = list[dict[str, object]](), Faults()
    for row, line in enumerate(lines):
        try:
            records.append(read_record(line))
        except DocumentError as fault:
            faults[row] = fault.at(row)
            records.append({})
    return records, faults


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object of its fields; raise a ValueError if one is given twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"a field is given twice: '{next(name for name in names if names.count(name) > 1)}'")
    return record
