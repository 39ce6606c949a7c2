"""Open sources of text. Text is tokenized block by block, or record by record in a block with unusable records."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import pyarrow as pa

from packer.errors import OtherSourceError, PackerError, SourceError
from packer.options import ReadOptions
from packer.sources.column_types import is_json, python_values, refuse_twins
from packer.sources.documents import COLUMNS, DocumentError, Found
from packer.sources.find_source import SourceLike, find_source
from packer.sources.format_reader import Reader
from packer.sources.formats import open_readers
from packer.sources.inputs import DecodedInput
from packer.sources.list_checks import value_fault
from packer.sources.meanings import EXCHANGE_STARTS, WEIGHTS_OF_RECORDS, refusal
from packer.sources.open_source import open_tokenized
from packer.sources.record_lists import source_of_records, weighted_records
from packer.sources.source import Source
from packer.sources.token_columns import refuse_masks
from packer.text.text_columns import (
    JSON,
    FirstRecords,
    Records,
    as_chats,
    column_values,
    holds_messages,
    joined,
    recognize,
    recognize_pairs,
)


def open_source(source: SourceLike, options: ReadOptions) -> Source:
    """Open a source without reading its documents: as text if a tokenizer is set, otherwise as tokens or lengths.

    Raises a PackerError if the source is missing, unreadable or lacks a column.
    """
    if options.tokenizer is None:
        opened = open_tokenized(source, options)
    else:
        found = find_source(source, options.split)
        opened = open_text(found, open_readers(found), options)
    if options.vocab_size is None:
        return opened
    # Ids of lists that are not decoded are checked when they are copied to rows.
    decode = None if opened.encoder is None else opened.encoder.decode
    fault_in = partial(value_fault, columns=opened.columns, largest=options.largest_id, decode=decode)
    inputs = (replace(each, fault_in=fault_in) if isinstance(each, DecodedInput) else each for each in opened.inputs)
    return replace(opened, inputs=tuple(inputs))


def open_text(found: Found, readers: Sequence[Reader], options: ReadOptions) -> Source:
    """Open a dataset of text: find its columns, without reading the documents.

    The options name the text column, or prompt and completion joined by a comma. By default, the text is in the columns
    that exist: `text`; `prompt` and `completion`; `instruction`, `input` and `output`; `messages`; `conversations`. A
    preference pair becomes a tree of two documents. It is read from `chosen`, `rejected` and, if it exists, `prompt`,
    or from the columns that the options name.

    Kept columns have a value for each document. The column "exchange_starts" (indices of the tokens that begin
    exchanges of a chat) is added, unless the options rule out splitting documents there.
    """
    keep, pairs = options.value_columns, options.pairs
    refuse_masks(options)
    if EXCHANGE_STARTS in keep:
        raise PackerError(f"keep {EXCHANGE_STARTS!r}: tokenizing writes a column of that name; rename it in the source")
    readers = found.each(lambda reader: reader.for_records(), readers)
    records = _common_records(readers, found.name, options.text_column, pairs=pairs)
    if options.chat_template is not None and not records.conversational:
        records = as_chats(records, found.name)
    if options.needs_exchanges and not records.conversational:
        raise PackerError(f"--split-at is exchanges, and {found.name} holds texts, not chats: leave it out")
    splits = options.splits_at_exchanges
    # A prompt with its completion counts as one exchange, so that such documents can be packed with chats.
    exchanges = records.conversational if splits else splits is None and records.kind != "text"
    from packer.text.text_encoder import Encoder  # imports tokenizers

    size = sum(reader.file.bytes for reader in readers)
    encoder = Encoder(options, records, exchanges=exchanges and not pairs, size=size)
    if options.share_prefixes and encoder.documents_per_record == 1:
        raise PackerError(
            f"--share-prefixes needs records of several documents, and a record of {found.name} is one: set --train-on "
            "each-answer if these are chats, or --pairs"
        )
    weights = _weights_of(readers, found.name, options)
    for reader in readers:
        reader.require((*keep, *weights))
    empty = encoder.empty_documents(encoder.documents_per_record or 1)
    absent = [each for each in WEIGHTS_OF_RECORDS if each not in (*keep, *weights)]
    return source_of_records(
        found,
        readers,
        options,
        columns=(*encoder.records.needed, *weights),
        decode=partial(weighted_records, encoder.encode, weights, absent),
        empty=empty._replace(labels=empty.input_ids) if weights else empty,
        encoder=encoder,
    )


def _weights_of(readers: Sequence[Reader], name: str, options: ReadOptions) -> list[str]:
    """Return the columns with the weight of a record in the loss: known ones, and that of --weight.

    Raises a PackerError if a file lacks one of them, or if weights cannot be stored.
    """
    named = [reader for reader in readers if reader.names]
    known = [each for each in WEIGHTS_OF_RECORDS if any(each in reader.names for reader in named)]
    known = [each for each in known if each not in options.value_columns]
    if options.pairs and known:
        raise PackerError(
            f"{name}: '{known[0]}' is the weight of a record, and --pairs stores none: remove it, or rename it to "
            "keep it unused"
        )
    weights = [*dict.fromkeys((*known, *((options.weight,) if options.weight else ())))]
    for reader, each in ((reader, each) for reader in named for each in weights if each not in reader.names):
        raise SourceError(
            f"{reader.file.name}: no column '{each}' with weights of records: give it to all files or none"
        )
    return weights


def _common_records(readers: list[Reader], name: str, text_column: str | None, *, pairs: bool) -> Records:
    """Return the columns that hold the text or preference pairs. They must be the same in all files."""
    known: dict[str, Records] = {}
    for reader in readers:
        fields = reader.fields
        if fields is not None:
            fields = _with_json_types(reader, fields) if isinstance(fields, pa.Schema) else fields
            known[reader.file.name] = _records_of(reader, fields, text_column, pairs=pairs)
    if not known:
        raise SourceError(f"{name}: empty dataset: 0 documents in {len(readers)} file(s)")
    (first, records), *others = known.items()
    for file, other in others:
        if replace(other, media_columns=records.media_columns) != records:
            raise SourceError(
                f"{first} holds {_shown(records)}, {file} {_shown(other)}: give files of one kind, or name the column "
                "that all of them have with --text-column"
            )
    _refuse_json(next(reader for reader in readers if reader.file.name == first), records)
    media = tuple(dict.fromkeys(chain.from_iterable(one.media_columns for one in known.values())))
    return replace(records, media_columns=media)


def _with_json_types(reader: Reader, schema: pa.Schema) -> pa.Schema:
    """Replace JSON types in the schema by the type of a column's first values, if these are strings or lists."""
    columns = [field.name for field in schema if is_json(field.type)]
    with contextlib.suppress(SourceError, DocumentError, KeyError):  # raised again when all records are read
        for block, _ in islice(reader.blocks(columns), 1 if columns else 0):
            for name in columns:
                held = {*map(type, python_values(block.column(name), name))}
                kind = pa.string() if str in held else pa.list_(pa.null()) if list in held else pa.null()
                schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    return schema


