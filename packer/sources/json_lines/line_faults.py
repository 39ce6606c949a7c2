"""Faults of tokenized JSON lines, and parsing of a block without the lines that have one (`--on-error skip`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.gather import list_lengths
from packer.sources.columns.column_values import infer, require_lists, shown
from packer.sources.documents import MASKS, Columns, DocumentError, Rejection, null_message, value_message
from packer.sources.json_lines.json_blocks import Block, parse_block
from packer.sources.json_lines.lines import lines_of, read_record
from packer.sources.lengths import values_of

Show = Callable[[Any], str]
"""Function that returns a value, or its kind, for a message."""


def line_fault(line: bytes, columns: Columns, *, has_labels: bool) -> DocumentError | None:
    """Return the error for a line, as that of document 0, or None.

    Args:
        line: a line that is not blank.
        columns: the columns to read; extra ones are not checked.
        has_labels: whether the first line has labels.
    """
    return _record_fault(line, columns, has_labels, shown) or _parser_fault(line, columns)


def parse_usable(
    block: bytes, columns: Columns, types: Mapping[str, pa.DataType], *, has_labels: bool
) -> tuple[Block, tuple[Rejection, ...]]:
    """Parse a block of lines, with an empty document instead of every line that cannot be used.

    Args:
        block: whole lines.
        columns: the columns to read.
        types: types to try first for the extra columns; see `parse_block`.
        has_labels: whether the first usable line of the file has labels.

    Raises:
        DocumentError: no type holds all values of an extra column.
    """
    lines = [line for line in lines_of(block) if line.strip()]
    faults = {
        row: fault
        for row, line in enumerate(lines)
        if (fault := _record_fault(line, columns, has_labels, _kind) or _extra_fault(line, columns)) is not None
    }
    good = [row for row in range(len(lines)) if row not in faults]
    try:
        parsed = _parse([lines[row] for row in good], columns, types)
    except pa.ArrowException:  # pyarrow refuses what Python takes
        faults |= {row: fault for row in good if (fault := _parser_fault(lines[row], columns)) is not None}
        good = [row for row in good if row not in faults]
        parsed = _parse([lines[row] for row in good], columns, types)
    except DocumentError as fault:
        raise fault.at(good[fault.row]) from None
    is_good = np.zeros(len(lines), np.bool_)
    is_good[good] = True
    extra = {
        name: _spread_lists(values, is_good) if name in columns.per_token else _spread(values, is_good)
        for name, values in parsed.extra.items()
    }
    labels = _spread_lists(parsed.labels, is_good) if has_labels else _spread(parsed.labels, is_good)
    found = Block(_spread_lists(parsed.input_ids, is_good), labels, extra)
    return found, tuple(rejection(row, fault) for row, fault in sorted(faults.items()))


def rejection(row: int, fault: DocumentError) -> Rejection:
    """Return the rejection of a document for an error that is about it alone."""
    assert fault.reason is not None, fault.message
    return Rejection(row, fault.reason, fault.listed)


def _parse(lines: list[bytes], columns: Columns, types: Mapping[str, pa.DataType]) -> Block:
    if lines:
        return parse_block(b"\n".join(lines), columns, types)
    empty = pa.array([], pa.list_(pa.int32()))
    kinds = {name: pa.list_(pa.null()) if name in columns.per_token else pa.null() for name in columns.extra}
    return Block(empty, empty, {name: pa.array([], kind) for name, kind in kinds.items()})


def _record_fault(line: bytes, columns: Columns, has_labels: bool, show: Show) -> DocumentError | None:
    """Return the error for the tokens and labels of a line as Python reads it, or None."""
    try:
        record = read_record(line)
    except ValueError as error:
        return DocumentError(0, str(error), reason="unreadable")
    for mask in MASKS:
        if mask in record and mask not in columns.extra:
            return other_mask(0, mask)
    if columns.input_ids not in record:
        message = f"no '{columns.input_ids}' (found: {', '.join(record) or 'none'})"
        return DocumentError(0, message, reason="missing_value", listed=f"no '{columns.input_ids}'")
    fault = _list_fault(columns.input_ids, record[columns.input_ids], show, label=False)
    if fault is not None:
        return fault
    labels = record.get(columns.labels)
    if (labels is not None) != has_labels:
        here, there = ("no ", "") if has_labels else ("", "no ")
        message = f"{here}'{columns.labels}', but the file's first line has {there}such list; give it to all or none"
        return DocumentError(0, message, reason="invalid_labels")
    return None if labels is None else _list_fault(columns.labels, labels, show, label=True)


def other_mask(row: int, mask: str) -> DocumentError:
    """Return the error for a line with a mask that is not read."""
    message = f"has '{mask}', and the first line has none; give it to all lines or none"
    return DocumentError(row, message, reason="invalid_labels")


def _extra_fault(line: bytes, columns: Columns) -> DocumentError | None:
    """Return the error for a value of an extra column that cannot be kept, whatever the other lines hold, or None."""
    record = read_record(line) if columns.extra else {}
    try:
        for column in columns.extra:
            values = infer([record.get(column)], column)
            if column in columns.per_token:
                if record.get(column) is None:
                    return DocumentError(0, null_message(column), reason="invalid_value")
                require_lists(values, column)
    except DocumentError as fault:
        return fault
    return None


def _parser_fault(line: bytes, columns: Columns) -> DocumentError | None:
    """Return the error for a line that pyarrow refuses, or None."""
    try:
        parse_block(line, columns._replace(extra=(), per_token=()), {})
    except pa.ArrowException as error:
        message = str(error).splitlines()[0].removesuffix(" in row 0")
        return DocumentError(0, message, reason="unreadable", listed="the parser does not take the line")
    return None


def _list_fault(column: str, tokens: Any, show: Show, *, label: bool) -> DocumentError | None:
    """Return the error for a parsed list of tokens or labels, or None."""
    if tokens is None:
        return DocumentError(0, null_message(column), reason="missing_value")
    if not isinstance(tokens, list):
        return DocumentError(
            0, f"'{column}' holds {show(tokens)} where a list of integers is expected", reason="wrong_type"
        )
    for position, token in enumerate(tokens):
        message = None
        if token is None and label and show is _kind:  # rejected later, as in blocks that have no other fault
            continue
        if type(token) is not int:  # a bool is an int to isinstance
            message = f"'{column}' holds {show(token)} at position {position} where an integer is expected"
        elif not -(2**31) <= token < 2**31:
            message = value_message(column, token, position, label=label)
        if message is not None:
            return DocumentError(0, message, reason="invalid_labels" if label else "invalid_tokens")
    return None


def _kind(value: Any) -> str:
    """Return a number as it is and the kind of any other value, which may be text: "a string"."""
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value)) or shown(value)


def _spread_lists(lists: pa.Array, is_good: NDArray[np.bool_]) -> pa.Array:
    """Put an empty list wherever `is_good` is false: [[1, 2], [3]] and [True, False, True] is [[1, 2], [], [3]]."""
    lengths = np.zeros(len(is_good), np.int64)
    lengths[is_good] = list_lengths(lists)
    return as_lists(values_of(lists), lengths, lists.type)


def as_lists(values: pa.Array, lengths: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Make lists of these lengths, with offsets as wide as those of a list type."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(as_arrow(offsets.astype(np.int64)), values)
    return pa.ListArray.from_arrays(as_arrow(offsets.astype(np.int32)), values)


def _spread(values: pa.Array, is_good: NDArray[np.bool_]) -> pa.Array:
    """Put a null wherever `is_good` is false."""
    places = np.cumsum(is_good) - 1
    return values.take(as_arrow(places, is_good))
