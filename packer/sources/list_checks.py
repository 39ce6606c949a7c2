"""Check token lists of records: nulls, unequal lengths, and values that are not tokens.

Every pass over a source calls `document_lengths`. `apply_masks` strips padding, sets labels to -100 and makes the
column of weights, according to checked masks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, as_scalar, is_numeric
from packer.arrow import compute as pc
from packer.column_names import LOSS_WEIGHTS, NO_LOSS
from packer.json_records import Reason
from packer.sources.column_types import (
    as_plain,
    cast_to_common_type,
    holds_json,
    infer,
    is_list,
    loss_columns,
    python_values,
    require_lists,
    shown,
)
from packer.sources.documents import (
    LONGEST,
    Batch,
    Columns,
    DocumentError,
    null_message,
    null_value_message,
    value_message,
    wrong_values,
)
from packer.sources.meanings import ATTENTION, INVERSE_MASKS, WEIGHTED_MASKS
from packer.token_memory.token_column import list_lengths

BlockRecords: TypeAlias = pa.RecordBatch | Sequence[Mapping[str, object]]
"""Records of a block, as columns or as Python objects."""

Faults = dict[int, DocumentError]
"""The error for each record of a block that cannot be used, by its index."""

_RUN = 1 << 22  # number of values: 16 MB of tokens

_INVALID = -1  # length of an invalid document


def document_lengths(tokens: pa.Array, beside: Mapping[str, pa.Array], widths: Mapping[str, int]) -> NDArray[np.int32]:
    """Return the lengths of documents, shape (documents,); -1 for each invalid document.

    Args:
        tokens: lists of tokens.
        beside: labels and other columns with a value per token, by name.
        widths: number of values per token, for columns with several.

    Raises a ValueError if the offsets or buffers of an array are corrupt.
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
        reason: Reason = "invalid_labels" if column in (columns.labels, *columns.masks) else "invalid_value"
        if values is tokens:
            reason = "missing_value" if values is None else "invalid_tokens"
        if values is None:
            return DocumentError(row, null_message(column), reason=reason)
        if values.null_count:
            position = values.is_null().index(pa.scalar(True)).as_py()
            return DocumentError(row, null_value_message(column, position, len(values)), reason=reason)
        if len(values) != len(tokens):
            what = "tokens; give one per token"
            if column == columns.labels:
                what = f"in '{columns.input_ids}'; both need the same number (-100 where there is no loss)"
            return DocumentError(row, f"'{column}' has {len(values)} values for {len(tokens)} {what}", reason=reason)
        width = columns.widths.get(column) if is_list(values.type) else None
        if width and len(unfit := np.flatnonzero(_is_unfit(values, width))):
            value = values[int(unfit[0])].as_py()
            message = f"'{column}' holds {shown(value)}, a list of {len(value)}, for token {unfit[0]}"
            return DocumentError(row, f"{message}: give every token {width} numbers, as others have", reason=reason)
    message = f"{len(tokens)} tokens, more than the limit of {LONGEST} for a document; split it"
    return DocumentError(row, message, reason="invalid_tokens")


def check_lists(batch: Batch, columns: Columns) -> Batch:
    """Raise a DocumentError for the first unusable document of a batch. Lists of lists get fixed sizes."""
    fault = first_fault(batch, columns)
    if fault is not None:
        raise fault
    wide = {name: as_wide(batch.extra[name], width) for name, width in columns.widths.items()}
    return batch._replace(extra=batch.extra | wide) if wide else batch


def first_fault(batch: Batch, columns: Columns) -> DocumentError | None:
    """Return the error for the first unusable document of a batch; None if all are usable."""
    first: DocumentError | None = None
    # Later checks rely on earlier ones: lists without nulls and of equal lengths, then values of 0 and 1 in masks.
    for fault_in in (length_fault, value_fault, _mask_fault, _hole_fault):
        fault = fault_in(batch, columns)
        if fault is not None:
            first, batch = fault, batch.first(fault.row)  # later checks only need documents before this one
    return first


