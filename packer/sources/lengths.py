"""Lengths of documents, errors for invalid ones, and access to the values of sliced Arrow lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_numpy
from packer.facts import Reason
from packer.gather import list_lengths
from packer.sources.documents import LONGEST, MASKS, Batch, Columns, DocumentError, null_message

_RUN = 1 << 22  # values: 16 MB of tokens

# Marks that `document_lengths` writes instead of the lengths of invalid documents.
_NULL_ROW, _NULL_TOKEN, _NULL_LABELS, _NULL_LABEL, _UNEQUAL, _TOO_LONG, _OTHER = -1, -2, -3, -4, -5, -6, -7


def document_lengths(
    input_ids: Sequence[pa.Array],
    labels: Sequence[pa.Array] | None,
    others: Mapping[str, Sequence[pa.Array]] = {},
) -> NDArray[np.int32]:
    """Return the lengths of documents, shape (documents,), with a negative mark for each invalid one.

    Args:
        input_ids: chunks of the lists of tokens.
        labels: the same chunks of the lists of labels.
        others: the same chunks of other columns with one value per token, by name.

    Raises:
        ValueError: the offsets or buffers of an array are corrupt.
    """
    lengths = np.empty(sum(map(len, input_ids)), np.int32)
    first = 0
    for number, tokens in enumerate(input_ids):
        part = lengths[first : first + len(tokens)]
        first += len(tokens)
        tokens.validate()
        wide = list_lengths(tokens)
        part[:] = np.where(wide > LONGEST, _TOO_LONG, wide) if len(wide) and wide.max() > LONGEST else wide
        if labels is not None:
            labels[number].validate()
            part[list_lengths(labels[number]) != wide] = _UNEQUAL
            _mark_nulls(labels[number], row_mark=_NULL_LABELS, value_mark=_NULL_LABEL, out=part)
        for chunks in others.values():
            chunks[number].validate()
            part[list_lengths(chunks[number]) != wide] = _OTHER
            _mark_nulls(chunks[number], row_mark=_OTHER, value_mark=_OTHER, out=part)
        _mark_nulls(tokens, row_mark=_NULL_ROW, value_mark=_NULL_TOKEN, out=part)
    return lengths


def document_error(batch: Batch, row: int, mark: int, columns: Columns) -> DocumentError:
    """Return the error for a document of a batch, given the mark that `document_lengths` wrote for it."""
    at = row
    for number, tokens in enumerate(batch.input_ids):
        if at < len(tokens):
            labels = batch.labels[number][at] if batch.labels is not None else None
            others = {name: chunks[number][at] for name, chunks in batch.per_token(columns).items()}
            column, message = _fault(mark, columns, tokens[at], labels, others)
            return DocumentError(row, message, reason=_reason(mark, column))
        at -= len(tokens)
    raise AssertionError(row)


def _fault(
    mark: int, columns: Columns, tokens: pa.Scalar, labels: pa.Scalar, others: Mapping[str, pa.Scalar]
) -> tuple[str, str]:
    """Return (column, message) for a mark of `document_lengths`, given the lists of the document."""
    if mark == _OTHER:
        for column, values in others.items():
            if values.values is None:
                return column, null_message(column)
            counts = len(values.values), len(tokens.values)
            if counts[0] != counts[1]:
                return column, f"'{column}' has {counts[0]} values for {counts[1]} tokens; give one per token"
            if values.values.null_count:
                position = values.values.is_null().index(pa.scalar(True)).as_py()
                return column, f"'{column}' holds a null at position {position} of {counts[0]}; give it a value"
    column = columns.labels if mark in (_NULL_LABELS, _NULL_LABEL, _UNEQUAL) else columns.input_ids
    if mark in (_NULL_ROW, _NULL_LABELS):
        return column, null_message(column)
    if mark in (_NULL_TOKEN, _NULL_LABEL):
        values = tokens.values if mark == _NULL_TOKEN else labels.values
        position = values.is_null().index(pa.scalar(True)).as_py()
        return column, f"'{column}' holds a null at position {position} of {len(values)}; remove it or give it a value"
    if mark == _UNEQUAL:
        return column, (
            f"'{column}' has {len(labels.values)} values for {len(tokens.values)} "
            f"in '{columns.input_ids}'; both need the same number (-100 where there is no loss)"
        )
    return column, f"{len(tokens.values)} tokens, more than the limit of {LONGEST} for a document; split it"


def _reason(mark: int, column: str) -> Reason:
    """Return why a document with this mark cannot be used."""
    if mark == _NULL_ROW:
        return "missing_value"
    if mark in (_NULL_TOKEN, _TOO_LONG):
        return "invalid_tokens"
    return "invalid_value" if mark == _OTHER and column not in MASKS else "invalid_labels"


def _mark_nulls(array: pa.Array, *, row_mark: int, value_mark: int, out: NDArray[np.int32]) -> None:
    """Write `value_mark` for lists that hold a null and `row_mark` for lists that are null."""
    values = array.values  # the whole child array, which the offsets below index
    if values.null_count and len(array):
        if pa.types.is_fixed_size_list(array.type):
            bounds = (array.offset + np.arange(len(array) + 1, dtype=np.int64)) * array.type.list_size
        else:
            bounds = as_numpy(array.offsets)
        nulls = _null_positions(values, int(bounds[0]), int(bounds[-1]))
        out[np.diff(np.searchsorted(nulls, bounds)) > 0] = value_mark
    if array.null_count:
        out[as_numpy(array.is_null())] = row_mark


def runs(lists: pa.Array) -> Iterator[slice]:
    """Cut lists into runs of at most 4 million values, which int32 offsets can index; a longer list is its own run."""
    ends = np.cumsum(list_lengths(lists))
    start = 0
    while start < len(lists):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + _RUN, side="right")), start + 1)
        yield slice(start, stop)
        start = stop


def values_of(lists: pa.Array) -> pa.Array:
    """Return the values of lists without nulls end to end, without those outside the slice."""
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        return lists.values.slice(lists.offset * size, len(lists) * size)
    first, last = (lists.offsets[at].as_py() for at in (0, -1)) if len(lists) else (0, 0)
    return lists.values.slice(first, last - first)


def _null_positions(values: pa.Array, start: int, stop: int, step: int = 1 << 24) -> NDArray[np.int64]:
    """Return the positions of nulls in values[start:stop], in steps because there may be billions of values."""
    positions = [
        np.flatnonzero(as_numpy(values.slice(at, min(step, stop - at)).is_null())) + at
        for at in range(start, stop, step)
    ]
    return np.concatenate([np.zeros(0, np.int64), *positions])
