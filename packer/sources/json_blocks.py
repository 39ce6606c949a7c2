"""Parse a block of JSON lines: the lists of tokens by pyarrow, other columns by the types that their values have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from packer.sources.column_values import infer, require_lists
from packer.sources.documents import LONGEST, Columns
from packer.sources.lines import lines_of, read_record

_NEWLINE, _BRACE = b"\n{"
_SPACES = b" \t\r\v\f"  # what may stand before an object, or be all that there is on a line
_EXACT = 2**53  # a double below it is the integer, or the fraction, that was written


class Block(NamedTuple):
    """The documents of a block of lines; a column that a line lacks is null there."""

    input_ids: pa.Array
    labels: pa.Array
    extra: Mapping[str, pa.Array]
    """The columns beside the tokens. Each type holds the values of this block; it may differ from block to block."""


def parse_block(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> Block:
    """Parse whole lines.

    Args:
        block: the lines.
        columns: what to read.
        types: types of the columns beside the tokens to try first. pyarrow parses by them at full speed; where they do
            not hold every value of the block exactly, the values are read again one by one.

    Raises:
        ArrowInvalid: a line is wrong; which one, the caller finds out.
        DocumentError: a column beside the tokens has no type that holds all of its values.
    """
    if count_lines(block) < 0 or len(block) > LONGEST:  # before the parser: a line `null` crashes it
        raise pa.ArrowInvalid("a line does not hold an object")
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(str(error)) from None
    if types and all(map(_is_checked, types.values())):
        try:
            table = _read(block, columns, types)
            extra = {column: _whole(table[column]) for column in columns.extra}
            if all(map(_is_exact, extra.values())):
                return Block(_whole(table[columns.input_ids]), _whole(table[columns.labels]), extra)
        except pa.ArrowInvalid:  # perhaps only since a value is of another type
            pass
    table = _read(block, columns, {})
    return Block(_whole(table[columns.input_ids]), _whole(table[columns.labels]), _infer_extra(block, columns))


def _read(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> pa.Table:
    lists = [(column, pa.list_(pa.int32())) for column in (columns.input_ids, columns.labels)]
    return pyarrow.json.read_json(
        pa.BufferReader(block),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=min(len(block) + 1, LONGEST)),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([*lists, *types.items()]), unexpected_field_behavior="ignore"
        ),
    )


def _infer_extra(block: bytes, columns: Columns) -> dict[str, pa.Array]:
    """The columns beside the tokens, by the types of their values in this block."""
    if not columns.extra:
        return {}
    try:
        records = [read_record(line) for line in lines_of(block) if line.strip()]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None
    extra = {column: infer([record.get(column) for record in records], column) for column in columns.extra}
    return extra | {column: require_lists(extra[column], column) for column in columns.per_token}


def _is_checked(kind: pa.DataType) -> bool:
    """Whether pyarrow refuses what a type does not hold, large integers for doubles apart; it ignores other fields."""
    if pa.types.is_list(kind):
        return _is_checked(kind.value_type)
    return not pa.types.is_struct(kind)


def _is_exact(array: pa.Array) -> bool:
    """Whether no double was parsed from an integer that it does not hold."""
    if pa.types.is_list(array.type):
        return _is_exact(array.flatten())
    return not pa.types.is_floating(array.type) or not pc.any(pc.greater_equal(pc.abs(array), _EXACT)).as_py()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return the one chunk that a block is parsed into."""
    assert column.num_chunks == 1
    return column.chunk(0)


def count_lines(block: bytes) -> int:
    """Lines that hold something, or -1 if one of them begins with anything but a brace."""
    first = _first_bytes(block)
    if not (first == _BRACE).all():  # blank, indented, or wrong
        first = _first_bytes(block.translate(None, _SPACES))
        first = first[first != _NEWLINE]
    return len(first) if (first == _BRACE).all() else -1


def _first_bytes(block: bytes) -> NDArray[np.uint8]:
    """The first byte of every line; that of an empty one is its newline."""
    text = np.frombuffer(block, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(text == _NEWLINE) + 1])
    first: NDArray[np.uint8] = text[starts[starts < len(text)]]
    return first
