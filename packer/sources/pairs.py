"""Tokenized preference pairs: columns of tokens and labels for the chosen and the rejected answer, read as trees."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.column_names import ROLES
from packer.errors import PackerError, SourceError
from packer.inputs.column_types import as_plain, find_columns, require_column
from packer.inputs.documents import MASKS, Batch, DocumentError, columns_of_side
from packer.inputs.format_reader import BlockRecords, Reader
from packer.inputs.json_files import check_list
from packer.inputs.list_checks import int32_lists, list_faults
from packer.token_memory import list_lengths

CHOSEN, REJECTED = SIDES = tuple(columns_of_side(role) for role in ROLES)

COLUMNS_OF_PAIRS = (*CHOSEN[:2], *REJECTED[:2])
"""Columns of tokens and labels of both sides."""


def check_fields_of_pairs(reader: Reader) -> None:
    """Raise a PackerError if a file lacks tokens or labels of a side, or they have another type."""
    fields, name = reader.fields, reader.file.name
    if fields is None:
        return
    names = fields.names if isinstance(fields, pa.Schema) else [*fields]
    for mask in (f"{role}_{mask}" for role in ROLES for mask in MASKS):
        if mask in names:
            raise PackerError(f"{name}: '{mask}' is not read: set what it masks to -100 in the labels, and remove it")
    for side in SIDES:
        require_column(names, name, side)
        has_labels = side.labels in names
        if isinstance(fields, pa.Schema):
            has_labels = find_columns(fields, name, side)
        if not has_labels:
            raise SourceError(
                f"{name}: pairs need the columns {CHOSEN.labels} and {REJECTED.labels}, -100 in the prompt, because "
                "without them both answers would train it: add them"
            )


def answers_of_pairs(records: BlockRecords) -> Batch:
    """Return both answers of each pair in turn: chosen, rejected, chosen, ...

    A DocumentError has the number of the first pair that cannot be used, or that has one empty answer.
    """
    batches = [Batch(_lists(records, side.input_ids), _lists(records, side.labels, label=True), 0) for side in SIDES]
    faults = list_faults(batches[1], REJECTED) | list_faults(batches[0], CHOSEN)
    if faults:
        raise faults[min(faults)]
    lengths = np.stack([list_lengths(batch.input_ids) for batch in batches])
    for row in np.flatnonzero((lengths == 0).sum(axis=0) == 1)[:1].tolist():
        column = SIDES[int(lengths[1, row] == 0)].input_ids
        message = f"'{column}' is empty, and the other answer is not; drop the row"
        raise DocumentError(row, message, reason="missing_value")
    order = as_arrow(np.arange(2 * len(records)).reshape(2, -1).T.reshape(-1))  # of pairs [a, b] and [c, d]: a, c, b, d
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