def decode_lists(records: BlockRecords, *, columns: Columns, has_labels: bool, makes_labels: bool) -> Batch:
    """Return the token lists of records and their columns with a value per token, checked and masked.

    `makes_labels` is passed to `apply_masks` as `has_labels`. Raises a DocumentError with the number of the first
    unusable record.
    """
    batch = check_lists(read_lists(records, columns, has_labels=has_labels), columns)
    return apply_masks(batch, columns, has_labels=makes_labels) if columns.masks else batch


def read_lists(records: BlockRecords, columns: Columns, *, has_labels: bool) -> Batch:
    """Return the result of `decode_lists` without checks."""
    single = [name for name in columns.masks if name not in columns.per_token]
    if isinstance(records, pa.RecordBatch):
        lists = {name: records.column(name) for name in (columns.input_ids, columns.labels)[: 1 + has_labels]}
        extra = {name: as_plain(records.column(name)) for name in (*columns.per_token, *single)}
    else:
        for row, record in enumerate(records):
            try:
                _check_record(record, columns, has_labels=has_labels)
            except DocumentError as fault:
                raise fault.at(row) from None
        lists = {
            name: pa.array([record.get(name) for record in records], pa.list_(pa.int32()))
            for name in (columns.input_ids, columns.labels)[: 1 + has_labels]
        }
        extra = {name: infer([record.get(name) for record in records], name) for name in (*columns.per_token, *single)}
        extra |= {name: require_lists(extra[name], name) for name in columns.per_token}
    lengths = list_lengths(lists[columns.input_ids])
    for name in single:
        numbers = mask_of_numbers(name, extra[name], lengths, is_weight=name in columns.weights)
        extra[name] = _large_lists(as_arrow(numbers), lengths)
    return Batch(lists[columns.input_ids], lists[columns.labels] if has_labels else None, 0, extra)


def _check_record(record: Mapping[str, object], columns: Columns, *, has_labels: bool) -> None:
    """Raise a DocumentError if a record lacks a column, or a value has a wrong type. Nulls are found later."""
    for name in loss_columns(record, columns.absent):
        message = f"has '{name}', and the first line has none; give it to all lines or none"
        raise DocumentError(0, message, reason="invalid_labels")
    if columns.input_ids not in record:
        message = f"no '{columns.input_ids}' (found: {', '.join(record) or 'none'})"
        raise DocumentError(0, message, reason="missing_value")
    check_list(columns.input_ids, record[columns.input_ids], label=False)
    if (record.get(columns.labels) is not None) != has_labels:
        here, there = ("no ", "") if has_labels else ("", "no ")
        message = f"{here}'{columns.labels}', but the file's first line has {there}such list; give it to all or none"
        raise DocumentError(0, message, reason="invalid_labels")
    check_list(columns.labels, record.get(columns.labels), label=True)


def check_list(column: str, tokens: object, *, label: bool) -> None:
    """Raise a DocumentError unless tokens or labels are null, or a list of nulls and integers that fit int32."""
    if tokens is not None and not isinstance(tokens, list):
        message = f"'{column}' holds {shown(tokens)} where a list of integers is expected"
        raise DocumentError(0, message, reason="wrong_type")
    for position, token in enumerate(tokens or ()):
        if token is None or (type(token) is int and abs(token) <= LONGEST):  # isinstance would accept a bool
            continue
        if type(token) is int:
            message = value_message(column, token, position, label=label)
        else:
            message = f"'{column}' holds {shown(token)} at position {position} where an integer is expected"
        raise DocumentError(0, message, reason="invalid_labels" if label else "invalid_tokens")