def _refuse_json(reader: Reader, records: Records) -> None:
    """Raise an error if all first records hold messages as JSON strings, which would be packed as plain text."""
    if records.conversational:
        return
    names = (str(records.prompt_column), *records.columns) if records.has_prompts else records.columns
    first = _first_records(reader, names)
    values = {name: [record[name] for record in first if record[name] is not None] for name in names}
    held = [name for name in names if values[name] and all(map(holds_messages, values[name]))]
    if held:
        option = ",".join(f"{name}{JSON}" if name in held else name for name in names)
        raise PackerError(
            f"{reader.file.name}: '{held[0]}' holds messages as JSON in strings, which would be packed as text, with "
            f"brackets and quotes; decode them by --text-column {option}"
        )


def _first_records(reader: Reader, columns: Sequence[str] | None = None) -> FirstRecords:
    """Return the records of the first block, by default with all columns; empty if they cannot be read."""
    names = [name for name in reader.names if reader.names.count(name) == 1] if columns is None else columns
    with contextlib.suppress(SourceError, DocumentError):  # raised again when all records are read
        for block, _ in islice(reader.blocks(names), 1):
            found, _ = reader.records(block, names)
            values = zip(*(column_values(found, name) for name in names), strict=True)
            return [dict(zip(names, each, strict=True)) for each in values]
    return []


def _records_of(
    reader: Reader, fields: pa.Schema | Mapping[str, object], text_column: str | None, *, pairs: bool
) -> Records:
    """Return the columns that hold the text. `fields` is the schema of the file, or a record."""
    file = reader.file.name
    if pairs:
        found = recognize_pairs(fields, file, text_column)
    else:
        if text_column is None and COLUMNS.input_ids in reader.names:
            raise OtherSourceError(
                f"{file}: has the column '{COLUMNS.input_ids}', so it is already tokenized",
                "pack it without --tokenizer, or name the column of text with --text-column",
            )
        if text_column is None and (refused := refusal("record", reader.names)) is not None:
            raise PackerError(f"{file}: {refused}")
        found = recognize(fields, file, text_column, partial(_first_records, reader))
    if isinstance(fields, pa.Schema):
        for column in found.needed:
            refuse_twins(fields, column, file)
    return found


def _shown(records: Records) -> str:
    named = (str(records.prompt_column), *records.columns) if records.has_prompts else records.columns
    return f"{joined(named)} as {'lists of messages' if records.conversational else 'strings'}"
