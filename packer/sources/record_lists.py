"""Records of several tokenized documents, such as samples of one prompt: tokens and labels are lists of lists."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.column_names import ANSWER, TREE
from packer.errors import PackerError
from packer.gather import list_lengths
from packer.inputs.column_types import as_plain, check_types, is_list
from packer.inputs.documents import COLUMNS, MASKS, Batch, Columns, DocumentError, null_message
from packer.inputs.format_reader import BlockRecords, DecodedInput, Reader, values_of_column
from packer.inputs.hugging_face import Found
from packer.inputs.list_checks import Faults, check_lists, rejection
from packer.options import PackOptions
from packer.sources.find_source import readers_of
from packer.sources.shared_prefixes import numbers_within, share_prefixes
from packer.sources.source import Source

_NESTED = pa.list_(pa.list_(pa.int64()))


def open_records(found: Found, options: PackOptions) -> Source:
    """Open a dataset of records of several tokenized documents, whose shared beginnings are stored once.

    Raises:
        PackerError: a column is missing, or does not hold lists of lists of integers.
    """
    columns = Columns(options.input_column, options.labels_column, options.value_columns)
    wanted, skips = columns.wanted(has_labels=True), options.on_error == "skip"
    readers = readers_of(found)
    for reader in readers:
        if reader.fault is not None and not skips:
            raise reader.fault
        _check_fields(reader, columns)
    share = partial(share_prefixes, max_len=options.max_len, stored=True, pairs=False)
    inputs = tuple(
        DecodedInput(
            reader=reader,
            needed=tuple(dict.fromkeys(wanted)),
            kept=columns.extra,
            start=partial(RecordDecoder, columns, skips),
            is_slow=True,
            has_labels=True,
            steps=(share,),
            documents_per_record=None,
        )
        for reader in readers
    )
    check_types(found.name, columns.extra, [(input_.file.name, input_.declared_types) for input_ in inputs])
    return Source(
        name=found.name,
        inputs=inputs,
        columns=COLUMNS._replace(extra=(*columns.extra, ANSWER, TREE)),
        pad_id=found.pad_id,
        skips=skips,
        record_starts=(0,),
        tree_len=options.max_len,
    )


def _check_fields(reader: Reader, columns: Columns) -> None:
    """Refuse a file whose tokens or labels are missing, or are no lists of lists."""
    fields, name = reader.fields, reader.file.name
    if fields is None:
        return
    names = fields.names if isinstance(fields, pa.Schema) else [*fields]
    for column in columns[:2]:
        if column not in names:
            raise PackerError(
                f"{name}: no column '{column}', only {', '.join(names)}: with --share-prefixes, documents need tokens "
                "and labels"
            )
        kind = fields.field(column).type if isinstance(fields, pa.Schema) else None
        is_nested = is_list(kind) and is_list(kind.value_type) if kind is not None else _is_nested(fields[column])
        if not is_nested:
            raise PackerError(
                f"{name}: --share-prefixes needs records of several documents, and '{column}' holds "
                f"{'one list' if kind is None else kind} per record: give lists of lists, or set --pairs; chats are "
                "tokenized with --train-on each-answer"
            )
    mask = next((mask for mask in MASKS if mask in names), None)
    if mask is not None:
        raise PackerError(f"{name}: '{mask}' is not read for lists of documents: apply it to '{columns.labels}'")
    reader.require(columns.extra)


def _is_nested(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, list) for one in value)


@dataclass(frozen=True, slots=True)
class RecordDecoder:
    """Decodes the blocks of a reader to documents; records that cannot be used become one empty document each."""

    columns: Columns
    skips: bool
    reader: Reader

    def __call__(self, block: tuple[object, int]) -> Batch:
        """Decode a block."""
        content, done = block
        records, faults = self.reader.records(content, self.columns.wanted(has_labels=True))
        try:
            if faults:
                raise faults[min(faults)]
            batch = self._documents(records, *(_nested(records, column) for column in self.columns[:2]))
        except DocumentError as fault:
            if not self.skips or fault.reason is None:
                fault.of_record = True
                raise
            batch = self._usable(records, faults)
        return batch._replace(done=done, lines=self.reader.lines_of(content) if self.skips else None)

    def _documents(self, records: BlockRecords, tokens: pa.Array, labels: pa.Array) -> Batch:
        """Return the documents of records; a DocumentError with the number of the first record that has a fault."""
        counts = list_lengths(tokens)
        wrong = np.flatnonzero(counts != list_lengths(labels))
        if len(wrong):
            row = int(wrong[0])
            raise DocumentError(
                row,
                f"'{self.columns.labels}' has {len(labels[row])} lists for {len(tokens[row])} in "
                f"'{self.columns.input_ids}'; both need the same number",
                reason="invalid_labels",
            )
        rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
        places = np.repeat(np.cumsum(counts) - counts, np.maximum(counts, 1)) + np.arange(len(rows))
        places -= np.searchsorted(rows, rows)
        places[np.repeat(counts == 0, np.maximum(counts, 1))] = int(counts.sum())  # an empty list, added below
        empty = pa.array([[]], _NESTED.value_type)
        lists = [pa.concat_arrays([each.flatten(), empty]).take(as_arrow(places)) for each in (tokens, labels)]
        extra = {name: [values_of_column(records, name).take(as_arrow(rows))] for name in self.columns.extra}
        try:
            batch = check_lists(Batch([lists[0]], [lists[1]], 0, extra), columns=self.columns, skips=False)
        except DocumentError as fault:
            raise fault.at(int(rows[fault.row])) from None
        return batch._replace(records=rows, extra={**extra, ANSWER: [numbers_within(rows)]})

    def _usable(self, records: BlockRecords, faults: Faults) -> Batch:
        """Decode records one by one, with an empty document for each that cannot be used; `faults` gets the errors."""
        lists = []
        for row in range(len(records)):
            one = records.slice(row, 1) if isinstance(records, pa.RecordBatch) else records[row : row + 1]
            try:
                if row not in faults:
                    of_record = [_nested(one, column) for column in self.columns[:2]]
                    self._documents(one, *of_record)
            except DocumentError as fault:
                if fault.reason is None:
                    raise fault.at(row) from None
                faults[row] = fault
            lists.append([pa.array([[]], _NESTED)] * 2 if row in faults else of_record)
        if not isinstance(records, pa.RecordBatch):  # values of rejected records may have any type
            records = [{} if row in faults else record for row, record in enumerate(records)]
        batch = self._documents(records, *map(pa.concat_arrays, zip(*lists, strict=True)))
        assert batch.records is not None
        found = [(at, row) for at, row in enumerate(batch.records.tolist()) if row in faults]
        return batch._replace(rejected=tuple(rejection(at, faults[row]) for at, row in found))


def _nested(records: BlockRecords, column: str) -> pa.Array:
    """Return a column as lists of lists of int64; a DocumentError with the number of the first record that is none."""
    if isinstance(records, pa.RecordBatch):
        values = as_plain(records.column(column))
    else:
        try:
            values = pa.array([record.get(column) for record in records], _NESTED)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for row, record in enumerate(records):
                _check_record(record.get(column), row, column)
            raise
    for row in np.flatnonzero(np.asarray(values.is_null()))[:1].tolist():
        raise DocumentError(row, null_message(column), reason="missing_value")
    return values.cast(_NESTED)


def _check_record(value: object, row: int, column: str) -> None:
    try:
        pa.array([value], _NESTED)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        message = f"'{column}' holds no lists of lists of integers ({error}); fix the source"
        raise DocumentError(row, message, reason="wrong_type") from None
