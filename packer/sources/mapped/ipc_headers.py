"""Fetch the headers of the messages of an Arrow stream or file in object storage, without their bodies.

pyarrow then reads record batches from memory of the size of the object, of which only the headers are there. It reads
the bodies of compressed record batches at once, so that these must be known first. For that, a few fields of the
headers are parsed here, as Arrow's `Message.fbs` and the layout of FlatBuffers define them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa

from packer.stores.mirror import fetch

_MAGIC = b"ARROW1"
_TAIL = 1 << 12  # bytes at the end of an Arrow file, where its footer is
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)  # fields of a Message
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)  # fields of a RecordBatch


class Headers(NamedTuple):
    """What the headers of a stream or file say."""

    rows: int
    """Number of rows."""

    is_compressed: bool
    """Whether a record batch is compressed."""


def fetch_headers(buffer: pa.Buffer) -> Headers:
    """Fetch the headers of all messages, the dictionaries and the footer.

    Where the object is damaged, it stops: pyarrow finds the fault at the same place.

    Args:
        buffer: a mirror of the object.
    """
    base, size, view = buffer.address, buffer.size, memoryview(buffer)
    tail = min(size, _TAIL)
    fetch([base, base + size - tail], [tail, tail])
    at = 0
    if bytes(view[: len(_MAGIC)]) == _MAGIC and size > 10:
        at = 8
        footer = int.from_bytes(view[size - 10 : size - 6], "little")
        if 0 < footer < size:
            fetch([base + size - 10 - footer], [footer])
    rows, is_compressed = 0, False
    while at + 8 <= size:
        fetch([base + at], [8])
        mark, length = struct.unpack_from("<II", view, at)
        start = at + 8
        if mark != 0xFFFFFFFF:  # streams of old versions have no mark
            start, length = at + 4, mark
        if not 0 < length <= size - start:
            break
        fetch([base + start], [length])
        try:
            message = _Message(view[start : start + length])
        except (struct.error, IndexError):
            break
        if message.kind == _RECORD_BATCH:
            rows, is_compressed = rows + message.rows, is_compressed or message.is_compressed
        at = start + length + message.body
        if message.kind == _DICTIONARY_BATCH:
            fetch([base + start], [min(at, size) - start])
    return Headers(rows, is_compressed)


class _Message:
    """The fields of a message that are needed.

    Args:
        content: the FlatBuffer.

    Raises:
        struct.error: it is damaged.
    """

    def __init__(self, content: memoryview) -> None:
        self._content = content
        (table,) = struct.unpack_from("<I", content)
        self.kind = self._number(table, _HEADER_TYPE, "<B")
        self.body = max(self._number(table, _BODY_LENGTH, "<q"), 0)
        self.rows, self.is_compressed = 0, False
        header = self._place(table, _HEADER)
        if self.kind == _RECORD_BATCH and header:
            header += int(struct.unpack_from("<I", content, header)[0])
            self.rows = max(self._number(header, _LENGTH, "<q"), 0)
            self.is_compressed = bool(self._place(header, _COMPRESSION))

    def _place(self, table: int, field: int) -> int:
        """Return the offset of a field of a table; 0 if it is left out."""
        (back,) = struct.unpack_from("<i", self._content, table)
        slots = table - back
        if slots < 0:
            raise struct.error("a table without fields")
        (size,) = struct.unpack_from("<H", self._content, slots)
        if 4 + 2 * field >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self._content, slots + 4 + 2 * field)
        return table + offset if offset else 0

    def _number(self, table: int, field: int, form: str) -> int:
        place = self._place(table, field)
        return int(struct.unpack_from(form, self._content, place)[0]) if place else 0
