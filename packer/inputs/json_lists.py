"""Parse blocks of JSON lines to token lists. The types of extra columns follow from their values.

pyarrow parses a whole block. Only if that fails, lines are read one by one: the first invalid one is an error, or all
of them are rejected (`--on-error skip`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_scalar
from packer.arrow import compute as pc
from packer.inputs.column_types import infer, require_lists, shown
from packer.inputs.document_errors import DocumentError, null_message, null_value_message, value_message
from packer.inputs.documents import MASKS, Batch, Columns
from packer.inputs.line_blocks import filled_lines, read_record, spellings
from packer.inputs.list_checks import rejection, spread_lists
from packer.system_errors import shortage

_NEWLINE, _BRACE = b"\n{"
_SPACES = b" \t\r\v\f"  # may precede an object, or fill a blank line
_EXACT = 2**53  # below it, doubles represent every integer
_LIST = pa.list_(pa.int32())


def parse_lines(
    block: bytes, columns: Columns, types: Mapping[str, pa.DataType], *, has_labels: bool, skips: bool
) -> Batch:
    """Parse a block of whole lines; columns that a line lacks are null there.

    Types are tried first for the extra columns, and may differ from block to block. The first (usable) line of the file
    says whether there are labels. With `skips`, lines that cannot be used are rejected, with an empty document in the
    place of each; without, a DocumentError is raised for the first of them.
    """
    try:
        _refuse_masks(block, columns)
        parsed = _parse(block, columns, types)
        _require_lists(parsed, columns, count_lines(block), has_labels=has_labels)
        return _batch(parsed, columns, has_labels=has_labels)
    except (pa.ArrowException, DocumentError) as error:
        if shortage(error) is not None:  # the lines may be valid
            raise
        if not skips and isinstance(error, DocumentError):
            raise
        message = str(error).splitlines()[0]
    lines = filled_lines(block)
    if skips:
        return _parse_usable(lines, columns, types, has_labels=has_labels)
    for row, line in enumerate(lines):
        fault = _record_fault(line, columns, has_labels) or _parser_fault(line, columns)
        if fault is not None:
            raise fault.at(row)
    raise DocumentError(0, f"one of {len(lines)} lines from here on: {message}")


def _batch(parsed: Mapping[str, pa.Array], columns: Columns, *, has_labels: bool) -> Batch:
    labels = [parsed[columns.labels]] if has_labels else None
    return Batch([parsed[columns.input_ids]], labels, 0, {column: [parsed[column]] for column in columns.extra})


def _parse(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """Parse a block of whole lines to its columns.

    `types` are tried first for the extra columns: pyarrow parses them at full speed. If they do not hold every value of
    the block exactly, the values are read again one by one. Raises an ArrowInvalid, which does not say where, if a line
    is invalid, and a DocumentError if no type holds all values of an extra column.
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
            parsed = _read(block, columns, types)
            if all(_is_exact(parsed[column]) for column in columns.extra):
                return parsed
        except pa.ArrowInvalid:  # a value may merely be of another type
            pass
    lists = _read(block, columns, {})
    return _infer_extra(block, columns) | lists


def _read(block: bytes, columns: Columns, types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    schema = {**types, columns.input_ids: _LIST, columns.labels: _LIST}
    table = pyarrow.json.read_json(
        pa.BufferReader(block),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(list(schema.items())), unexpected_field_behavior="ignore"
        ),
    )
    return {name: table[name].chunk(0) for name in schema}  # the only chunk, since there is one block


def _infer_extra(block: bytes, columns: Columns) -> dict[str, pa.Array]:
    """Read the extra columns, with types inferred from their values in this block."""
    if not columns.extra:
        return {}
    try:
        records = [read_record(line) for line in filled_lines(block)]
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


def _require_lists(parsed: Mapping[str, pa.Array], columns: Columns, lines: int, *, has_labels: bool) -> None:
    """Raise an ArrowInvalid if a line holds no object of its own, or lacks a list."""
    tokens, labels = parsed[columns.input_ids], parsed[columns.labels]
    if len(tokens) != lines:
        raise pa.ArrowInvalid("a line must hold one whole object")
    labels_wrong = labels.null_count if has_labels else labels.null_count < len(labels)
    if tokens.null_count or tokens.values.null_count or labels_wrong:
        raise pa.ArrowInvalid("a list is missing")


def _refuse_masks(block: bytes, columns: Columns) -> None:
    """Raise an ArrowInvalid if a line has a mask that is not read, since the first line has none."""
    masks = [mask for mask in MASKS if mask not in columns.extra]
    if any(name in block for mask in masks for name in spellings(mask)):
        for line in filled_lines(block):
            try:
                record = read_record(line)
            except ValueError as error:
                raise pa.ArrowInvalid(str(error)) from None
            if any(mask in record for mask in masks):
                raise pa.ArrowInvalid("a mask is not read")


