"""Parse blocks of JSON lines: pyarrow reads token lists; the types of extra columns follow from their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from packer.arrow import as_scalar
from packer.arrow import compute as pc
from packer.sources.columns.column_values import infer, require_lists
from packer.sources.documents import Columns
from packer.sources.json_lines.lines import lines_of, read_record

_NEWLINE, _BRACE = b"\n{"
_SPACES = b" \t\r\v\f"  # may precede an object, or fill a blank line
_EXACT = 2**53  # below it, doubles represent every integer


class Block(NamedTuple):
    """Documents of a block of lines; columns that a line lacks are null there."""

    input_ids: pa.Array
    labels: pa.Array
    extra: Mapping[str, pa.Array]
    """Extra columns, by name. Their types follow from the values, and may differ from block to block."""


def parse_block(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> Block:
    """Parse a block of whole lines.

    Args:
        block: the lines.
        columns: the columns to read.
        types: types to try first for the extra columns. pyarrow parses them at full speed; if they do not hold every
            value of the block exactly, the values are read again one by one.

    Raises:
        ArrowInvalid: a line is invalid; the error does not say which.
        DocumentError: no type holds all values of an extra column.
    """
    if count_lines(block) < 0:  # checked first, since pyarrow crashes on a line `null`
        raise pa.ArrowInvalid("a line does not hold an object")
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(str(error)) from None
    if types and all(map(_is_checked, types.values())):
        try:
            table = _read(block, columns, types)
            extra = {column: _only_chunk(table[column]) for column in columns.extra}
            if all(map(_is_exact, extra.values())):
                return Block(_only_chunk(table[columns.input_ids]), _only_chunk(table[columns.labels]), extra)
        except pa.ArrowInvalid:  # a value may merely be of another type
            pass
    table, extra = _read(block, columns, {}), _infer_extra(block, columns)
    return Block(_only_chunk(table[columns.input_ids]), _only_chunk(table[columns.labels]), extra)


def _read(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> pa.Table:
    lists = [(column, pa.list_(pa.int32())) for column in (columns.input_ids, columns.labels)]
    return pyarrow.json.read_json(
        pa.BufferReader(block),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([*lists, *types.items()]), unexpected_field_behavior="ignore"
        ),
    )


def _infer_extra(block: bytes, columns: Columns) -> dict[str, pa.Array]:
    """Read the extra columns, with types inferred from their values in this block."""
    if not columns.extra:
        return {}
    try:
        records = [read_record(line) for line in lines_of(block) if line.strip()]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None
    extra = {column: infer([record.get(column) for record in records], column) for column in columns.extra}
    return extra | {column: require_lists(extra[column], column) for column in columns.per_token}


def _is_checked(kind: pa.DataType) -> bool:
    """Whether pyarrow refuses all values that do not fit a type, except large integers for doubles.

    Structs are not checked: pyarrow ignores unknown fields.
    """
    if pa.types.is_list(kind):
        return _is_checked(kind.value_type)
    return not pa.types.is_struct(kind)


def _is_exact(array: pa.Array) -> bool:
    """Whether no double was parsed from an integer that it cannot represent."""
    if pa.types.is_list(array.type):
        return _is_exact(array.flatten())
    if not pa.types.is_floating(array.type):
        return True
    return not pc.any(pc.greater_equal(pc.abs(array), as_scalar(_EXACT, array.type))).as_py()


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the only chunk of a column that was parsed from one block."""
    assert column.num_chunks == 1
    return column.chunk(0)


def count_lines(block: bytes) -> int:
    """Count the lines that are not blank; return -1 if one of them does not begin with a brace."""
    first = _first_bytes(block)
    if not (first == _BRACE).all():  # blank, indented or invalid lines
        first = _first_bytes(block.translate(None, _SPACES))
        first = first[first != _NEWLINE]
    return len(first) if (first == _BRACE).all() else -1


def _first_bytes(block: bytes) -> NDArray[np.uint8]:
    """First byte of every line, which is the newline if the line is empty."""
    text = np.frombuffer(block, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(text == _NEWLINE) + 1])
    first: NDArray[np.uint8] = text[starts[starts < len(text)]]
    return first