def joined_batches(parts: Sequence[Batch]) -> Batch:
    """Join batches of one block of records; their `records` must be set. Lists get a common type."""
    if len(parts) == 1:
        return parts[0]

    def joined(name: str, arrays: Iterable[pa.Array]) -> pa.Array:
        return pa.concat_arrays(cast_to_common_type([*arrays], name))

    labels = [part.labels for part in parts if part.labels is not None]
    if any(LOSS_WEIGHTS in part.extra for part in parts):
        parts = [part._replace(extra=part.extra | {LOSS_WEIGHTS: stored_weights(part)}) for part in parts]
    return Batch(
        joined("tokens", (part.input_ids for part in parts)),
        joined("labels", labels) if labels else None,
        parts[-1].done,
        {name: joined(name, (part.extra[name] for part in parts)) for name in parts[0].extra},
        counts=sum((Counter(part.counts) for part in parts), Counter()),
        records=np.concatenate([part.records for part in parts if part.records is not None]),
    )


def values_of_column(records: BlockRecords, column: str) -> pa.Array:
    """Return the values of a kept column. Raises a DocumentError if they have no common type."""
    if not isinstance(records, pa.RecordBatch):
        return infer([record.get(column) for record in records], column)
    values = records.column(column)
    return infer(python_values(values, column), column) if holds_json(values.type) else as_plain(values)


