"""Mask columns: padding is stripped, and labels are -100 where a mask excludes loss."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_scalar
from packer.arrow import compute as pc
from packer.column_names import NO_LOSS
from packer.gather import held_lists, list_lengths
from packer.inputs.arrow_files import decoded_again
from packer.inputs.document_errors import reading
from packer.inputs.documents import ATTENTION, MASKS, Batch, Columns, Input
from packer.inputs.format_reader import DecodedInput
from packer.inputs.list_checks import as_lists, attended_places, mask_values, values_of
from packer.inputs.token_tables import MappedLists
from packer.options import byte_size

_LARGE = 1 << 30  # bytes, which take seconds to read

log = logging.getLogger(__name__)


def with_masks(columns: Columns, names: Sequence[str]) -> Columns:
    """Add the masks that are among the column names of the first file to the columns to read."""
    masks = tuple(name for name in MASKS if name in names)
    return columns._replace(extra=(*columns.extra, *masks), per_token=(*columns.per_token, *masks))


def checked_lists(inputs: Sequence[Input], columns: Columns, read: Columns, *, skips: bool) -> tuple[Input, ...]:
    """Return inputs whose masks are applied while they are read, and that reject documents which cannot be used.

    Inputs were opened to read `read`, which is `columns` with the masks. Mapped ones stay mapped if no mask changes any
    of them, and no document is rejected. To find the latter, they are read once.
    """
    to_empty = [skips and not (isinstance(each, MappedLists) and _is_usable(each, read)) for each in inputs]
    masks = tuple(name for name in read.extra if name not in columns.extra)
    mapped = [each for each in inputs if isinstance(each, MappedLists)]
    if skips and (read_once := sum(each.file.bytes for each in mapped)) >= _LARGE:
        log.info("reading %s once to find records that cannot be used", byte_size(read_once))
    if len(mapped) == len(inputs) and not any(to_empty):
        masks = tuple(name for name in masks if not all(_masks_nothing(each, name) for each in mapped))
    kept = columns._replace(extra=(*columns.extra, *masks), per_token=(*columns.per_token, *masks))

    def prepared(each: Input, empties: bool) -> Input:
        if isinstance(each, MappedLists):
            each = replace(each, extra=kept.extra)
            if masks or empties:
                each = decoded_again(each, kept, skips=skips)
        if masks:
            assert isinstance(each, DecodedInput), each
            has_labels = each.has_labels if masks == (ATTENTION,) or each.has_labels is None else True
            step = partial(apply_masks, columns=kept, masks=masks, has_labels=bool(has_labels))
            each = replace(each, steps=(*each.steps, step), has_labels=has_labels)
        return each

    return tuple(prepared(each, empties) for each, empties in zip(inputs, to_empty, strict=True))


def _is_usable(input_: MappedLists, columns: Columns) -> bool:
    """Whether a mapped input has no document that cannot be used."""
    checked = decoded_again(input_, columns._replace(extra=columns.per_token), skips=True)
    with reading(input_.file.name):
        return not any(batch.rejected for batch in checked.batches())


def _masks_nothing(input_: MappedLists, name: str) -> bool:
    """Whether a mask masks nothing in a mapped input, so that it need not be applied."""
    chunks = list(input_.chunks(name, input_.input_ids))
    with reading(input_.file.name), held_lists([mask for mask, _ in chunks]):
        return all(_is_one(mask) and _equal_lengths(mask, tokens) for mask, tokens in chunks)


def _is_one(mask: pa.Array) -> bool:
    """Whether a mask is 1 everywhere, also outside its slice."""
    values = mask.values
    if mask.null_count or values.null_count or not len(values):
        return False
    found = pc.min_max(values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values)
    return bool(found["min"].as_py() == 1 and found["max"].as_py() == 1)


def _equal_lengths(mask: pa.Array, tokens: pa.Array) -> bool:
    try:
        return bool(np.array_equal(list_lengths(mask), list_lengths(tokens)))
    except ValueError:
        return False


def apply_masks(batch: Batch, *, columns: Columns, masks: Sequence[str], has_labels: bool) -> Batch:
    """Strip padding, and set labels to -100 where a mask is 0, in a batch of one chunk without faults.

    The masks are removed. With `has_labels`, labels are made of the tokens if there are none.
    """
    tokens = batch.input_ids[0]
    values, lengths, labels = values_of(tokens), list_lengths(tokens), None
    if has_labels:
        labels = values_of(batch.labels[0]) if batch.labels is not None else values
        if not pa.types.is_signed_integer(labels.type) or labels.type.bit_width < 32:
            labels = labels.cast(pa.int64())
        for name in (name for name in masks if name != ATTENTION):
            mask = as_arrow(mask_values(batch.extra[name][0]))
            labels = pc.if_else(mask, labels, as_scalar(NO_LOSS, labels.type))
    extra = {name: column for name, (column,) in batch.extra.items() if name not in masks}
    if ATTENTION in masks and not (attended := mask_values(batch.extra[ATTENTION][0])).all():
        first, last, _ = attended_places(attended, lengths)
        lengths, keep = last - first, as_arrow(attended)
        values = values.filter(keep)
        labels = labels.filter(keep) if labels is not None else None
        for name in columns.per_token:
            if name in extra:
                extra[name] = _lists(values_of(extra[name]).filter(keep), lengths)
    return batch._replace(
        input_ids=[_lists(values, lengths)],
        labels=None if labels is None else [_lists(labels, lengths)],
        extra={name: [column] for name, column in extra.items()},
    )


def _lists(values: pa.Array, lengths: NDArray[np.int64]) -> pa.Array:
    return as_lists(values, lengths, pa.large_list(values.type))
