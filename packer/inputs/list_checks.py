"""One check of the lists of documents: it finds nulls, unequal lengths, and values that are no tokens, labels or masks.

`document_lengths` is its part that every pass over a source needs. `check_lists` raises the first fault, or rejects the
documents that have one (`--on-error skip`). `apply_masks` strips padding, and sets labels to -100, by checked masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, as_scalar, is_numeric
from packer.arrow import compute as pc
from packer.column_names import NO_LOSS
from packer.inputs.column_types import is_list, shown
from packer.inputs.documents import (
    ATTENTION,
    LONGEST,
    MASKS,
    Batch,
    Columns,
    DocumentError,
    null_message,
    null_value_message,
    value_message,
    wrong_values,
)
from packer.manifest_fields import Reason
from packer.token_memory import list_lengths

Faults = dict[int, DocumentError]
"""The error for each document that cannot be used, by its index."""

_RUN = 1 << 22  # values: 16 MB of tokens

_INVALID = -1  # instead of the length of a document


def document_lengths(tokens: pa.Array, beside: Mapping[str, pa.Array], widths: Mapping[str, int]) -> NDArray[np.int32]:
    """Return the lengths of documents, shape (documents,), and -1 for each invalid one.

    Args:
        tokens: lists of tokens.
        beside: labels and other columns with a value per token, by name.
        widths: values per token, of columns that have several.

    A ValueError is raised if the offsets or buffers of an array are corrupt.
    """
    tokens.validate()
    wide = list_lengths(tokens)
    is_long = len(wide) and wide.max() > LONGEST
    lengths: NDArray[np.int32] = (np.where(wide > LONGEST, _INVALID, wide) if is_long else wide).astype(np.int32)
    _mark_nulls(tokens, lengths)
    for name, lists in beside.items():
        lists.validate()
        lengths[list_lengths(lists) != wide] = _INVALID
        _mark_nulls(lists, lengths, widths.get(name))
    return lengths


def document_error(tokens: pa.Array, beside: Mapping[str, pa.Array], row: int, columns: Columns) -> DocumentError:
    """Return the error for a document whose length is -1; see `document_lengths`."""
    lists = {name: array[row].values for name, array in {columns.input_ids: tokens, **beside}.items()}
    tokens = lists[columns.input_ids]
    for column, values in lists.items():
        reason: Reason = "invalid_labels" if column in (columns.labels, *MASKS) else "invalid_value"
        if values is tokens:
            reason = "missing_value" if values is None else "invalid_tokens"
        if values is None:
            return DocumentError(row, null_message(column), reason=reason)
        if values.null_count:
            position = values.is_null().index(pa.scalar(True)).as_py()
            return DocumentError(row, null_value_message(column, position, len(values)), reason=reason)
        if len(values) != len(tokens):
            message = f"'{column}' has {len(values)} values for {len(tokens)} tokens; give one per token"
            if column == columns.labels:
                message = (
                    f"'{column}' has {len(values)} values for {len(tokens)} in '{columns.input_ids}'; "
                    "both need the same number (-100 where there is no loss)"
                )
            return DocumentError(row, message, reason=reason)
        width = columns.widths.get(column) if is_list(values.type) else None
        if width and len(unfit := np.flatnonzero(_is_unfit(values, width))):
            value = values[int(unfit[0])].as_py()
            message = (
                f"'{column}' holds {shown(value)}, a list of {len(value)}, for token {unfit[0]}: give every token "
            )
            return DocumentError(row, f"{message}{width} numbers, as others have", reason=reason)
    message = f"{len(tokens)} tokens, more than the limit of {LONGEST} for a document; split it"
    return DocumentError(row, message, reason="invalid_tokens")


def check_lists(batch: Batch, *, columns: Columns, skips: bool) -> Batch:
    """Check a batch; raise a DocumentError for the first document that cannot be used.

    With `skips`, these documents are emptied and rejected instead. Lists of lists get fixed sizes.
    """
    batch = leave_out(batch, columns, list_faults(batch, columns), skips=skips)
    wide = {name: as_wide(batch.extra[name], width) for name, width in columns.widths.items()}
    return batch._replace(extra=batch.extra | wide) if wide else batch


def list_faults(batch: Batch, columns: Columns) -> Faults:
    """Find the documents of a batch that cannot be used."""
    found = Faults()
    # Later checks rely on earlier ones: lists without nulls and of equal lengths, then values of 0 and 1 in masks.
    for faults_of in (_length_faults, _value_faults, _mask_faults, _hole_faults):
        faults = faults_of(batch, columns)
        batch = _without_lists(batch, columns, faults)
        found |= faults
    return found


def leave_out(batch: Batch, columns: Columns, faults: Faults, *, skips: bool) -> Batch:
    """Empty and reject the documents of a batch that have a fault, or raise the first unless `skips`."""
    if not faults:
        return batch
    if not skips:
        raise faults[min(faults)]
    assert all(fault.reason is not None for fault in faults.values()), faults  # each is about its document alone
    rejected = tuple(sorted((*batch.rejected, *faults.values()), key=attrgetter("row")))
    return _without_lists(batch, columns, faults)._replace(rejected=rejected)


def _without_lists(batch: Batch, columns: Columns, faults: Faults) -> Batch:
    """Empty the lists of some documents of a batch."""
    if not faults:
        return batch
    kept = np.ones(len(batch.input_ids), np.bool_)
    kept[list(faults)] = False
    lists = {name: _emptied(batch.extra[name], kept) for name in columns.per_token if name in batch.extra}
    labels = None if batch.labels is None else _emptied(batch.labels, kept)
    return batch._replace(input_ids=_emptied(batch.input_ids, kept), labels=labels, extra=batch.extra | lists)


def _emptied(lists: pa.Array, kept: NDArray[np.bool_]) -> pa.Array:
    """Keep some lists and empty the others, which may be null or hold nulls."""
    whole = lists.take(as_arrow(np.flatnonzero(kept)))
    lengths = np.zeros(len(kept), np.int64)
    lengths[kept] = list_lengths(whole)
    return as_lists(values_of(whole), lengths, lists.type)


def as_lists(values: pa.Array, lengths: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Make lists of these lengths: large lists if `kind` is one."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(as_arrow(offsets.astype(np.int64)), values)
    return pa.ListArray.from_arrays(as_arrow(offsets.astype(np.int32)), values)


def wide_type(kind: pa.DataType, width: int | None) -> pa.DataType:
    """Return a type of lists of lists with fixed-size inner lists; other types, and all without a width, unchanged."""
    if width is None or not is_nested(kind) or pa.types.is_fixed_size_list(kind.value_type):
        return kind
    inner = pa.list_(kind.value_type.value_type, width)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def as_wide(lists: pa.Array, width: int | None) -> pa.Array:
    """Return lists in their `wide_type`, with the values in place; unchanged if an inner list has another length."""
    kind = wide_type(lists.type, width)
    if width is None or kind.equals(lists.type) or lists.null_count or _is_unfit(values_of(lists), width).any():
        return lists
    inner = pa.FixedSizeListArray.from_arrays(values_of(values_of(lists)), width)
    return as_lists(inner, list_lengths(lists), kind)


def width_of(kind: pa.DataType) -> int | None:
    """Return the size of the inner lists of a `wide_type`; None for other types."""
    return kind.value_type.list_size if is_nested(kind) and pa.types.is_fixed_size_list(kind.value_type) else None


def is_nested(kind: pa.DataType) -> bool:
    """Whether a type is a list of lists."""
    return is_list(kind) and is_list(kind.value_type)


def _is_unfit(lists: pa.Array, width: int) -> NDArray[np.bool_]:
    """Whether each inner list is null, holds a null, or has another length than `width`."""
    lengths, values = list_lengths(lists), values_of(lists)
    unfit: NDArray[np.bool_] = lengths != width
    if lists.null_count:
        unfit |= as_numpy(lists.is_null())
    if values.null_count:
        unfit[np.searchsorted(np.cumsum(lengths), np.flatnonzero(as_numpy(values.is_null())), side="right")] = True
    return unfit


def int32_lists(lists: pa.Array) -> pa.Array:
    """Convert checked lists of tokens or labels to list<int32>."""
    return as_lists(values_of(lists).cast(pa.int32(), safe=False), list_lengths(lists), pa.list_(pa.int32()))


def _length_faults(batch: Batch, columns: Columns) -> Faults:
    """Find documents with nulls, or lists of unequal lengths."""
    tokens, beside = batch.input_ids, batch.beside(columns)
    wrong = np.flatnonzero(document_lengths(tokens, beside, columns.widths) < 0).tolist()
    return {row: document_error(tokens, beside, row, columns) for row in wrong}


def _value_faults(batch: Batch, columns: Columns) -> Faults:
    """Find documents with values that are not token ids, or not labels."""
    faults = _wrong_values(batch.input_ids, columns.input_ids, label=False)
    return faults if batch.labels is None else _wrong_values(batch.labels, columns.labels, label=True) | faults


def _wrong_values(lists: pa.Array, column: str, *, label: bool) -> Faults:
    found = as_numpy(values_of(lists))
    if not len(found) or (found.min() >= 0 and found.max() <= LONGEST):
        return {}
    reason: Reason = "invalid_labels" if label else "invalid_tokens"
    return {
        row: DocumentError(row, value_message(column, int(found[at]), position, label=label), reason=reason)
        for row, at, position in _first_places(wrong_values(found, label=label), list_lengths(lists))
    }


def _first_places(is_wrong: NDArray[np.bool_], lengths: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield (list, index of the value, position in the list) of the first wrong value of each list that has one."""
    wrong, ends = np.flatnonzero(is_wrong), np.cumsum(lengths)
    rows, firsts = np.unique(np.searchsorted(ends, wrong, side="right"), return_index=True)
    for row, at in zip(rows.tolist(), wrong[firsts].tolist(), strict=True):
        yield row, at, at - int(ends[row] - lengths[row])


