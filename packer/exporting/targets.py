"""Make the columns that each trainer reads from disk: one function per target, and one dict of all targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, numpy_dtype
from packer.errors import PackerError
from packer.labels import NO_LOSS
from packer.loader.batching.batch_formats import Format, make_batch
from packer.loader.batching.batch_options import BatchOptions
from packer.loader.open_shards import Row, rows_of
from packer.loader.row_segments import shift_left

Columns = Mapping[str, Sequence[NDArray[Any]]]  # one array per row, by column name


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Format of the files that a trainer reads."""

    columns: Mapping[str, pa.DataType]
    """Columns by name, each a list of values of this type. If empty, the shards' columns are written as they are."""

    values: Callable[[Sequence[Row]], Columns]
    """Function that makes the columns from rows."""

    ending: str = ".parquet"
    """Ending of the file names."""

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the Arrow schema of the files.

        Args:
            rows: schema of the shards.

        Raises:
            PackerError: a column of the shards does not hold lists, or a name occurs twice.
        """
        types = self.columns or {field.name: _values_type(field) for field in rows}
        if not self.columns and len(types) < len(rows):
            raise PackerError(f"of the columns {', '.join(rows.names)}, some have equal names: pack again")
        return pa.schema([pa.field(name, pa.list_(values)) for name, values in types.items()])

    def convert(self, batch: pa.RecordBatch) -> pa.Table:
        """Make the trainer's columns from a record batch of rows.

        Raises:
            PackerError: the rows have values that the trainer's columns cannot hold.
        """
        schema = self.schema(batch.schema)
        if not self.columns:
            return pa.Table.from_arrays([_as_lists(column) for column in batch.columns], schema=schema)
        columns = self.values(rows_of(batch))
        lists = [_lists(columns[name], values_type) for name, values_type in self.columns.items()]
        return pa.Table.from_arrays(lists, schema=schema)


def _batch(rows: Sequence[Row], format: Format) -> Any:
    return make_batch(rows, format=format, options=BatchOptions())


def megatron_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of packed sequences in Megatron-Bridge and NeMo, without padding.

    These trainers take labels from the tokens, and leave out the last token of every sequence, which has nothing to
    predict. `loss_mask` is shifted one place to the left: it says whether the next token is trained. With aligned
    extents, the last token of each is repeated, so that the remaining length is still a multiple of the alignment.

    Raises:
        PackerError: a label differs from its token.
    """
    columns: dict[str, list[NDArray[Any]]] = {"input_ids": [], "loss_mask": [], "seq_start_id": []}
    for row in rows:
        batch = _batch([row], "hf")
        tokens, labels, starts = batch["input_ids"][0], batch["labels"][0], batch["cu_seq_lens_q"][:-1]
        trained = labels != NO_LOSS
        other = np.flatnonzero(trained & (labels != tokens))
        if len(other):
            place = int(other[0])
            document = int(row["doc_ids"][np.searchsorted(starts, place, side="right") - 1])
            raise PackerError(
                f"document {document} has the label {labels[place]} at the token {tokens[place]}: Megatron-Bridge "
                "takes labels from the tokens, so a label must be its token or -100; choose another --to"
            )
        mask = shift_left(trained, 0)
        if "seq_tokens" in row:
            ends = batch["cu_seq_lens_q"][1:]
            tokens, mask = np.insert(tokens, ends, tokens[ends - 1]), np.insert(mask, ends, False)
            starts = starts + np.arange(len(starts), dtype=starts.dtype)
        columns["input_ids"].append(tokens)
        columns["loss_mask"].append(mask)
        columns["seq_start_id"].append(starts)
    return columns


def maxtext_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of the batch format `segment_ids`, row by row."""
    columns: Columns = _batch(rows, "segment_ids")
    return columns


def torchtitan_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of the batch format `torchtitan`, row by row."""
    inputs, labels = _batch(rows, "torchtitan")
    return {**inputs, "labels": labels}


def torchtune_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of the examples in the batch format `torchtune`."""
    examples = _batch(rows, "torchtune")
    return {name: [example[name] for example in examples] for name in examples[0]}


def _no_columns(rows: Sequence[Row]) -> Columns:
    return {}


_PARTS = ("", "_position", "_segmentation")

TARGETS: dict[str, Target] = {
    "megatron": Target(
        columns={"input_ids": pa.int32(), "loss_mask": pa.int8(), "seq_start_id": pa.int32()},
        values=megatron_columns,
        ending=".idx.parquet",  # Megatron-Bridge recognizes packed files by this ending
    ),
    "maxtext": Target(
        columns={f"{side}{part}": pa.int32() for side in ("inputs", "targets") for part in _PARTS},
        values=maxtext_columns,
    ),
    "torchtitan": Target(
        columns=dict.fromkeys(("input", "positions", "labels"), pa.int32()), values=torchtitan_columns
    ),
    "torchtune": Target(
        columns=dict.fromkeys(("tokens", "labels", "input_pos", "seq_lens"), pa.int32()), values=torchtune_columns
    ),
    "parquet": Target(columns={}, values=_no_columns),
}


def _values_type(field: pa.Field) -> pa.DataType:
    if not (pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)):
        raise PackerError(f"column '{field.name}' holds {field.type}, not a list per row: choose another --to")
    return field.type.value_type


def _as_lists(column: pa.Array) -> pa.Array:
    """Convert a column to ordinary lists; Parquet has no lists of fixed size, and few engines read them."""
    if column.null_count:
        return column.cast(pa.list_(column.type.value_type))
    if not pa.types.is_fixed_size_list(column.type):  # rebuilt, because the name of the values' field may differ
        return pa.ListArray.from_arrays(column.offsets, column.values)
    ends = np.arange(len(column) + 1, dtype=np.int32) * np.int32(column.type.list_size)
    return pa.ListArray.from_arrays(as_arrow(ends), column.flatten())


def _lists(rows: Sequence[NDArray[Any]], values_type: pa.DataType) -> pa.Array:
    """Make a column of lists from one array per row."""
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=ends[1:])
    values = np.concatenate(rows).astype(numpy_dtype(values_type), copy=False)
    return pa.ListArray.from_arrays(as_arrow(ends), as_arrow(values))
