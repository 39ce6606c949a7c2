"""Text records in JSON lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packer.errors import SourceError
from packer.sources.documents import Columns, DocumentError, SourceFile, reading
from packer.sources.json_lines.jsonl import JsonLines, require_fields
from packer.sources.json_lines.lines import filled_lines, first_line, read_record
from packer.sources.places import Places
from packer.sources.text import text_records
from packer.sources.text.json_arrays import is_array, open_json_array
from packer.sources.text.text_records import RecordReader, reject
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonRecords(RecordReader):
    """A file of text records, or a piece of one, with one JSON object per line."""

    lines: JsonLines
    fields: Mapping[str, Any] | None = None
    """First record; None if there is no record."""

    fault: SourceError | None = None
    """Error for the first record if it is not valid."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""
        return self.lines.file

    @property
    def path(self) -> AnyPath:
        """Path of the file."""
        return self.lines.path

    def cut(self, size: int) -> Sequence[RecordReader]:
        """Cut a plain file between lines; a compressed one stays whole."""
        pieces = self.lines.cut(size)
        return [replace(self, lines=piece) for piece in pieces if isinstance(piece, JsonLines)]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        """Yield blocks of whole lines, each with the bytes of the file up to its end."""
        return self.lines.blocks(text_records.BLOCK)

    def records(
        self, block: bytes, columns: Sequence[str], rejected: list[DocumentError] | None = None
    ) -> list[dict[str, Any]]:
        """Parse every line that is not blank."""
        records: list[dict[str, Any]] = []
        for line in filled_lines(block):
            try:
                records.append(read_record(line))
            except ValueError as error:
                reject(DocumentError(len(records), str(error), reason="unreadable"), rejected)
                records.append({})
        return records

    def samples(self) -> Iterator[Mapping[str, Any]]:
        """Yield the valid records."""
        for block, _ in self.blocks(()):
            for line in filled_lines(block):
                with contextlib.suppress(ValueError):
                    yield read_record(line)

    def lines_of(self, block: bytes) -> bytes:
        """Return the block, which is made of lines."""
        return block

    @property
    def places(self) -> Places:
        """Locations of the records, for messages."""
        return self.lines

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns is on some line."""
        if self.fields is not None:
            require_fields(self.path, self.file.name, self.fields, columns)


def open_json_records(path: AnyPath, name: str) -> RecordReader:
    """Open a file of JSON lines, or of one JSON array: read its first record.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: a JSON array does not begin with a valid object.
        PackerError: the file cannot be read.
    """
    with reading(name):
        if is_array(path):
            return open_json_array(path, name)
        file = SourceFile(name=name, bytes=path.stat().st_size)
    lines = JsonLines(file=file, path=path, has_labels=None, columns=Columns("", ""), types={})
    number, line = first_line(path, name)
    if not number:
        return JsonRecords(lines=lines)
    try:
        return JsonRecords(lines=lines, fields=read_record(line))
    except ValueError as error:
        fault = DocumentError(0, str(error), f"{name} line {number}", reason="unreadable")
        return JsonRecords(lines=lines, fault=fault.in_source(0))
