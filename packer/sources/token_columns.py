"""Open a dataset of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from packer.column_names import ROW_DOCUMENT
from packer.errors import PackerError, SourceError
from packer.options import ReadOptions
from packer.sources.arrow_files import decoded_again
from packer.sources.column_types import Fields, check_types, find_columns, holds_json, loss_columns, names_of
from packer.sources.documents import Columns, DocumentError, SourceFile, reading
from packer.sources.find_source import first_fields, for_each_file
from packer.sources.format_reader import DecodedInput, Input, decoded_lists, usual_widths
from packer.sources.hugging_face import Found
from packer.sources.list_checks import apply_masks, mask_of_numbers, mask_values
from packer.sources.meanings import (
    ATTENTION,
    BOUNDS,
    EXCHANGE_STARTS,
    LABELS,
    MASKS,
    PROMPT_LENGTHS,
    SAYING,
    SHIFTED,
    refusal,
)
from packer.sources.packed_rows import are_documents, row_columns, with_documents
from packer.sources.record_lists import open_records
from packer.sources.source import Source
from packer.sources.token_tables import MappedLists, TableInMemory
from packer.stores import RemotePath
from packer.token_memory import list_lengths


def open_tokens(found: Found, options: ReadOptions) -> Source:
    """Open a tokenized dataset: find its columns, without reading the documents.

    Only a labels column named "labels" may be missing. The column "exchange_starts", with the tokens at which exchanges
    of chats begin, is read if documents may be split there.

    Records of several documents, such as preference pairs, are opened by `open_records`.
    """
    refuse_masks((*options.value_columns, *options.keep_tokens), (*MASKS, *PROMPT_LENGTHS))
    _refuse_unused(found, options)
    if options.pairs or options.share_prefixes:
        return open_records(found, options)

    # Find the columns, and masks beside them.
    fields = first_fields(found)
    names = names_of(fields)
    if {"seq_lengths", "doc_ids", "doc_starts"} <= set(names):
        raise PackerError(
            f"{found.name} holds packed rows, not documents: pack the source that they were packed from, or what "
            "`packer tokenize` wrote"
        )
    read = _with_masks(_columns_of(options, names), fields, found.name)
    rows = row_columns(found, names, read, _without(read, read.masks))
    wanted, columns = (read, _without(read, read.masks)) if rows is None else (rows.read, rows.documents)

    used = {*wanted.wanted(has_labels=True)}  # also masks that turn out to mask nothing
    for name in (name for name in loss_columns(fields, SHIFTED) if name not in used and columns.input_ids in names):
        raise PackerError(
            f"{found.name}: '{name}' says what is trained of the next token, beside columns of its tool that say where "
            "documents begin, which are missing; if it holds labels of the tokens themselves, say --labels-column "
            f"{name}, else remove it"
        )

    # Open the files, or the table.
    opened = _opened(found, wanted, skips=options.on_error == "skip")

    # Know all columns, compare those to read, and apply the masks.
    of_files = (each.reader.names if isinstance(each, DecodedInput) else each.fields for each in opened)
    unused = dict.fromkeys(name for name in chain(names, *of_files) if name not in used)
    check_types(found.name, columns.extra, [(input_.file.name, input_.declared_types) for input_ in opened])
    columns = columns._replace(widths=usual_widths(opened, columns.per_token))
    if rows is not None and not all(are_documents(each, rows) for each in opened):
        if EXCHANGE_STARTS in columns.extra:
            raise PackerError(
                f"{found.name} holds rows of several documents, and '{EXCHANGE_STARTS}': remove the latter"
            )
        inputs = tuple(with_documents(each, rows._replace(documents=columns)) for each in opened)
        columns = columns._replace(extra=(*columns.extra, ROW_DOCUMENT))
    else:
        rows, inputs = None, _masked(opened, read._replace(widths=columns.widths))
    _refuse_missing_labels(found, columns, inputs)
    return Source(
        name=found.name,
        inputs=inputs,
        columns=columns,
        packed_by=() if rows is None else tuple(rows.bounds),
        fields=tuple(unused),
        fingerprint=found.fingerprint,
        pad_id=found.pad_id,
    )


def _opened(found: Found, wanted: Columns, *, skips: bool) -> list[Input]:
    """Open the files or the table; what must be decoded, as values of JSON or records that may be left out, is."""
    opened: list[Input]
    if found.table is not None:
        opened = [_open_table(found, wanted)]
    else:
        opened = for_each_file(lambda kind, file: kind.open_lists(file, wanted), found)
    for at, each in enumerate(opened):
        if isinstance(each, MappedLists) and (skips or any(map(holds_json, each.declared_types.values()))):
            opened[at] = decoded_again(each, wanted)
    return [replace(each, skips=True) for each in opened if isinstance(each, DecodedInput)] if skips else opened


def _columns_of(options: ReadOptions, names: Sequence[str]) -> Columns:
    """Return the columns that the options name, and the starts of exchanges if they are there, or must be."""
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
    """Raise a PackerError if an option is for files of another format than all of the source."""
    endings, arrays = {path.suffix for file in found.files for path in file.paths}, {".bin", ".npy"}
    for name, value, used_by in (
        ("--document", None if options.document == "document" else options.document, {".idx"}),
        ("--eos-id", options.eos_id, arrays),
        ("--dtype", options.dtype, arrays),
    ):
        if value is not None and not endings & used_by:
            files = " or ".join(sorted(used_by))
            raise PackerError(f"{name} {value} is for {files}, and {found.name} has no such file: leave it out")


def refuse_masks(keep: Sequence[str], names: Sequence[str] = MASKS) -> None:
    """Raise a PackerError if one of the columns to keep is a mask, or another one of these names."""
    for name in keep:
        if name in names:
            raise PackerError(f"keep {name!r}: masks become labels and are not kept; leave it out")


def _refuse_missing_labels(found: Found, columns: Columns, inputs: Sequence[Input]) -> None:
    """Raise a PackerError if some files have labels and others none, or none has the labels column that was named."""
    by_labels = {input_.has_labels: input_.file.name for input_ in inputs}
    if not found.saved and True in by_labels and False in by_labels:
        raise SourceError(
            f"{by_labels[True]} has a column '{columns.labels}', {by_labels[False]} has none; "
            "give labels to all files or to none"
        )
    if columns.labels != "labels" and True not in by_labels:
        raise PackerError(f"{found.name}: no labels column '{columns.labels}'; name one that exists")


def _with_masks(columns: Columns, fields: Fields, name: str) -> Columns:
    """Add what says which tokens are trained, or padding, in the first file.

    Raises a PackerError if there are several columns of labels, or one that cannot be read in one way only.
    """
    used, is_default = (columns.input_ids, *columns.extra), columns.labels == LABELS[0]
    found = {each: has_lists for each, has_lists in loss_columns(fields).items() if each not in used}
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
        absent=tuple(each for each in (*SAYING, *BOUNDS, *SHIFTED) if each not in used),
    )


def _without(columns: Columns, masks: Sequence[str]) -> Columns:
    """Return columns without some masks."""
    every = (columns.extra, columns.per_token, columns.masks)
    extra, per_token, kept = (tuple(name for name in names if name not in masks) for names in every)
    return columns._replace(extra=extra, per_token=per_token, masks=kept)


def _masked(inputs: Sequence[Input], read: Columns) -> tuple[Input, ...]:
    """Return inputs whose masks are applied while they are read; mapped ones stay mapped if no mask changes any."""
    mapped = [each for each in inputs if isinstance(each, MappedLists)]
    if len(mapped) == len(inputs):
        read = _without(read, [name for name in read.masks if all(_masks_nothing(each, name) for each in mapped)])
    masks = read.masks

    def prepared(each: Input) -> Input:
        if isinstance(each, MappedLists):
            each = replace(each, columns=read)
            if masks:
                each = decoded_again(each, read)
        elif read.widths:
            each = replace(decoded_lists(each.reader, read, has_labels=each.has_labels), skips=each.skips)
        if masks:
            assert isinstance(each, DecodedInput), each
            has_labels = each.has_labels if masks == (ATTENTION,) or each.has_labels is None else True
            step = partial(apply_masks, columns=read, masks=masks, has_labels=bool(has_labels))
            each = replace(each, steps=(*each.steps, step), has_labels=has_labels)
        return each

    return tuple(map(prepared, inputs))


def _masks_nothing(input_: MappedLists, name: str) -> bool:
    """Whether every token of a mapped input is trained by a mask, so that it need not be applied.

    A mask in object storage is not looked at, which would take each rank as long as all together need to decode it.
    """
    if isinstance(input_.file.path, RemotePath):
        return False
    with reading(input_.file.name):
        try:
            return all(
                not mask.null_count
                and mask_values(mask, name).all()
                and np.array_equal(list_lengths(mask), list_lengths(tokens))
                if name in input_.columns.per_token
                else mask_of_numbers(name, mask, list_lengths(tokens)).all()
                for mask, tokens in input_.chunks(name, input_.columns.input_ids)
            )
        except (ValueError, DocumentError):  # raised with its place when the lists are checked
            return False


def _open_table(found: Found, columns: Columns) -> MappedLists:
    name, table = found.name, found.table
    assert table is not None
    schema = table.table.schema
    has_labels = find_columns(schema, name, columns)
    wanted = columns.wanted(has_labels=has_labels)
    return MappedLists(
        file=SourceFile(name=name, bytes=table.table.select(list(wanted)).nbytes, path=None),
        stores=(TableInMemory.of(table, list(dict.fromkeys(wanted)), wanted[: 1 + has_labels]),),
        columns=columns,
        labels=has_labels,
    )
