"""Columns of whole numbers: lengths, or those of `--limit`, which are checked while they are read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, as_scalar
from packer.arrow import compute as pc
from packer.errors import SourceError
from packer.inputs.column_types import plain_type
from packer.inputs.document_errors import LONGEST, DocumentError, reading
from packer.inputs.documents import Batch, Columns, Input
from packer.inputs.format_reader import DecodedInput
from packer.inputs.list_checks import with_rejections, without_lists
from packer.inputs.mapped_lists import MappedLists, with_step
from packer.sources.source import Source


def with_numbers(source: Source, numbers: tuple[str, ...]) -> Source:
    """Return a source some of whose extra columns are checked for whole numbers.

    A mapped input stays mapped, unless documents that cannot be used are rejected, and it has one.
    """
    for input_ in source.inputs:
        for name in numbers:
            kind = plain_type(input_.declared_types.get(name, pa.null()))
            if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
                raise SourceError(f"{input_.file.name}: column '{name}' holds {no_number(kind)}")
    inputs = tuple(_with_numbers(input_, source, numbers) for input_ in source.inputs)
    return replace(source, inputs=inputs)


def _with_numbers(input_: Input, source: Source, numbers: tuple[str, ...]) -> Input:
    is_decoded = isinstance(input_, DecodedInput)  # others are checked when rows are planned
    if not is_decoded and not (isinstance(input_, MappedLists) and source.skips and not _is_usable(input_, numbers)):
        return input_
    step = partial(check_numbers, columns=source.columns, numbers=numbers, skips=source.skips)
    return with_step(input_, step, source.columns, has_labels=input_.has_labels)


def _is_usable(input_: MappedLists, numbers: tuple[str, ...]) -> bool:
    with reading(input_.file.name):
        return not any(len(wrong_numbers(chunk)) for name in numbers for (chunk,) in input_.chunks(name))


def check_numbers(batch: Batch, *, columns: Columns, numbers: tuple[str, ...], skips: bool) -> Batch:
    """Check columns of whole numbers in a batch of one chunk; rejected documents get a 0.

    A DocumentError is raised if a column holds no numbers, or if one is missing or wrong and such documents are not
    rejected.
    """
    kept = np.ones(len(batch.input_ids[0]), np.bool_)
    kept[[one.row for one in batch.rejected]] = False
    found: dict[int, DocumentError] = {}
    for name in numbers:
        [values] = batch.extra[name]
        wrong = wrong_numbers(values)
        found |= {row: number_fault(values, row, name) for row in wrong[kept[wrong]].tolist()}
        if found and (not skips or found[min(found)].reason is None):
            raise found[min(found)]
        kept[list(found)] = False
    extra = {name: [_numbers(batch.extra[name][0], kept)] for name in numbers}
    batch = without_lists(batch, columns, found)
    return with_rejections(batch._replace(extra=batch.extra | extra), found, skips=skips)


def _numbers(values: pa.Array, kept: NDArray[np.bool_]) -> pa.Array:
    """Return values, which are whole numbers, as integers; those that are not kept may be anything and become 0."""
    kind = values.type if pa.types.is_integer(values.type) else pa.int64()
    if not (kind.equals(values.type) or pa.types.is_floating(values.type)):  # none is kept
        return pa.array(np.zeros(len(values), np.int64))
    if not kept.all():
        values = pc.if_else(as_arrow(kept), values, as_scalar(0, values.type))
    return values.cast(kind)


def whole_numbers(values: pa.Array, column: str, *, in_text: bool) -> NDArray[np.int32]:
    """Return values of a column as numbers, shape (values,); `in_text` if strings of digits are numbers, as in CSV.

    A DocumentError for a value that is missing, negative, too large or no whole number has its index.
    """
    if in_text and (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        is_number = pc.match_substring_regex(values, r"^\d{1,18}$")
        wrong = pc.index(is_number, False).as_py()
        if wrong >= 0:
            raise DocumentError(wrong, f"'{column}' is {str(values[wrong])[:40]!a}; expected a whole number")
        values = pc.cast(values, pa.int64())
    if not (pa.types.is_integer(values.type) or values.null_count == len(values) > 0):
        raise DocumentError(0, f"'{column}' holds {values.type}; expected whole numbers")
    for row in wrong_numbers(values)[:1].tolist():
        raise number_fault(values, row, column)
    return as_numpy(values).astype(np.int32)


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
