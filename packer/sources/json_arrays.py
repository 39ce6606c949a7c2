"""Text records in a JSON array: one array of objects in a file, plain or compressed, read a piece at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from packer.errors import SourceError
from packer.sources import text_records
from packer.sources.documents import DocumentError, SourceFile, reading
from packer.sources.lines import CODECS, unique_fields
from packer.sources.text_records import RecordReader, in_blocks

_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST_TOKEN = 16
"""Characters at the end of what is read so far in which an error may only mean that the rest is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonArray(RecordReader):
    """A file that holds an array of objects."""

    file: SourceFile
    path: Path
    fields: Mapping[str, Any] | None
    """First object; None if the array is empty."""

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[list[Any], int]]:
        """Yield runs of objects, about `BLOCK` characters each, with the bytes of the file up to the last of them.

        Raises:
            DocumentError: the array is not valid JSON, or holds something else than objects.
        """
        done = 0

        def sized() -> Iterator[tuple[dict[str, Any], int]]:
            nonlocal done
            for record, size, place in _objects(self.path, self.file.name):
                done = place
                yield record, size

        for records in in_blocks(sized()):
            yield records, done

    def records(self, block: list[Any], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the objects, which are decoded already."""
        return block

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns is in some object; only a file that lacks one in the first is searched."""
        missing = {column for column in columns if self.fields is not None and column not in self.fields}
        if missing:
            for record, *_ in _objects(self.path, self.file.name):
                missing -= record.keys()
                if not missing:
                    return
            raise SourceError(f"{self.file.name}: no object has the field '{min(missing)}'; name one that exists")


def is_array(path: Path) -> bool:
    """Whether a file begins like a JSON array."""
    return _read(path, 1 << 12).lstrip(" \t\r\n\ufeff").startswith("[")


def open_json_array(path: Path, name: str) -> JsonArray:
    """Open a file with a JSON array: read its first object.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: the first object is not valid.
        PackerError: the file cannot be read.
    """
    with reading(name):
        file = SourceFile(name=name, bytes=path.stat().st_size)
    try:
        first = next(_objects(path, name), None)
    except DocumentError as error:
        raise SourceError(f"document 0 ({name} row 0): {error.message}") from None
    return JsonArray(file=file, path=path, fields=first[0] if first is not None else None)


def _read(path: Path, size: int) -> str:
    with pa.OSFile(str(path)) as file:
        codec = CODECS.get(path.suffix)
        stream = pa.CompressedInputStream(file, codec) if codec else file
        return bytes(stream.read(size)).decode("utf-8", errors="ignore")


def _objects(path: Path, name: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield (object, its characters, bytes of the file read) of an array.

    Text is read as far as the next object needs it. Where that is longer than what was read, twice as much is read.
    """
    decoder = json.JSONDecoder(object_pairs_hook=unique_fields)
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    with reading(name), pa.OSFile(str(path)) as file:
        codec = CODECS.get(path.suffix)
        stream = pa.CompressedInputStream(file, codec) if codec else file
        text, place, count, more = "", 0, 0, True

        def read_on() -> None:
            nonlocal text, place, more
            block = bytes(stream.read(max(text_records.BLOCK, len(text) - place)))
            try:
                text, place = text[place:] + utf8.decode(block, final=not block), 0
            except UnicodeDecodeError as error:
                raise DocumentError(count, f"invalid UTF-8 ({error.reason}); write the file as UTF-8") from None
            more = bool(block)

        def next_place(expected: str) -> str:
            """Skip white space; return the character there, which must be one of those expected."""
            nonlocal place
            while True:
                match = _SPACE.match(text, place)
                place = match.end() if match is not None else place
                if place < len(text) or not more:
                    break
                read_on()
            found = text[place : place + 1]
            if found == "" or found not in expected:
                what = f"{found!r}" if found else "the end of the file"
                raise DocumentError(count, f"not a valid JSON array: {what} where one of {expected} is expected")
            place += 1
            return found

        next_place("[")
        separator = next_place("{]")
        while separator != "]":
            place -= 1  # at the beginning of an object
            while True:
                try:
                    record, end = decoder.raw_decode(text, place)
                    break
                except json.JSONDecodeError as error:
                    is_cut = error.pos >= len(text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated string")
                    if not (more and is_cut):
                        raise DocumentError(count, f"not valid JSON: {error.msg}") from None
                except (ValueError, RecursionError) as error:
                    raise DocumentError(count, f"not valid JSON: {error}") from None
                read_on()
            yield record, end - place, file.tell()
            place, count = end, count + 1
            separator = next_place(",]")
            if separator == ",":
                separator = next_place("{")
        if next_rest := _rest(text[place:], stream):
            raise DocumentError(count, f"{next_rest!r} follows the end of the array; remove it")


def _rest(text: str, stream: Any) -> str:
    """The beginning of what follows an array, without white space."""
    while not (stripped := text.strip()):
        block = bytes(stream.read(1 << 16))
        if not block:
            return ""
        text = block.decode("utf-8", errors="replace")
    return stripped[:20]
