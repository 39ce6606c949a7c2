"""Records with several tokenized documents: preference pairs, or samples for one prompt as lists of lists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow, as_numpy
from packer.column_names import ANSWER, CONTENT_HASH, LOSS_WEIGHTS, NO_LOSS, ROLES, TREE
from packer.errors import PackerError, SourceError
from packer.options import ReadOptions
from packer.sources.column_types import Fields, as_plain, find_columns, is_list, loss_columns, require_column
from packer.sources.content_hashes import with_record_hashes
from packer.sources.documents import (
    COLUMNS,
    LONGEST,
    Batch,
    Columns,
    DocumentError,
    Found,
    columns_of_side,
    null_message,
)
from packer.sources.format_reader import Reader
from packer.sources.inputs import BatchStep, DecodedInput, check_types
from packer.sources.list_checks import (
    BlockRecords,
    as_lists,
    check_list,
    check_lists,
    first_fault,
    int32_lists,
    lists_of,
    mask_of_numbers,
    values_of,
    values_of_column,
    with_weights,
)
from packer.sources.meanings import SAYING, SHIFTED
from packer.sources.source import Source, TextEncoder
from packer.token_memory.prefix_trees import build_trees
from packer.token_memory.token_column import list_lengths

_NESTED = pa.list_(pa.list_(pa.int64()))


def _empty(count: int = 1) -> pa.Array:
    """Return an array of empty lists. `pa.array` would import pandas, which takes half a second."""
    return as_lists(as_arrow(np.zeros(0, np.int64)), np.zeros(count, np.int64), _NESTED.value_type)


def open_records(found: Found, readers: Sequence[Reader], options: ReadOptions) -> Source:
    """Open a dataset of records with several tokenized documents. Shared beginnings are stored once.

    A record holds lists of lists, or a preference pair, which becomes a tree of two documents. Raises a PackerError if
    a column is missing or has another type.
    """
    columns = Columns(options.input_column, options.labels_column, options.value_columns)
    readers = found.each(lambda reader: reader.for_records(), readers)
    names = (*SAYING, *SHIFTED, *(f"{role}_{name}" for role in ROLES for name in SAYING if options.pairs))
    unread = [name for name in names if name not in (*columns.wanted(has_labels=True), *COLUMNS_OF_PAIRS)]
    refused = partial(loss_columns, names=unread, depth=1 if options.pairs else 2)
    for reader in readers:
        for name in refused(reader.fields or {}):
            raise PackerError(f"{reader.file.name}: {_UNREAD.format(name)}")
        if options.pairs:
            _check_fields_of_pairs(reader)
        else:
            _check_fields(reader, columns)
        reader.require(columns.extra)
    nothing = int32_lists(_empty(2)) if options.pairs else _empty()
    return source_of_records(
        found,
        readers,
        options,
        columns=COLUMNS_OF_PAIRS if options.pairs else columns[:2],
        decode=partial(_decode, refused, _answers_of_pairs if options.pairs else partial(_documents, columns)),
        empty=Batch(nothing, nothing, 0),
    )


_UNREAD = "'{}' is not read: set what it masks to -100 in the labels, and remove it"


def _decode(
    refused: Callable[[Fields], Collection[str]], decode: Callable[[BlockRecords], Batch], records: BlockRecords
) -> Batch:
    """Decode records. Raises a DocumentError for the first line with an unread column that controls training."""
    for row, record in enumerate(records if not isinstance(records, pa.RecordBatch) else ()):
        for name in refused(record):
            raise DocumentError(row, _UNREAD.format(name), reason="invalid_labels")
    return decode(records)


def _check_fields(reader: Reader, columns: Columns) -> None:
    """Refuse a file whose tokens or labels are missing, or are not lists of lists."""
    fields, name = reader.fields, reader.file.name
    if fields is None:
        return
    names = reader.names
    for column in columns[:2]:
        if column not in names:
            raise PackerError(
                f"{name}: no column '{column}', only {', '.join(names)}: with --share-prefixes, documents need tokens "
                "and labels"
            )
        kind = fields.field(column).type if isinstance(fields, pa.Schema) else None
        if kind is not None:
            is_nested = is_list(kind) and is_list(kind.value_type)
        else:
            value = fields[column]
            is_nested = isinstance(value, list) and all(isinstance(one, list) for one in value)
        if not is_nested:
            raise PackerError(
                f"{name}: --share-prefixes needs records of several documents, and '{column}' holds "
                f"{'one list' if kind is None else kind} per record: give lists of lists, or set --pairs; chats are "
                "tokenized with --train-on each-answer"
            )


def _documents(columns: Columns, records: BlockRecords) -> Batch:
    """Return the documents of records. Raises a DocumentError with the number of the first faulty record."""
    tokens, labels = (_nested(records, column) for column in columns[:2])
    counts = list_lengths(tokens)
    wrong = np.flatnonzero(counts != list_lengths(labels))
    if len(wrong):
        row = int(wrong[0])
        raise DocumentError(
            row,
            f"'{columns.labels}' has {len(labels[row])} lists for {len(tokens[row])} in '{columns.input_ids}'; both "
            "need the same number",
            reason="invalid_labels",
        )
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
    places = np.repeat(np.cumsum(counts) - counts, np.maximum(counts, 1)) + np.arange(len(rows))
    places -= np.searchsorted(rows, rows)
    places[np.repeat(counts == 0, np.maximum(counts, 1))] = int(counts.sum())  # index of an empty list, added below
    tokens, labels = (pa.concat_arrays([each.flatten(), _empty()]).take(as_arrow(places)) for each in (tokens, labels))
    try:
        batch = check_lists(Batch(tokens, labels, 0), columns)
    except DocumentError as fault:
        raise fault.at(int(rows[fault.row])) from None
    return batch._replace(records=rows)


def _nested(records: BlockRecords, column: str) -> pa.Array:
    """Return a column as lists of lists of int64. Raises a DocumentError with the number of the first faulty record."""
    if isinstance(records, pa.RecordBatch):
        values = as_plain(records.column(column))
    else:
        try:
            values = pa.array([record.get(column) for record in records], _NESTED)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for row, record in enumerate(records):
                try:
                    pa.array([record.get(column)], _NESTED)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    message = f"'{column}' holds no lists of lists of integers ({error}); fix the source"
                    raise DocumentError(row, message, reason="wrong_type") from None
            raise
    for row in np.flatnonzero(np.asarray(values.is_null()))[:1].tolist():
        raise DocumentError(row, null_message(column), reason="missing_value")
    return values.cast(_NESTED)


CHOSEN, REJECTED = SIDES = tuple(columns_of_side(role) for role in ROLES)

COLUMNS_OF_PAIRS = (*CHOSEN[:2], *REJECTED[:2])
"""Token and label columns of both sides."""


def _check_fields_of_pairs(reader: Reader) -> None:
    """Raise a PackerError if a file lacks tokens or labels of a side, or if these have another type."""
    fields, name = reader.fields, reader.file.name
    if fields is None:
        return
    names = reader.names
    for side in SIDES:
        require_column(fields, name, side)
        has_labels = side.labels in names
        if isinstance(fields, pa.Schema):
            has_labels = find_columns(fields, name, side)
        if not has_labels:
            raise SourceError(
                f"{name}: pairs need the columns {CHOSEN.labels} and {REJECTED.labels}, -100 in the prompt, because "
                "without them both answers would train it: add them"
            )


def _answers_of_pairs(records: BlockRecords) -> Batch:
    """Return the answers of all pairs, alternating: chosen, rejected, chosen, ...

    Raises a DocumentError with the number of the first pair that cannot be used, or has one empty answer.
    """
    batches = [Batch(_lists(records, side.input_ids), _lists(records, side.labels, label=True), 0) for side in SIDES]
    faults = [first_fault(batch, side) for batch, side in zip(batches, SIDES, strict=True)]
    for fault in sorted((fault for fault in faults if fault is not None), key=attrgetter("row"))[:1]:
        raise fault
    lengths = np.stack([list_lengths(batch.input_ids) for batch in batches])
    for row in np.flatnonzero((lengths == 0).sum(axis=0) == 1)[:1].tolist():
        column = SIDES[int(lengths[1, row] == 0)].input_ids
        message = f"'{column}' is empty, and the other answer is not; drop the row"
        raise DocumentError(row, message, reason="missing_value")
    order = as_arrow(np.arange(2 * len(records)).reshape(2, -1).T.reshape(-1))  # of [a, b] and [c, d]: a, c, b, d
    tokens, labels = (
        pa.concat_arrays(list(map(int32_lists, sides))).take(order)
        for sides in zip(*(batch[:2] for batch in batches), strict=True)
    )
    return Batch(tokens, labels, 0, records=np.arange(2 * len(records)) // 2)


def _lists(records: BlockRecords, column: str, *, label: bool = False) -> pa.Array:
    """Return a column as lists of integers."""
    if isinstance(records, pa.RecordBatch):
        return as_plain(records.column(column))
    for row, record in enumerate(records):
        try:
            check_list(column, record.get(column), label=label)
        except DocumentError as fault:
            raise fault.at(row) from None
    return pa.array([record.get(column) for record in records], pa.list_(pa.int32()))


def source_of_records(
    found: Found,
    readers: Sequence[Reader],
    options: ReadOptions,
    *,
    columns: Sequence[str],
    decode: Callable[[BlockRecords], Batch],
    empty: Batch,
    encoder: TextEncoder | None = None,
) -> Source:
    """Return a source whose records are decoded each time they are read.

    Args:
        found: files of the source.
        readers: readers of the files.
        options: reading options; kept columns have one value per document.
        columns: columns that `decode` reads.
        decode: see `DecodedInput.decode`.
        empty: empty documents that take the place of an unusable record.
        encoder: encoder of texts; without it, a record makes several documents with labels.
    """
    kept, steps = options.value_columns, list[BatchStep]()
    if encoder is None or (encoder.has_labels and encoder.documents_per_record != 1):
        most = LONGEST if options.pairs else options.tree_len  # a pair is always one tree
        stored, numbered = options.has_trees, options.numbers_records
        steps.append(partial(share_prefixes, max_len=most, stored=stored, numbered=numbered))
    if options.hashes_records:
        steps.append(partial(with_record_hashes, options=options))
    inputs = tuple(
        DecodedInput(
            reader=reader,
            needed=tuple(dict.fromkeys((*columns, *kept))),
            extra=kept,
            decode=decode,
            empty=empty,
            is_slow=True,
            has_labels=empty.labels is not None,
            steps=tuple(steps),
            numbers_documents=ANSWER if options.numbers_records else "",
            skips=options.on_error == "skip",
        )
        for reader in readers
    )
    check_types(found.name, kept, inputs, options.number_columns)
    made = {ANSWER: options.numbers_records, TREE: options.has_trees, CONTENT_HASH: options.hashes_records}
    extra = (*kept, *empty.extra, *(name for name, is_made in made.items() if is_made))
    return Source(
        name=found.name,
        inputs=inputs,
        columns=COLUMNS._replace(extra=extra),
        encoder=encoder,
        fields=tuple(dict.fromkeys(chain.from_iterable(reader.names for reader in readers))),
        fingerprint=found.fingerprint,
        pad_id=found.pad_id if encoder is None else encoder.pad_id,
        skips=options.on_error == "skip",
    )


def weighted_records(
    decode: Callable[[BlockRecords], Batch], names: Sequence[str], absent: Sequence[str], records: BlockRecords
) -> Batch:
    """Decode records, and weight the tokens of each by the product of its weights.

    Raises a DocumentError for a value that is no weight, or in a column that the first record does not have.
    """
    found = () if isinstance(records, pa.RecordBatch) else set[str]().union(*records).intersection(absent)
    for row, record in enumerate(records if found else ()):
        for name in (name for name in absent if record.get(name) is not None):
            message = f"has '{name}', and the first record has none; give it to all records or none"
            raise DocumentError(row, message, reason="invalid_labels")
    batch, ones = decode(records), np.ones(len(records), np.int64)
    if not names:
        return batch
    assert batch.records is not None
    weights = [mask_of_numbers(name, values_of_column(records, name), ones, is_weight=True) for name in names]
    with np.errstate(over="ignore"):  # refused below
        of_documents = np.prod(weights, axis=0, dtype=np.float32)[batch.records]
    return with_weights(batch, of_documents.repeat(list_lengths(batch.input_ids)))


REPEATED, SAVED = "repeated", "saved"
"""Keys of `Batch.counts`: number of tokens that repeat the beginning of another document of the record, and number of
tokens that trees save by storing beginnings once."""


def share_prefixes(batch: Batch, *, max_len: int, stored: bool, numbered: bool = True) -> Batch:
    """Join the documents of each record in a batch with labels to trees.

    Trees of several documents have at most `max_len` tokens, so a record may make several trees. With `numbered`, the
    column `answer` numbers the trees. Without `stored`, documents stay unchanged, and only the tokens that trees would
    save are counted.
    """
    assert batch.labels is not None, "trees need labels"
    lists, labels = int32_lists(batch.input_ids), int32_lists(batch.labels)
    records = np.arange(len(lists)) if batch.records is None else batch.records
    bounds = as_numpy(lists.offsets).astype(np.int64)
    of_tokens = as_numpy(labels.values)
    trees = build_trees(
        as_numpy(lists.values),
        np.where(of_tokens == NO_LOSS, NO_LOSS, np.arange(len(of_tokens))).astype(np.int32),  # place of each label
        bounds,
        np.searchsorted(records, np.arange(batch.record_count + 1)),
        max_len,
    )
    counts = {**batch.counts, REPEATED: trees.repeated, SAVED: int(bounds[-1]) - len(trees.input_ids)}
    if not stored:
        return batch._replace(counts=counts)
    of_documents = {name: values for name, values in batch.extra.items() if name != LOSS_WEIGHTS}
    extra = {name: values.take(as_arrow(trees.documents)) for name, values in of_documents.items()}
    # Trees have three numbers per node. An ordinary document has none: its only node is trained.
    nodes = np.diff(trees.node_ends, prepend=0)
    last_answers = np.append(trees.nodes[:, 2], 0)[trees.node_ends - 1]
    firsts = trees.documents - np.searchsorted(records, records[trees.documents])
    is_tree = (nodes > 1) | ((nodes == 1) & (last_answers != firsts))
    kept = trees.nodes[np.repeat(is_tree, nodes)].reshape(-1)
    extra[TREE] = lists_of(kept, np.where(is_tree, trees.nodes.shape[1] * nodes, 0))
    if numbered:
        extra[ANSWER] = as_arrow(firsts.astype(np.int32))
    tree_of = {int(records[document]): tree for tree, document in reversed([*enumerate(trees.documents.tolist())])}
    lengths = np.diff(trees.ends, prepend=0)
    rejected = {tree_of[int(records[one.row])]: one for one in batch.rejected}
    trained, places = trees.labels != NO_LOSS, np.maximum(trees.labels, 0)
    made = batch._replace(
        input_ids=lists_of(trees.input_ids, lengths),
        labels=lists_of(np.where(trained, of_tokens[places], np.int32(NO_LOSS)), lengths),
        extra=extra,
        counts=counts,
        records=records[trees.documents],
        rejected=tuple(one.at(tree) for tree, one in rejected.items()),
    )
    if LOSS_WEIGHTS not in batch.extra:
        return made
    return with_weights(made, np.where(trained, as_numpy(values_of(batch.extra[LOSS_WEIGHTS]))[places], np.float32(0)))