def as_lists(values: pa.Array, lengths: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Return lists of these lengths; large lists if `kind` is one."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(as_arrow(offsets.astype(np.int64)), values)
    return pa.ListArray.from_arrays(as_arrow(offsets.astype(np.int32)), values)


def wide_type(kind: pa.DataType, width: int | None) -> pa.DataType:
    """Return `kind` with inner lists of size `width`. Returns other types, and all types for None, unchanged."""
    if width is None or not is_nested(kind) or pa.types.is_fixed_size_list(kind.value_type):
        return kind
    inner = pa.list_(kind.value_type.value_type, width)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def as_wide(lists: pa.Array, width: int | None) -> pa.Array:
    """Return lists in their `wide_type`, without copying; unchanged if an inner list has another length."""
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
    """Whether each inner list is null, contains a null, or has another length than `width`."""
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


def lists_of(values: NDArray[np.int32], lengths: NDArray[np.int64]) -> pa.Array:
    """Return int32 values as list<int32> of these lengths."""
    return as_lists(as_arrow(np.ascontiguousarray(values)), lengths, pa.list_(pa.int32()))


def length_fault(batch: Batch, columns: Columns) -> DocumentError | None:
    """Find the first document with a null, or lists of unequal lengths."""
    tokens, beside = batch.input_ids, batch.beside(columns)
    wrong = np.flatnonzero(document_lengths(tokens, beside, columns.widths) < 0)
    return document_error(tokens, beside, int(wrong[0]), columns) if len(wrong) else None


def value_fault(
    batch: Batch, columns: Columns, largest: int = LONGEST, decode: Callable[[Sequence[int]], str] | None = None
) -> DocumentError | None:
    """Find the first document with a value that is not a token id up to `largest` or, for labels, not a label.

    decode: function that converts tokens to text, if they come from a tokenizer.
    """
    faults = []
    for lists, column, label in ((batch.input_ids, columns.input_ids, False), (batch.labels, columns.labels, True)):
        values = as_numpy(values_of(lists)) if lists is not None else np.zeros(0, np.int32)
        if not len(values) or (values.min() >= 0 and values.max() <= largest):
            continue
        reason: Reason = "invalid_labels" if label else "invalid_tokens"
        for row, at, position in _first_place(wrong_values(values, largest, label=label), list_lengths(lists)):
            text = "" if decode is None else decode([int(values[at])])
            message = value_message(column, int(values[at]), position, largest, label=label, text=text)
            faults.append(DocumentError(row, message, reason=reason))
    return min(faults, key=attrgetter("row"), default=None)


def _first_place(is_wrong: NDArray[np.bool_], lengths: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield (list, index of the value, position in the list) for the first wrong value, or nothing."""
    for at in np.flatnonzero(is_wrong)[:1].tolist():
        ends = np.cumsum(lengths)
        row = int(np.searchsorted(ends, at, side="right"))
        yield row, at, at - int(ends[row] - lengths[row])


def _mask_fault(batch: Batch, columns: Columns) -> DocumentError | None:
    """Find the first document with a mask that holds other values than 0 and 1, or with a weight that is none."""
    lengths, faults = list_lengths(batch.input_ids), []
    for name in columns.masks:
        found = _numbers(batch.extra[name])
        is_byte_mask = name in WEIGHTED_MASKS and found.dtype == np.uint8  # as datatrove and OLMo write masks
        is_weight = name in columns.weights and not is_byte_mask
        wrong = ~is_weight_of_loss(found) if is_weight else (found != 0) & (found != 1)
        for row, at, position in _first_place(wrong, lengths):
            limit = WEIGHT_LIMIT if is_weight else "a mask is 0 or 1"
            value = shown(found[at]) if found.dtype.kind == "O" else found[at]
            message = f"'{name}' holds {value} at position {position}: {limit}; fix the source"
            faults.append(DocumentError(row, message, reason="invalid_labels"))
    return min(faults, key=attrgetter("row"), default=None)


def _hole_fault(batch: Batch, columns: Columns) -> DocumentError | None:
    """Find the first document with padding between its tokens."""
    if ATTENTION not in columns.masks:
        return None
    lengths, attended = list_lengths(batch.input_ids), mask_values(batch.extra[ATTENTION])
    first, last, places = _attended_places(attended, lengths)
    ends, counts = np.cumsum(lengths), last - first
    some = np.flatnonzero(counts)
    spans = places[last[some] - 1] + 1 - places[first[some]]
    for row in some[np.flatnonzero(spans != counts[some])][:1].tolist():
        begin = int(places[first[row]])
        hole = begin + int(np.argmin(attended[begin : int(ends[row])])) - int(ends[row] - lengths[row])
        message = (
            f"'{ATTENTION}' is 0 at position {hole}, between tokens: padding is stripped at both ends only; "
            "fix the source"
        )
        return DocumentError(row, message, reason="invalid_labels")
    return None


def largest_weights(lists: pa.Array) -> NDArray[np.float32]:
    """Return the largest weight of each list; 1 if there is none above 0."""
    lengths, values = list_lengths(lists), as_numpy(values_of(lists))
    largest, some = np.zeros(len(lengths), np.float32), lengths > 0
    if len(values):
        largest[some] = np.maximum.reduceat(values, (np.cumsum(lengths) - lengths)[some])
    return np.where(largest > 0, largest, np.float32(1))


def mask_values(lists: pa.Array, name: str = "") -> NDArray[np.bool_]:
    """Return whether each token is trained by a valid mask or weight. Masks with inverse meaning are inverted."""
    found: NDArray[np.bool_] = (_numbers(lists) != 0) != (name in INVERSE_MASKS)
    return found


def trains_all(lists: pa.Array, name: str) -> bool:
    """Whether a mask or weight, checked or not, trains every token alike."""
    return bool((_numbers(lists) == (name not in INVERSE_MASKS)).all())


def _numbers(lists: pa.Array) -> NDArray[Any]:
    values = values_of(lists)
    if values.null_count or not (is_numeric(values.type) or pa.types.is_boolean(values.type)):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    return as_numpy(values)


def _attended_places(
    attended: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (first, last, places): places[first[i]:last[i]] are the positions of the real tokens of document i."""
    ends, places = np.cumsum(lengths), np.flatnonzero(attended)
    return np.searchsorted(places, ends - lengths), np.searchsorted(places, ends), places


STRIPPED = "stripped"
"""Key of `Batch.counts`: number of token ids that are padding by `attention_mask`."""

WEIGHTED_WITHIN = "weighted within"
"""Key of `Batch.counts`: number of documents whose trained tokens have different weights."""


def apply_masks(batch: Batch, columns: Columns, *, has_labels: bool) -> Batch:
    """Strip and count padding, and set labels to -100 where a mask or weight is 0. The batch must have no faults.

    The masks are removed. Weights other than 0 and 1 become the column LOSS_WEIGHTS. With `has_labels`, the tokens
    become the labels if there are none.
    """
    tokens, masks = batch.input_ids, columns.masks
    values, lengths, labels, counts = values_of(tokens), list_lengths(tokens), None, batch.counts
    if has_labels:
        labels = values_of(batch.labels) if batch.labels is not None else values
        if not pa.types.is_signed_integer(labels.type) or labels.type.bit_width < 32:
            labels = labels.cast(pa.int64())
        for name in (name for name in masks if name != ATTENTION):
            mask = as_arrow(mask_values(batch.extra[name], name))
            labels = pc.if_else(mask, labels, as_scalar(NO_LOSS, labels.type))
    extra = {name: column for name, column in batch.extra.items() if name not in masks}
    weighing = [name for name in columns.weights if name in masks]
    weights = np.ones(len(values), np.float32)
    with np.errstate(over="ignore"):  # refused below
        weights = math.prod((weights_in(batch.extra[name]) for name in weighing), start=weights)
    if ATTENTION in masks and not (attended := mask_values(batch.extra[ATTENTION])).all():
        first, last, _ = _attended_places(attended, lengths)
        lengths, keep = last - first, as_arrow(attended)
        counts = {**counts, STRIPPED: counts.get(STRIPPED, 0) + int(np.count_nonzero(~attended))}
        values, weights = values.filter(keep), weights[attended]
        labels = labels.filter(keep) if labels is not None else None
        for name in columns.per_token:
            if name in extra:
                extra[name] = _large_lists(values_of(extra[name]).filter(keep), lengths)
    batch = batch._replace(
        input_ids=_large_lists(values, lengths),
        labels=None if labels is None else _large_lists(labels, lengths),
        extra=extra,
        counts=counts,
    )
    return with_weights(batch, weights) if weighing and has_labels else batch


def with_weights(batch: Batch, weights: NDArray[np.float32]) -> Batch:
    """Multiply the weights of a batch, shape (tokens,), and set labels to -100 where they are 0.

    The batch gets the column LOSS_WEIGHTS unless every weight is 0 or 1. Weights of tokens without loss are 0. Without
    labels, the tokens become the labels. Raises a DocumentError if a product is too large for float32.
    """
    lists = batch.input_ids if batch.labels is None else batch.labels
    lengths, labels = list_lengths(lists), values_of(lists)
    weights = weights * as_numpy(values_of(stored_weights(batch)))
    for row, *_ in _first_place(~np.isfinite(weights), lengths):
        record = row if batch.records is None else int(batch.records[row])
        message = "its weights multiply to a number that float32 cannot hold; fix the source"
        raise DocumentError(record, message, reason="invalid_labels")
    if (weights == 0).any():
        labels = pc.if_else(as_arrow(weights != 0), labels, as_scalar(NO_LOSS, labels.type))
    extra = {name: column for name, column in batch.extra.items() if name != LOSS_WEIGHTS}
    counts = {key: count for key, count in batch.counts.items() if key != WEIGHTED_WITHIN}
    if ((weights != 0) & (weights != 1)).any():
        extra[LOSS_WEIGHTS] = _large_lists(as_arrow(weights), lengths)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        differ = (weights != 0) & (weights != largest_weights(extra[LOSS_WEIGHTS])[owners])
        counts[WEIGHTED_WITHIN] = len(np.unique(owners[differ]))
    return batch._replace(labels=_large_lists(labels, lengths), extra=extra, counts=counts)


def stored_weights(batch: Batch) -> pa.Array:
    """Return the weights of a batch, one per token; without the column, 1 for trained tokens and 0 for others."""
    if LOSS_WEIGHTS in batch.extra:
        return batch.extra[LOSS_WEIGHTS]
    lists = batch.input_ids if batch.labels is None else batch.labels
    values = values_of(lists)
    trained = as_numpy(values) != NO_LOSS if len(values) else np.zeros(0, np.bool_)  # empty lists may have no type
    return _large_lists(as_arrow(trained.astype(np.float32)), list_lengths(lists))


def _large_lists(values: pa.Array, lengths: NDArray[np.int64]) -> pa.Array:
    return as_lists(values, lengths, pa.large_list(values.type))


def _mark_nulls(array: pa.Array, lengths: NDArray[np.int32], width: int | None = None) -> None:
    """Write -1 as the length of a list that is null, or contains a null or an inner list not of length `width`."""
    values = array.values  # the whole child array, because offsets index it
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


def runs(lengths: NDArray[Any]) -> Iterator[slice]:
    """Cut lists of these lengths into runs of at most 4 million values, which int32 offsets can index.

    A longer list is one run.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + _RUN, side="right")), start + 1)
        yield slice(start, stop)
        start = stop


def values_of(lists: pa.Array) -> pa.Array:
    """Return the values of lists without nulls, concatenated."""
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        return lists.values.slice(lists.offset * size, len(lists) * size)
    first, last = (lists.offsets[at].as_py() for at in (0, -1)) if len(lists) else (0, 0)
    return lists.values.slice(first, last - first)


WEIGHT_LIMIT = "a weight of the loss is a finite number from 0 on that float32 holds"
"""End of the error message about a value that is no weight."""


def is_weight_of_loss(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each value is a weight: a number from 0 on that float32 holds, without becoming 0 or infinite."""
    if values.dtype.kind not in "biuf":  # strings and other objects of JSON
        return np.zeros(len(values), np.bool_)
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
        found: NDArray[np.bool_] = (values >= 0) & np.isfinite(stored) & ((stored > 0) == (values > 0))
    return found


def weights_in(lists: pa.Array) -> NDArray[np.float32]:
    """Return the values of a valid column of weights, one per token."""
    return _numbers(lists).astype(np.float32)


def mask_of_numbers(
    name: str, numbers: pa.Array, lengths: NDArray[np.int64], *, is_weight: bool
) -> NDArray[np.bool_] | NDArray[np.float32]:
    """Return a mask or weights of tokens; `numbers` has the prompt length or weight of each document.

    Prompts of 2 tokens in documents of 3 and 4: F F T, F F T T. Weights 0 and 0.5: 0 0 0, 0.5 0.5 0.5 0.5; a missing
    weight is 1. Raises a DocumentError for the first number that is not a valid length or weight.
    """
    values = np.full(len(numbers), np.nan)
    if is_numeric(numbers.type) or (is_weight and pa.types.is_boolean(numbers.type)):
        values = np.array(numbers.to_numpy(zero_copy_only=False), np.float64)
    values[np.asarray(numbers.is_null())] = 1 if is_weight else np.nan
    is_length = (values >= 0) & (values <= lengths) & (values == np.floor(values))
    fits = is_weight_of_loss(values) if is_weight else is_length
    for row in np.flatnonzero(~fits)[:1].tolist():
        limit = f"for {lengths[row]} tokens: it is the number of tokens at the beginning that are not trained"
        kind = "" if is_numeric(numbers.type) else f", as {numbers.type}"
        limit = f"as weight{kind}: {WEIGHT_LIMIT}; fix the source" if is_weight else limit
        raise DocumentError(row, f"'{name}' holds {str(numbers[row])[:40]} {limit}", reason="invalid_labels")
    if is_weight:
        return np.repeat(values.astype(np.float32), lengths)
    mask: NDArray[np.bool_] = np.arange(lengths.sum()) >= np.repeat(np.cumsum(lengths) - lengths + values, lengths)
    return mask
