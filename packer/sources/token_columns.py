"""Open a dataset of tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from packer.column_names import ROW_DOCUMENT
from packer.errors import PackerError, SourceError
from packer.options import ReadOptions
from packer.sources.column_types import Fields, holds_lists, loss_columns, names_of
from packer.sources.documents import Columns, Found
from packer.sources.format_reader import Reader
from packer.sources.inputs import Input, all_in_place, check_types, open_lists, usual_widths
from packer.sources.list_checks import mask_of_numbers, trains_all
from packer.sources.meanings import (
    BOUNDS,
    EXCHANGE_STARTS,
    LABELS,
    MASKS,
    PROMPT_LENGTHS,
    SAYING,
    SHIFTED,
    WEIGHTED_MASKS,
    WEIGHTS,
    WEIGHTS_OF_RECORDS,
    fields_in,
    refusal,
)
from packer.sources.packed_rows import are_documents, row_columns, with_documents
from packer.sources.record_lists import open_records
from packer.sources.source import Source
from packer.token_memory.token_column import list_lengths


def open_tokens(found: Found, readers: Sequence[Reader], options: ReadOptions) -> Source:
    """Open a tokenized dataset: find its columns, without reading the documents.

    All columns must exist, except a label column named "labels". The column "exchange_starts" (indices of the tokens
    that begin exchanges of chats) is read if documents may be split there.

    `open_records` opens records with several documents, such as preference pairs.
    """
    refuse_masks(options, (*MASKS, *PROMPT_LENGTHS))
    _refuse_unused(found, options)
    if options.pairs or options.share_prefixes:
        return open_records(found, readers, options)

    # Find the columns, including masks, in the first file that has columns.
    fields = next((reader.fields for reader in readers if reader.fields), {})
    names = names_of(fields)
    if {"seq_lengths", "doc_ids", "doc_starts"} <= set(names):
        raise PackerError(
            f"{found.name} holds packed rows, not documents: pack the source that they were packed from, or what "
            "`packer tokenize` wrote"
        )
    read = _with_masks(_columns_of(options, names), fields, found.name, options.weight)
    rows = row_columns(readers, names, read, _without(read, read.masks))
    wanted, columns = (read, _without(read, read.masks)) if rows is None else (rows.read, rows.documents)
    used = {*wanted.wanted(has_labels=True)}  # including masks that mask nothing
    if columns.input_ids in names:
        _refuse_shifted(found, fields, used)

    # Find the lists of each file, and examine the first values of the columns.
    skips = options.on_error == "skip"
    lists = found.each(lambda reader: reader.for_lists(wanted), readers)
    inputs = [open_lists(each, wanted, in_place=True, skips=skips) for each in lists]
    columns = columns._replace(widths=usual_widths(inputs, columns.per_token))
    if rows is not None and not all(are_documents(each, rows) for each in inputs):
        if EXCHANGE_STARTS in columns.extra:
            raise PackerError(
                f"{found.name} holds rows of several documents, and '{EXCHANGE_STARTS}': remove the latter"
            )
        inputs = [with_documents(each, rows._replace(documents=columns), skips=skips) for each in lists]
        columns, packed_by = columns._replace(extra=(*columns.extra, ROW_DOCUMENT)), tuple(rows.bounds)
    else:
        read = _without(read, [name for name in read.masks if _masks_nothing(inputs, name, wanted)])
        read = read._replace(input_ids=columns.input_ids, labels=columns.labels, widths=columns.widths)
        inputs, packed_by = [open_lists(each, read, in_place=not read.masks, skips=skips) for each in lists], ()
    _refuse_missing_labels(found, columns, inputs)
    check_types(found.name, columns.extra, inputs, options.number_columns)
    unused = dict.fromkeys(chain(names, *(each.reader.names for each in lists)))
    return Source(
        name=found.name,
        inputs=tuple(inputs),
        columns=columns,
        skips=skips,
        packed_by=packed_by,
        fields=tuple(name for name in unused if name not in used),
        fingerprint=found.fingerprint,
        pad_id=found.pad_id,
    )


def _columns_of(options: ReadOptions, names: Sequence[str]) -> Columns:
    """Return the columns that the options name, and the exchange starts if they exist or are required."""
    keep, per_token = options.value_columns, options.keep_tokens
    is_read = options.splits_at_exchanges and (options.needs_exchanges or EXCHANGE_STARTS in names)
    places = (EXCHANGE_STARTS,) if is_read and EXCHANGE_STARTS not in keep else ()
    return Columns(
        options.input_column,
        options.labels_column,
        (*keep, *per_token, *places),
        per_token,
        by_sequence=options.document == "sequence",
        eos_id=options.eos_id,
        dtype=options.dtype,
    )


def _refuse_unused(found: Found, options: ReadOptions) -> None:
    """Raise a PackerError if no file of the source has the format that an option is for."""
    endings, arrays = {path.suffix for file in found.files for path in file.paths}, {".bin", ".npy"}
    for name, value, used_by in (
        ("--document", None if options.document == "document" else options.document, {".idx"}),
        ("--eos-id", options.eos_id, arrays),
        ("--dtype", options.dtype, arrays),
    ):
        if value is not None and not endings & used_by:
            files = " or ".join(sorted(used_by))
            raise PackerError(f"{name} {value} is for {files}, and {found.name} has no such file: leave it out")


def refuse_masks(options: ReadOptions, names: Sequence[str] = MASKS) -> None:
    """Raise a PackerError if a column to keep is in `names`, or if weights of the loss would only limit or group."""
    for name in (*options.value_columns, *options.keep_tokens):
        if name in names:
            raise PackerError(f"keep {name!r}: masks become labels and are not kept; leave it out")
        if name in WEIGHTS_OF_RECORDS and name not in (*options.keep, *options.keep_tokens):
            raise PackerError(
                f"--group-by or --limit {name!r}: the column holds weights of the loss, which would be ignored; add "
                f"--keep {name} if that is meant, else copy it to a column of another name"
            )


def _refuse_shifted(found: Found, fields: Fields, used: Collection[str]) -> None:
    """Raise a PackerError for a column that marks training of the next token, in rows without document boundaries."""
    for name in (name for name in loss_columns(fields, SHIFTED) if name not in used):
        raise PackerError(
            f"{found.name}: '{name}' says what is trained of the next token, beside columns of its tool that say where "
            "documents begin, which are missing; if it holds labels of the tokens themselves, say --labels-column "
            f"{name}, else remove it"
        )


def _refuse_missing_labels(found: Found, columns: Columns, inputs: Sequence[Input]) -> None:
    """Raise a PackerError if only some files have labels, or if no file has the named label column."""
    by_labels = {input_.has_labels: input_.file.name for input_ in inputs}
    if not found.saved and True in by_labels and False in by_labels:
        raise SourceError(
            f"{by_labels[True]} has a column '{columns.labels}', {by_labels[False]} has none; "
            "give labels to all files or to none"
        )
    if columns.labels != "labels" and True not in by_labels:
        raise PackerError(f"{found.name}: no labels column '{columns.labels}'; name one that exists")


def _with_masks(columns: Columns, fields: Fields, name: str, weight: str | None) -> Columns:
    """Add the columns of the first file that mark trained tokens or padding, and weights. `weight` is a further one.

    Raises a PackerError if there are several label columns, or if a column is ambiguous.
    """
    used, is_default = (columns.input_ids, *columns.extra), columns.labels == LABELS[0]
    found = {each: has_lists for each, has_lists in loss_columns(fields).items() if each not in used}
    if weight is not None and fields:
        known = fields_in("tokens", [weight]).get(weight)
        if known is not None and known.means != "weight" and weight not in WEIGHTED_MASKS:
            raise PackerError(
                f"--weight {weight!r}: a column of this name has another meaning: rename it in the source"
            )
        found |= {weight: holds_lists(fields, weight, name)}
    labels = [each for each in found if each in LABELS and is_default] or [columns.labels]
    if len(labels) > 1:
        raise PackerError(
            f"{name}: {' and '.join(map(repr, labels))} both hold labels: remove one of them, or name the one to use, "
            f"as in --labels-column {labels[1]}"
        )
    if (refused := refusal("tokens", names_of(fields), (*used, *labels))) is not None:
        raise PackerError(f"{name}: column {refused}")
    masks = {each: has_lists for each, has_lists in found.items() if each not in (*LABELS, *labels)}
    used = (*used, *masks, *labels, *(() if is_default else LABELS))
    return columns._replace(
        labels=labels[0],
        extra=(*columns.extra, *masks),
        per_token=(*columns.per_token, *(each for each, has_lists in masks.items() if has_lists)),
        masks=tuple(masks),
        weights=tuple(each for each in masks if each in (*WEIGHTS, *WEIGHTED_MASKS, weight)),
        absent=tuple(each for each in (*SAYING, *BOUNDS, *SHIFTED) if each not in used),
    )


def _without(columns: Columns, masks: Sequence[str]) -> Columns:
    """Return the columns without the given masks."""
    every = (columns.extra, columns.per_token, columns.masks)
    extra, per_token, kept = (tuple(name for name in names if name not in masks) for names in every)
    return columns._replace(extra=extra, per_token=per_token, masks=kept)


def _masks_nothing(inputs: Sequence[Input], name: str, columns: Columns) -> bool:
    """Whether every token is trained according to a mask. The mask is then not applied, and files stay mapped."""

    def is_trained(mask: pa.Array, tokens: pa.Array) -> bool:
        lengths = list_lengths(tokens)
        if name not in columns.per_token:
            return bool((mask_of_numbers(name, mask, lengths, is_weight=name in columns.weights) == 1).all())
        return not mask.null_count and trains_all(mask, name) and np.array_equal(list_lengths(mask), lengths)

    return all(all_in_place(input_, (name, columns.input_ids), is_trained) for input_ in inputs)
