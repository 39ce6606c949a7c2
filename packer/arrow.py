"""Conversions between Arrow and NumPy without copies, and the headers of messages in Arrow streams and files.

pyarrow's own conversions import pandas if it is installed (0.1 s). pyarrow decompresses a record batch when it reads
it, without reporting beforehand that it is compressed. This module therefore parses a few fields of the headers, as
defined by Arrow's `Message.fbs` and the layout of FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class _Compute:
    """The functions of `pyarrow.compute`, imported on first use (0.06 s), because they are rarely needed."""

    def __getattr__(self, name: str) -> Any:
        import pyarrow.compute

        return getattr(pyarrow.compute, name)


compute: Any = _Compute()

_DTYPES = {
    pa.from_numpy_dtype(np.dtype(name)): np.dtype(name)
    for name in (
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
    )
}


def numpy_dtype(arrow_type: pa.DataType) -> np.dtype[Any]:
    """Return the dtype of a type of integers or floats. For fixed-size lists of these, the dtype has a shape."""
    if pa.types.is_fixed_size_list(arrow_type):
        return np.dtype((_DTYPES[arrow_type.value_type], (arrow_type.list_size,)))
    return _DTYPES[arrow_type]


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Whether values of a type are integers or floats."""
    return arrow_type in _DTYPES


def has_dtype(arrow_type: pa.DataType) -> bool:
    """Whether a type can hold values per token: numbers, or fixed-size lists of at least one number."""
    is_wide = pa.types.is_fixed_size_list(arrow_type) and arrow_type.list_size > 0
    return is_numeric(arrow_type.value_type if is_wide else arrow_type)


def as_numpy(array: pa.Array) -> NDArray[Any]:
    """Return the values of an array of numbers without nulls as a read-only view with the same dtype.

    Fixed-size lists of numbers become an array of shape (lists, size). Booleans are copied, because Arrow stores bits.
    """
    assert array.null_count == 0
    if pa.types.is_fixed_size_list(array.type):
        values = as_numpy(array.flatten())
        return values.reshape(len(array), array.type.list_size, *values.shape[1:])
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)
    dtype = numpy_dtype(array.type)
    values = array.buffers()[1]
    if values is None or len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)


def as_arrow(values: NDArray[Any], is_valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a view of a contiguous array as an Arrow array. Booleans are copied. Without `is_valid`, no value is null.

    An array of shape (lists, size) becomes fixed-size lists.
    """
    if values.ndim > 1:
        lists, size, *rest = values.shape
        return pa.FixedSizeListArray.from_arrays(as_arrow(values.reshape(lists * size, *rest)), size)
    bits = None if is_valid is None else _bits(is_valid)
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bits, data])


def _bits(values: NDArray[np.bool_]) -> pa.Buffer:
    """Return booleans as bits, as Arrow stores them."""
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def as_scalar(value: int, arrow_type: pa.DataType) -> pa.Scalar:
    """Return an integer as an Arrow value of a number or boolean type."""
    return as_arrow(np.array([value], np.int64)).cast(arrow_type)[0]


def strings(values: Sequence[str | None]) -> pa.StringArray:
    """Return an Arrow array of strings and nulls. Raises an OverflowError for more than 2 GB."""
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if offsets[-1] >= 2**31:
        raise OverflowError("texts of more than 2 GB in one array")
    bits = None if None not in values else _bits(np.array([value is not None for value in values]))
    data = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets.astype(np.int32)), data, bits)


def of_one_type(values: Sequence[Any]) -> pa.Array | None:
    """Convert strings, booleans or numbers of one type, and nulls, as `pa.array` does.

    Returns None for other values, and for values that are too large.
    """
    kinds = {*map(type, values)} - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    kind = kinds.pop()
    if kinds or kind not in (str, int, float, bool):
        return None
    try:
        if kind is str:
            return strings(values)
        is_valid = np.array([value is not None for value in values])
        numbers = [0 if value is None else value for value in values]
        dtype = {int: np.int64, float: np.float64, bool: np.bool_}[kind]
        return as_arrow(np.array(numbers, dtype), None if is_valid.all() else is_valid)
    except (OverflowError, UnicodeError):
        return None


def format_value(value: pa.Scalar) -> str:
    """Format a value as Python does. If Python has no such value (a date after 9999), return the name of its type."""
    try:
        return repr(value.as_py())
    except (OverflowError, ValueError):
        return f"a {value.type} beyond Python's"


DICTIONARY_BATCH, RECORD_BATCH = 2, 3
"""Kinds of messages."""

_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)  # fields of a Message
_ID, _DATA = range(2)  # fields of a DictionaryBatch
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)  # fields of a RecordBatch


def is_compressed(stream: pa.Buffer) -> bool:
    """Whether a record batch or dictionary of an Arrow stream is compressed. Reads no value.

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
    """Kind, size and rows of a message, from its FlatBuffer. Raises a `struct.error` if it is damaged."""

    def __init__(self, content: memoryview) -> None:
        (table,) = struct.unpack_from("<I", content)
        self.kind = _number(content, table, _HEADER_TYPE, "<B")
        self.body = max(_number(content, table, _BODY_LENGTH, "<q"), 0)
        self.rows, self.is_compressed = 0, False  # set for record batches and dictionaries
        header = _field_place(content, table, _HEADER)
        if self.kind == DICTIONARY_BATCH and header:
            header = _field_place(content, _follow(content, header), _DATA)
        if self.kind in (DICTIONARY_BATCH, RECORD_BATCH) and header:
            header = _follow(content, header)
            self.rows = max(_number(content, header, _LENGTH, "<q"), 0)
            self.is_compressed = bool(_field_place(content, header, _COMPRESSION))


def _follow(content: memoryview, place: int) -> int:
    """Return the offset of the table that a field refers to."""
    return place + int(struct.unpack_from("<I", content, place)[0])


def _field_place(content: memoryview, table: int, field: int) -> int:
    """Return the offset of a field of a table; 0 if the field is absent."""
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