def _parse_usable(lines: list[bytes], columns: Columns, types: Mapping[str, pa.DataType], *, has_labels: bool) -> Batch:
    """Parse lines, with an empty document instead of every line that cannot be used."""
    faults = {
        row: fault
        for row, line in enumerate(lines)
        if (fault := _record_fault(line, columns, has_labels) or _extra_fault(line, columns)) is not None
    }
    good = [row for row in range(len(lines)) if row not in faults]
    try:
        parsed = _parse_some([lines[row] for row in good], columns, types)
    except pa.ArrowException:  # pyarrow refuses what Python takes
        faults |= {row: fault for row in good if (fault := _parser_fault(lines[row], columns)) is not None}
        good = [row for row in good if row not in faults]
        parsed = _parse_some([lines[row] for row in good], columns, types)
    except DocumentError as fault:
        raise fault.at(good[fault.row]) from None
    is_good = np.zeros(len(lines), np.bool_)
    is_good[good] = True
    lists = {columns.input_ids, *columns.per_token} | ({columns.labels} if has_labels else set())
    places = as_arrow(np.cumsum(is_good) - 1, is_good)
    spread = {
        name: spread_lists(values, is_good) if name in lists else values.take(places) for name, values in parsed.items()
    }
    rejected = tuple(rejection(row, fault) for row, fault in sorted(faults.items()))
    return _batch(spread, columns, has_labels=has_labels)._replace(rejected=rejected)


def _parse_some(lines: list[bytes], columns: Columns, types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    if lines:
        return _parse(b"\n".join(lines), columns, types)
    kinds = {name: pa.list_(pa.null()) if name in columns.per_token else pa.null() for name in columns.extra}
    kinds |= {columns.input_ids: _LIST, columns.labels: _LIST}
    return {name: pa.array([], kind) for name, kind in kinds.items()}


def _record_fault(line: bytes, columns: Columns, has_labels: bool) -> DocumentError | None:
    """Return the error for the tokens and labels of a line as Python reads it, or None."""
    try:
        record = read_record(line)
    except ValueError as error:
        return DocumentError(0, str(error), reason="unreadable")
    for mask in MASKS:
        if mask in record and mask not in columns.extra:
            message = f"has '{mask}', and the first line has none; give it to all lines or none"
            return DocumentError(0, message, reason="invalid_labels")
    if columns.input_ids not in record:
        message = f"no '{columns.input_ids}' (found: {', '.join(record) or 'none'})"
        return DocumentError(0, message, reason="missing_value", listed=f"no '{columns.input_ids}'")
    fault = _list_fault(columns.input_ids, record[columns.input_ids], label=False)
    if fault is not None:
        return fault
    labels = record.get(columns.labels)
    if (labels is not None) != has_labels:
        here, there = ("no ", "") if has_labels else ("", "no ")
        message = f"{here}'{columns.labels}', but the file's first line has {there}such list; give it to all or none"
        return DocumentError(0, message, reason="invalid_labels")
    return None if labels is None else _list_fault(columns.labels, labels, label=True)


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
        _parse(line, columns._replace(extra=(), per_token=()), {})
    except pa.ArrowException as error:
        message = str(error).splitlines()[0].removesuffix(" in row 0")
        return DocumentError(0, message, reason="unreadable", listed="the parser does not take the line")
    return None


def _list_fault(column: str, tokens: object, *, label: bool) -> DocumentError | None:
    """Return the error for a parsed list of tokens or labels, or None. The listed message does not quote texts."""
    if tokens is None:
        return DocumentError(0, null_message(column), reason="missing_value")
    if not isinstance(tokens, list):
        message, listed = (
            f"'{column}' holds {show(tokens)} where a list of integers is expected" for show in (shown, _kind)
        )
        return DocumentError(0, message, reason="wrong_type", listed=listed)
    for position, token in enumerate(tokens):
        if type(token) is int and -(2**31) <= token < 2**31:  # a bool is an int to isinstance
            continue
        if token is None:
            message = listed = null_value_message(column, position, len(tokens))
        elif type(token) is int:
            message = listed = value_message(column, token, position, label=label)
        else:
            message, listed = (
                f"'{column}' holds {show(token)} at position {position} where an integer is expected"
                for show in (shown, _kind)
            )
        return DocumentError(0, message, reason="invalid_labels" if label else "invalid_tokens", listed=listed)
    return None


def _kind(value: object) -> str:
    """Return a number as it is and the kind of any other value, which may be text: "a string"."""
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value)) or shown(value)
