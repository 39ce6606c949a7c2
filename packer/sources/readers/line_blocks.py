"""Read JSON lines, plain or compressed, in blocks of whole lines, and parse the object on a line."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from packer.errors import SourceError
from packer.sources import documents
from packer.sources.documents import reading
from packer.sources.files.file_access import open_stream
from packer.stores import AnyPath

CODECS = {".gz": "gzip", ".zst": "zstd"}

MOST_BLANK = 1 << 28
"""Largest number of bytes in blank lines before the first document; they are read before anything is printed."""

_BETWEEN = re.compile(rb"\n\s*")
_MARK = b"\xef\xbb\xbf"  # byte order mark, which some editors write before UTF-8


def line_blocks(path: AnyPath, size: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines, about `size` bytes each, with the bytes of the file read since `start`.

    Args:
        path: the file.
        size: approximate size of a block, in bytes.
        start: byte offset of the first line; 0 for compressed files.
        stop: byte offset of the end of the last line; None for the end of the file, as for compressed files.

    Raises:
        SourceError: a line has more than `MOST_RECORD` bytes.
    """
    with open_stream(path) as file:
        stream = decompressed(path, file)
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


def decompressed(path: AnyPath, file: pa.NativeFile) -> pa.NativeFile:
    """Return the content of an open file, decompressed if the ending of its path says so."""
    codec = CODECS.get(path.suffix)
    return pa.CompressedInputStream(file, codec) if codec else file


def too_long(unit: str) -> str:
    """Return the message for a record that is larger than `MOST_RECORD` bytes or characters."""
    return f"the record has more than {documents.MOST_RECORD:,} {unit}, the limit; split it into several, or remove it"


def lines_before(path: AnyPath, end: int) -> int:
    """Count the lines in the first `end` bytes of a file, decompressed."""
    lines = 0
    with open_stream(path) as file:
        stream = decompressed(path, file)
        while end > 0 and (block := stream.read(min(end, 1 << 22))):
            lines, end = lines + block.count(b"\n"), end - len(block)
    return lines


def first_line(path: AnyPath, name: str) -> tuple[int, bytes]:
    """Return (number, content) of the first line that is not blank, counted from 1; (0, b"") if there is none.

    Raises:
        SourceError: the file begins with more than `MOST_BLANK` bytes of blank lines.
        PackerError: the file cannot be read.
    """
    number, blank = 1, 0
    with reading(name):
        for block, _ in line_blocks(path, 1 << 16):
            filled = block.lstrip()
            if filled:
                number += block[: len(block) - len(filled)].count(b"\n")
                return number, filled.split(b"\n", 1)[0]
            number += block.count(b"\n")
            blank += len(block)
            if blank > MOST_BLANK:
                raise SourceError(
                    f"{name}: its first {blank:,} bytes are blank lines, above the limit of {MOST_BLANK:,}; remove them"
                )
    return 0, b""


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
    return [number for number, line in enumerate(lines_of(block), start=1) if line.strip()]


def lines_of(block: bytes) -> list[bytes]:
    """Split a block into lines, without their ends."""
    lines = block.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def has_field(path: AnyPath, column: str) -> bool:
    """Whether the object on some line of a file has this field; invalid lines are skipped."""
    for block, _ in line_blocks(path, 1 << 20):
        if any(name in block for name in spellings(column)):
            for line in lines_of(block):
                with contextlib.suppress(ValueError):
                    if any(name in line for name in spellings(column)) and column in read_record(line):
                        return True
    return False


def spellings(column: str) -> tuple[bytes, bytes]:
    """Return the name of a field as JSON writes it: with escapes for letters beyond ASCII, and as UTF-8."""
    return json.dumps(column).encode(), json.dumps(column, ensure_ascii=False).encode(errors="replace")


def read_record(line: bytes) -> dict[str, Any]:
    """Parse the object on a line.

    Raises:
        ValueError: the line holds no valid object; the message says why.
    """
    try:
        record = json.loads(line.decode(), object_pairs_hook=unique_fields)
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start} of the line; write the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(record, dict):
        what = {list: "an array", str: "a string", type(None): "null"}.get(type(record), "a number")
        raise ValueError(
            f"{what} where an object is expected; write one object per line (jq -c '.[]' unrolls an array)"
        )
    return record


def object_on(line: bytes) -> dict[str, Any]:
    """Return the object on a line, which may give a field twice; empty if there is no valid one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields; raise a ValueError if one is given twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"a field is given twice: '{next(name for name in names if names.count(name) > 1)}'")
    return record