def _mask_faults(batch: Batch, columns: Columns) -> Faults:
    """Find documents whose masks hold values other than 0 and 1."""
    lengths, faults = list_lengths(batch.input_ids), Faults()
    for name in (name for name in columns.per_token if name in MASKS):
        found = _numbers(batch.extra[name])
        for row, at, position in _first_places((found != 0) & (found != 1), lengths):
            message = f"'{name}' holds {found[at]} at position {position}: a mask is 0 or 1; fix the source"
            faults.setdefault(row, DocumentError(row, message, reason="invalid_labels"))
    return faults


def _hole_faults(batch: Batch, columns: Columns) -> Faults:
    """Find documents with padding between their tokens."""
    if ATTENTION not in columns.per_token:
        return {}
    lengths, attended = list_lengths(batch.input_ids), mask_values(batch.extra[ATTENTION])
    first, last, places = attended_places(attended, lengths)
    ends, counts, faults = np.cumsum(lengths), last - first, Faults()
    some = np.flatnonzero(counts)
    spans = places[last[some] - 1] + 1 - places[first[some]]
    for row in some[np.flatnonzero(spans != counts[some])].tolist():
        begin = int(places[first[row]])
        hole = begin + int(np.argmin(attended[begin : int(ends[row])])) - int(ends[row] - lengths[row])
        message = (
            f"'{ATTENTION}' is 0 at position {hole}, between tokens: padding is stripped at both ends only; "
            "fix the source"
        )
        faults[row] = DocumentError(row, message, reason="invalid_labels")
    return faults


