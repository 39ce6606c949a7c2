"""Fetch the headers of the messages of an Arrow stream or file in object storage, without their bodies.

pyarrow then reads record batches from memory of the size of the object, which has only the headers. It reads the bodies
of compressed record batches immediately, so these must be known first. For that, a few fields of the headers are parsed
here, as Arrow's `Message.fbs`, `File.fbs` and the layout of FlatBuffers define them.

The footer of a file says where its headers are, so they are fetched together. The headers of a stream are fetched one
after the other.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from packer.stores.mirror import fetch

_MAGIC = b"ARROW1"
_TAIL = 1 << 12  # bytes at the end of an Arrow file, where its footer is
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)  # fields of a Message
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)  # fields of a RecordBatch
_DICTIONARIES, _RECORD_BATCHES = 2, 3  # fields of a Footer
_BLOCK = np.dtype([("start", "<i8"), ("header", "<i4"), ("unused", "<i4"), ("body", "<i8")])  # of a message


class Headers(NamedTuple):
    """What the headers of a stream or file say."""

    rows: int
    """Number of rows."""

    is_compressed: bool
    """Whether a record batch is compressed."""


def fetch_headers(buffer: pa.Buffer) -> Headers:
    """Fetch the headers of all messages, the dictionaries and the footer.

    If the object is damaged, this stops there; pyarrow finds the fault at the same place.

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
            with suppress(struct.error, ValueError):
                _fetch_listed(base, size, view[size - 10 - footer : size - 10])
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


def _fetch_listed(base: int, size: int, footer: memoryview) -> None:
    """Fetch all headers and dictionaries that a footer lists together, because single requests would take long.

    Args:
        base: address of the object.
        size: bytes of the object.
        footer: the FlatBuffer at its end, which may be damaged; what lies outside the object is passed over.
    """
    (table,) = struct.unpack_from("<I", footer)
    for field in (_DICTIONARIES, _RECORD_BATCHES):
        place = _place(footer, table, field)
        vector = place + int(struct.unpack_from("<I", footer, place)[0]) if place else 0
        count = int(struct.unpack_from("<I", footer, vector)[0]) if place else 0
        if not count:
            continue
        blocks = np.frombuffer(footer, _BLOCK, count, vector + 4)
        starts = blocks["start"]
        lengths = blocks["header"].astype(np.int64)
        if field == _DICTIONARIES:
            lengths += np.clip(blocks["body"], 0, size)
        inside = (starts >= 0) & (starts < size) & (lengths > 0) & (lengths <= size - starts)
        fetch(base + starts[inside], lengths[inside])


class _Message:
    """The fields of a message that are needed.

    Args:
        content: the FlatBuffer.

    Raises:
        struct.error: it is damaged.
    """

    def __init__(self, content: memoryview) -> None:
        (table,) = struct.unpack_from("<I", content)
        self.kind = _number(content, table, _HEADER_TYPE, "<B")
        self.body = max(_number(content, table, _BODY_LENGTH, "<q"), 0)
        self.rows, self.is_compressed = 0, False
        header = _place(content, table, _HEADER)
        if self.kind == _RECORD_BATCH and header:
            header += int(struct.unpack_from("<I", content, header)[0])
            self.rows = max(_number(content, header, _LENGTH, "<q"), 0)
            self.is_compressed = bool(_place(content, header, _COMPRESSION))


def _place(content: memoryview, table: int, field: int) -> int:
    """Return the offset of a field of a table; 0 if it is left out."""
    (back,) = struct.unpack_from("<i", content, table)
    slots = table - back
    if slots < 0:
        raise struct.error("a table without fields")
    (size,) = struct.unpack_from("<H", content, slots)
    if 4 + 2 * field >= size:
        return 0
    (offset,) = struct.unpack_from("<H", content, slots + 4 + 2 * field)
    return table + offset if offset else 0


def _number(content: memoryview, table: int, field: int, form: str) -> int:
    place = _place(content, table, field)
    return int(struct.unpack_from(form, content, place)[0]) if place else 0
