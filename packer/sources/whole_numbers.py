"""Whole numbers in a column: lengths, or what a document takes of a limit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_numpy
from packer.arrow import compute as pc
from packer.sources.documents import LONGEST, DocumentError


def whole_numbers(values: pa.Array, column: str, *, in_text: bool) -> NDArray[np.int32]:
    """Return values of a column as numbers, shape (values,).

    Args:
        values: the values.
        column: name of the column, for messages.
        in_text: whether strings of digits are numbers, as in CSV.

    Raises:
        DocumentError: a value is missing, negative, too large or not a whole number; with its index.
    """
    if values.null_count:
        raise DocumentError(int(pc.index(values.is_null(), True).as_py()), f"'{column}' is missing; give it a number")
    if in_text and (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        is_number = pc.match_substring_regex(values, r"^\d{1,18}$")
        wrong = pc.index(is_number, False).as_py()
        if wrong >= 0:
            raise DocumentError(wrong, f"'{column}' is {str(values[wrong])[:40]!a}; expected a whole number")
        values = pc.cast(values, pa.int64())
    if not pa.types.is_integer(values.type):
        raise DocumentError(0, f"'{column}' holds {values.type}; expected whole numbers")
    numbers = as_numpy(values)
    bad = np.flatnonzero((numbers < 0) | (numbers > LONGEST))
    if len(bad):
        raise DocumentError(int(bad[0]), f"'{column}' is {numbers[bad[0]]}; expected 0 to {LONGEST}")
    return numbers.astype(np.int32)


def wrong_numbers(values: pa.Array) -> NDArray[np.int64]:
    """Return the indices of values that are missing, no whole number, negative or too large.

    Floats may be whole numbers: a column of JSON that holds 1 and 2.5 is one of floats.
    """
    if not _is_number(values.type):
        return np.arange(len(values))
    numbers = as_numpy(values.fill_null(0))
    is_good = (numbers >= 0) & (numbers <= LONGEST) & (numbers == np.floor(numbers))
    return np.flatnonzero(~is_good | as_numpy(values.is_null()))


def number_fault(values: pa.Array, row: int, column: str) -> DocumentError:
    """Return the error for one of the values that `wrong_numbers` finds."""
    value = values[row]
    found = value.as_py()
    if found is None:
        message = f"'{column}' is missing; give it a number"
    elif not _is_number(value.type):
        return DocumentError(row, f"'{column}' holds {no_number(value.type)}")  # not the fault of this record alone
    elif isinstance(found, float) and not found.is_integer():
        message = f"'{column}' is {found}; expected a whole number"
    else:
        message = f"'{column}' is {found}; expected 0 to {LONGEST}"
    return DocumentError(row, message, reason="invalid_value")


def no_number(kind: pa.DataType) -> str:
    """Return what a column of a type that has no whole numbers holds, for a message: "bool; expected whole numbers"."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    remedy = "; CSV has text only, so convert it to Parquet or JSON lines" if is_text else ""
    return f"{kind}; expected whole numbers{remedy}"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