def mask_values(lists: pa.Array) -> NDArray[np.bool_]:
    """Return the values of a mask without faults as booleans, one per token."""
    found: NDArray[np.bool_] = _numbers(lists) == 1
    return found


def _numbers(lists: pa.Array) -> NDArray[Any]:
    values = values_of(lists)
    if values.null_count or not (is_numeric(values.type) or pa.types.is_boolean(values.type)):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    return as_numpy(values)


def attended_places(
    attended: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (first, last, places): document i has the tokens places[first[i]:last[i]] that are not padding."""
    ends, places = np.cumsum(lengths), np.flatnonzero(attended)
    return np.searchsorted(places, ends - lengths), np.searchsorted(places, ends), places


STRIPPED = "stripped"
"""Count of `Batch.counts`: token ids that are padding by `attention_mask`."""


def apply_masks(batch: Batch, *, columns: Columns, masks: Sequence[str], has_labels: bool) -> Batch:
    """Strip padding, count it, and set labels to -100 where a mask is 0, in a batch without faults.

    The masks are removed. With `has_labels`, labels are made of the tokens if there are none.
    """
    tokens = batch.input_ids
    values, lengths, labels, counts = values_of(tokens), list_lengths(tokens), None, batch.counts
    if has_labels:
        labels = values_of(batch.labels) if batch.labels is not None else values
        if not pa.types.is_signed_integer(labels.type) or labels.type.bit_width < 32:
            labels = labels.cast(pa.int64())
        for name in (name for name in masks if name != ATTENTION):
            mask = as_arrow(mask_values(batch.extra[name]))
            labels = pc.if_else(mask, labels, as_scalar(NO_LOSS, labels.type))
    extra = {name: column for name, column in batch.extra.items() if name not in masks}
    if ATTENTION in masks and not (attended := mask_values(batch.extra[ATTENTION])).all():
        first, last, _ = attended_places(attended, lengths)
        lengths, keep = last - first, as_arrow(attended)
        counts = {**counts, STRIPPED: int(np.count_nonzero(~attended))}
        values = values.filter(keep)
        labels = labels.filter(keep) if labels is not None else None
        for name in columns.per_token:
            if name in extra:
                extra[name] = _large_lists(values_of(extra[name]).filter(keep), lengths)
    return batch._replace(
        input_ids=_large_lists(values, lengths),
        labels=None if labels is None else _large_lists(labels, lengths),
        extra=extra,
        counts=counts,
    )


def _large_lists(values: pa.Array, lengths: NDArray[np.int64]) -> pa.Array:
    return as_lists(values, lengths, pa.large_list(values.type))


def _mark_nulls(array: pa.Array, lengths: NDArray[np.int32], width: int | None = None) -> None:
    """Write -1 as the length of lists that are null, hold a null, or a list of another length than `width`."""
    values = array.values  # the whole child array, which the offsets below index
    width = width if is_list(values.type) else None
    if len(array) and (values.null_count or width):
        if pa.types.is_fixed_size_list(array.type):
            bounds = (array.offset + np.arange(len(array) + 1, dtype=np.int64)) * array.type.list_size
        else:
            bounds = as_numpy(array.offsets)
        within = values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        wrong = _is_unfit(within, width) if width else as_numpy(within.is_null())
        lengths[np.diff(np.searchsorted(np.flatnonzero(wrong) + bounds[0], bounds)) > 0] = _INVALID
    if array.null_count:
        lengths[as_numpy(array.is_null())] = _INVALID


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
    """Return the values of lists without nulls, one list after the other."""
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        return lists.values.slice(lists.offset * size, len(lists) * size)
    first, last = (lists.offsets[at].as_py() for at in (0, -1)) if len(lists) else (0, 0)
    return lists.values.slice(first, last - first)
