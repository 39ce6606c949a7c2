"""Values of extra columns: read from JSON and converted to one type, with errors that name a misfit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from packer.arrow import of_one_type
from packer.sources.columns.column_checks import holds_numbers
from packer.sources.columns.column_types import cast, join
from packer.sources.documents import DocumentError

_DEEPEST = 50  # an Arrow stream holds up to 64 levels, its own included
_REASONS = (
    pa.ArrowException,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
)  # raised by pyarrow


def infer(values: Sequence[Any], column: str) -> pa.Array:
    """Return values from JSON as an array of the narrowest type that holds all of them exactly.

    Raises:
        DocumentError: there is no such type; the error has the index of the first value that does not fit.
    """
    plain = of_one_type(values)
    if plain is not None:
        return plain
    try:
        array = pa.array(values)
        if not _is_deep(array.type) and not any(_has_odd_bool(value, array.type) for value in values):
            return array
    except _REASONS:
        pass
    kind = pa.null()
    arrays = []
    for row, value in enumerate(values):
        try:
            arrays.append(pa.array([value]))
        except _REASONS as error:
            raise _unfit(row, column, value, _reason(error)) from None
        if _is_deep(arrays[-1].type):
            raise _unfit(row, column, value, f"nested more than {_DEEPEST} deep; flatten it")
        if _has_odd_bool(value, arrays[-1].type):
            raise _unfit(row, column, value, "a mix of numbers and booleans; use one type")
        joined = join(kind, arrays[-1].type)
        if joined is None:
            raise DocumentError(row, _no_common_type(column, value, kind))
        kind = joined
    return pa.concat_arrays([widen(array, kind, column, first_row=row) for row, array in enumerate(arrays)])


def widen(array: pa.Array, kind: pa.DataType, column: str, *, first_row: int = 0) -> pa.Array:
    """Cast values to a type that was joined from their type and others.

    Raises:
        DocumentError: the type does not hold a value exactly; its index counts from `first_row`.
    """
    try:
        return cast(array, kind)
    except pa.ArrowInvalid:
        row = next(row for row in range(len(array)) if not _fits(array.slice(row, 1), kind))
        message = f"'{column}' holds {shown(array[row].as_py())}, and other documents make the column {kind}, which"
        raise DocumentError(first_row + row, f"{message} cannot hold it exactly; use one type") from None


def join_with(kind: pa.DataType, array: pa.Array, column: str, *, first_row: int = 0) -> pa.DataType:
    """Return the type that holds the values of a type and those of an array.

    Raises:
        DocumentError: there is none; the index of the first value that does not fit counts from `first_row`.
    """
    joined = join(kind, array.type)
    if joined is not None:
        return joined
    filled = [row for row in range(len(array)) if array[row].is_valid]
    if not filled:
        return kind
    row = next((row for row in filled if not _joins(array[row], kind)), filled[0])
    raise DocumentError(first_row + row, _no_common_type(column, array[row].as_py(), kind))


def cast_to_common_type(arrays: Sequence[pa.Array], column: str) -> list[pa.Array]:
    """Cast arrays to the type that holds the values of all of them.

    Raises:
        DocumentError: there is none; the index counts from the first array.
    """
    kind, rows = pa.null(), [0, *accumulate(map(len, arrays))]
    for array, row in zip(arrays, rows, strict=False):
        kind = join_with(kind, array, column, first_row=row)
    return [widen(array, kind, column, first_row=row) for array, row in zip(arrays, rows, strict=False)]


def require_lists(array: pa.Array, column: str) -> pa.Array:
    """Check that values from JSON are lists of numbers; if all are null, return null lists.

    Raises:
        DocumentError: a value is something else.
    """
    if pa.types.is_null(array.type):
        return array.cast(pa.list_(pa.null()))
    if holds_numbers(array.type):
        return array
    row = next(row for row, value in enumerate(array) if value.is_valid and not holds_numbers(_type_of(value)))
    expected = "where a list of numbers is expected, one for each token"
    raise DocumentError(
        row,
        f"'{column}' holds {shown(array[row].as_py())} {expected}",
        reason="invalid_value",
        listed=f"'{column}' holds another value {expected}",
    )


def shown(value: Any) -> str:
    """Return a value as JSON, cut to 40 characters for a message."""
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        return "[...]"
    return text if len(text) <= 40 else text[:37] + "..."


def _unfit(row: int, column: str, value: Any, why: str) -> DocumentError:
    """Return the error for a value that cannot be kept, whatever the others are."""
    message = f"'{column}' holds {shown(value)}: {why}"
    return DocumentError(row, message, reason="invalid_value", listed=f"'{column}' cannot be kept: {why}")


def _no_common_type(column: str, value: Any, kind: pa.DataType) -> str:
    return f"'{column}' holds {shown(value)}, where documents before it hold {kind}; use one type"


def _reason(error: BaseException) -> str:
    """Return why pyarrow rejects a value, and the remedy."""
    if isinstance(error, OverflowError) or "too large" in str(error):
        return f"integers are from {-(2**63)} to {2**63 - 1}; write it as a float or a string"
    if isinstance(error, UnicodeError):
        return "a lone surrogate, which UTF-8 cannot hold; fix the source"
    return "a list, or a list inside it, has values of several types; use one type"


def _fits(array: pa.Array, kind: pa.DataType) -> bool:
    try:
        cast(array, kind)
    except pa.ArrowInvalid:
        return False
    return True


def _joins(value: pa.Scalar, kind: pa.DataType) -> bool:
    """Whether a type can be joined with that of a value; a list of nulls joins any list."""
    try:
        return join(kind, _type_of(value)) is not None
    except _REASONS:
        return False


def _type_of(value: pa.Scalar) -> pa.DataType:
    return pa.array([value.as_py()]).type


def _is_deep(kind: pa.DataType, levels: int = _DEEPEST) -> bool:
    """Whether lists and structs are nested more than `levels` deep."""
    if pa.types.is_struct(kind):
        return levels == 0 or any(_is_deep(field.type, levels - 1) for field in kind)
    return pa.types.is_list(kind) and (levels == 0 or _is_deep(kind.value_type, levels - 1))


def _has_odd_bool(value: Any, kind: pa.DataType) -> bool:
    """Whether there is a bool among floats, which pyarrow would convert to 0.0 or 1.0."""
    if isinstance(value, bool):
        return bool(pa.types.is_floating(kind))
    if isinstance(value, list):
        return any(_has_odd_bool(item, kind.value_type) for item in value)
    if isinstance(value, dict):
        return any(_has_odd_bool(item, kind.field(name).type) for name, item in value.items())
    return False
