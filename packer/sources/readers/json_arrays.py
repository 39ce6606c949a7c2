"""Text records in a JSON array: one array of objects in a file, plain or compressed, read a piece at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packer.errors import SourceError
from packer.facts import Reason
from packer.sources import documents
from packer.sources.documents import DocumentError, SourceFile, reading
from packer.sources.files.file_access import open_stream
from packer.sources.readers import format_reader
from packer.sources.readers.format_reader import Object, ObjectReader
from packer.sources.readers.line_blocks import decompressed, too_long, unique_fields
from packer.stores import AnyPath

_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST_TOKEN = 16
"""Characters at the end of what is read so far in which an error may only mean that the rest is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonArray(ObjectReader):
    """A file that holds an array of objects."""

    file: SourceFile
    path: AnyPath
    fields: Mapping[str, Any] | None = None
    """First object; None if the array is empty."""

    fault: SourceError | None = None
    """Error for the first element if it is not a valid object."""

    def objects(self) -> Iterator[tuple[Object, int, int]]:
        """Yield the objects; an element that is none is replaced by the error for it."""
        return _elements(self.path, self.file.name)

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns is in some object; only a file that lacks one in the first is searched."""
        missing = {column for column in columns if self.fields is not None and column not in self.fields}
        if missing:
            for record in self.samples():
                missing -= record.keys()
                if not missing:
                    return
            raise SourceError(f"{self.file.name}: no object has the field '{min(missing)}'; name one that exists")


def is_array(path: AnyPath) -> bool:
    """Whether a file begins like a JSON array."""
    return _read(path, 1 << 12).lstrip(" \t\r\n\ufeff").startswith("[")


def open_json_array(path: AnyPath, name: str) -> JsonArray:
    """Open a file with a JSON array: read its first object.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: the array is not valid JSON up to the end of its first element.
        PackerError: the file cannot be read.
    """
    with reading(name):
        array = JsonArray(file=SourceFile(name=name, bytes=path.stat().st_size), path=path)
    fields, fault = array.first()
    return replace(array, fields=fields, fault=fault)


def _read(path: AnyPath, size: int) -> str:
    with open_stream(path) as file:
        stream = decompressed(path, file)
        return bytes(stream.read(size)).decode("utf-8", errors="ignore")


def _elements(path: AnyPath, name: str) -> Iterator[tuple[Object, int, int]]:
    """Yield (object, or the error for another element; its characters; bytes of the file read) of an array.

    Text is read as far as the next element needs it. Where that is longer than what was read, twice as much is read.
    """
    objects = json.JSONDecoder(object_pairs_hook=unique_fields)
    anything = json.JSONDecoder(parse_int=len)  # also numbers of more digits than Python takes
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    with reading(name), open_stream(path) as file:
        stream = decompressed(path, file)
        text, place, count, more = "", 0, 0, True

        def read_on() -> None:
            nonlocal text, place, more
            if len(text) - place > documents.MOST_RECORD:
                raise DocumentError(count, too_long("characters"))
            block = bytes(stream.read(max(format_reader.BLOCK, len(text) - place)))
            try:
                text, place = text[place:] + utf8.decode(block, final=not block), 0
            except UnicodeDecodeError as error:
                raise DocumentError(count, f"invalid UTF-8 ({error.reason}); write the file as UTF-8") from None
            more = bool(block)

        def next_character() -> str:
            """Skip white space; return the character there, or nothing at the end of the file."""
            nonlocal place
            while True:
                match = _SPACE.match(text, place)
                place = match.end() if match is not None else place
                if place < len(text) or not more:
                    return text[place : place + 1]
                read_on()

        def unexpected(found: str, expected: str, reason: Reason | None = None) -> DocumentError:
            what = f"{found!r}" if found else "the end of the file"
            message = f"not a valid JSON array: {what} where one of {expected} is expected"
            return DocumentError(count, message, reason=reason)

        def take(expected: str) -> str:
            """Skip white space and the character behind it, which must be one of those expected."""
            nonlocal place
            found = next_character()
            if found == "" or found not in expected:
                raise unexpected(found, expected)
            place += 1
            return found

        def element(expected: str) -> tuple[Object, int]:
            """Return the element at the next character, and where it ends."""
            found, fault = next_character(), None
            while True:
                decoder = objects if found == "{" and fault is None else anything
                try:
                    value, end = decoder.raw_decode(text, place)
                    if not (more and found != "{" and end >= len(text) - _LONGEST_TOKEN):  # a number may go on
                        break
                except json.JSONDecodeError as error:
                    is_cut = error.pos >= len(text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated string")
                    if not (more and is_cut):
                        if found != "{":
                            raise unexpected(found, expected) from None
                        raise DocumentError(count, f"not valid JSON: {error.msg}") from None
                except (ValueError, RecursionError) as error:
                    if fault is not None or found != "{":
                        raise DocumentError(count, f"not valid JSON: {error}") from None
                    fault = DocumentError(count, f"not valid JSON: {error}", reason="unreadable")
                    continue
                read_on()
            return (fault or value if found == "{" else unexpected(found, expected, "wrong_type")), end

        take("[")
        is_end = next_character() == "]"
        while not is_end:
            one, end = element("{" if count else "{]")
            yield one, end - place, file.tell()
            place, count = end, count + 1
            is_end = take(",]") == "]"
        if not count:
            take("]")
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
