"""Headers of the messages in Arrow streams and files: their kinds, rows and sizes, and whether they are compressed.

pyarrow decompresses a record batch when it reads it, and says nothing about it before. So a few fields are parsed here,
as Arrow's `Message.fbs` and the layout of FlatBuffers define them.
"""

from __future__ import annotations

import struct

import pyarrow as pa

DICTIONARY_BATCH, RECORD_BATCH = 2, 3
"""Kinds of messages."""

_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)  # fields of a Message
_ID, _DATA = range(2)  # fields of a DictionaryBatch
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)  # fields of a RecordBatch


def is_compressed(stream: pa.Buffer) -> bool:
    """Whether a record batch or dictionary of an Arrow stream is compressed; no value is read.

    Raises a pyarrow.ArrowException or an OSError if the stream is damaged.
    """
    try:
        return any(
            MessageHeader(memoryview(message.metadata)).is_compressed
            for message in pa.ipc.MessageReader.open_stream(stream)
        )
    except (struct.error, IndexError):
        raise pa.ArrowInvalid("the header of a message is damaged") from None


class MessageHeader:
    """The fields of a message that are needed, from its FlatBuffer; a `struct.error` is raised if it is damaged."""

    def __init__(self, content: memoryview) -> None:
        (table,) = struct.unpack_from("<I", content)
        self.kind = _number(content, table, _HEADER_TYPE, "<B")
        self.body = max(_number(content, table, _BODY_LENGTH, "<q"), 0)
        self.rows, self.is_compressed = 0, False  # of a record batch, or of a dictionary
        header = _field_place(content, table, _HEADER)
        if self.kind == DICTIONARY_BATCH and header:
            header = _field_place(content, _follow(content, header), _DATA)
        if self.kind in (DICTIONARY_BATCH, RECORD_BATCH) and header:
            header = _follow(content, header)
            self.rows = max(_number(content, header, _LENGTH, "<q"), 0)
            self.is_compressed = bool(_field_place(content, header, _COMPRESSION))


def _follow(content: memoryview, place: int) -> int:
    """Return the offset of the table to which a field refers."""
    return place + int(struct.unpack_from("<I", content, place)[0])


def _field_place(content: memoryview, table: int, field: int) -> int:
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
    place = _field_place(content, table, field)
    return int(struct.unpack_from(form, content, place)[0]) if place else 0
