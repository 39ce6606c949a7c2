"""Columns of a shard, their Arrow types, and the division of its rows into record batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from packer.arrow import has_dtype, numpy_dtype
from packer.column_names import SEGMENT_COLUMNS, TOKEN_COLUMNS, TREE_INPUT_IDS, input_ids_in
from packer.errors import SourceError
from packer.options import PackOptions

_BATCH_BYTES = 2 << 20  # record batches of 1 to 4 MB are written fastest


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """Columns and layout of the rows of a dataset."""

    max_len: int
    pad_id: int

    token_columns: tuple[str, ...]
    """Columns of TOKEN_COLUMNS in a row."""

    index_only: bool
    """Whether the shards have no columns with one value per token, because the loader reads these from the source."""

    align: int
    """Divisor of every extent. If it is above 1, the column `seq_tokens` is written."""

    largest_id: int
    """Maximum token id of the model (`--vocab-size`)."""

    kept: Mapping[str, pa.DataType]
    """Types of the columns kept from the source with one value per segment."""

    kept_tokens: Mapping[str, pa.DataType]
    """Types of the columns kept from the source with one value (a number or a fixed-size list) per token."""

    @classmethod
    def of(cls, options: PackOptions, extra: Mapping[str, pa.ChunkedArray] | None = None) -> RowFormat:
        """Return the row format for these options. extra: the other columns of the source, by name.

        Raises a SourceError if a kept column of lists contains other values than numbers of whole bytes.
        """
        written = {
            "input_ids": not options.has_trees,
            TREE_INPUT_IDS: options.has_trees,
            "labels": options.labels,
            "position_ids": "position_ids" in options.add_column,
        }
        columns = extra or {}
        return cls(
            max_len=options.max_len,
            pad_id=options.pad_id or 0,
            token_columns=tuple(name for name in TOKEN_COLUMNS if written[name]),
            index_only=options.index_only,
            align=options.align,
            largest_id=options.largest_id,
            kept={name: columns[name].type for name in options.kept if name in columns},
            kept_tokens={
                name: _type_per_token(name, columns[name].type.value_type)
                for name in options.kept_tokens
                if name in columns
            },
        )

    @property
    def input_ids(self) -> str:
        """Name of the column with the tokens."""
        return input_ids_in(self.token_columns)

    @property
    def segment_columns(self) -> tuple[str, ...]:
        """Columns of SEGMENT_COLUMNS that are written."""
        return tuple(name for name in SEGMENT_COLUMNS if name != "seq_tokens" or self.align > 1)

    @property
    def stored_token_columns(self) -> tuple[str, ...]:
        """Columns of TOKEN_COLUMNS in the shards: `token_columns`, or none in an index."""
        return () if self.index_only else self.token_columns

    @property
    def stored_kept_tokens(self) -> Mapping[str, pa.DataType]:
        """Types of the columns in the shards that are kept from the source with one value per token."""
        return {} if self.index_only else self.kept_tokens

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the shards."""
        fields = [pa.field(name, pa.list_(pa.int32(), self.max_len)) for name in self.stored_token_columns]
        fields += [pa.field(name, pa.list_(value, self.max_len)) for name, value in self.stored_kept_tokens.items()]
        fields += [pa.field(name, pa.list_(pa.type_for_alias(SEGMENT_COLUMNS[name]))) for name in self.segment_columns]
        fields += [pa.field(name, pa.list_(value)) for name, value in self.kept.items()]
        return pa.schema(fields)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values per token, which an index does not store. Values per segment are not counted."""
        widths = [4] * len(self.token_columns) + [numpy_dtype(value).itemsize for value in self.kept_tokens.values()]
        return self.max_len * sum(widths)

    def rows_in(self, size: int) -> int:
        """Return the number of rows, at least 1, in a shard of at most `size` bytes."""
        return max(1, size // self.row_bytes)

    @property
    def batch_rows(self) -> int:
        """Maximum number of rows in a record batch; an index has the same record batches."""
        return self.rows_in(_BATCH_BYTES)

    def bytes_of(self, rows: int, segments: int) -> int:
        """Return the approximate bytes of rows in shards: the bytes of tokens or, in an index, of segments."""
        if not self.index_only:
            return rows * self.row_bytes
        widths = [np.dtype(SEGMENT_COLUMNS[name]).itemsize for name in self.segment_columns]
        return (segments + rows) * sum(widths) + rows * 4 * len(widths)  # each row has offsets and a padding tail


def _type_per_token(name: str, value_type: pa.DataType) -> pa.DataType:
    """Return the type of a kept column with one value per token, given the type of the values in its lists."""
    if pa.types.is_null(value_type):  # all lists are empty
        return pa.int8()
    if not has_dtype(value_type):
        raise SourceError(
            f"column '{name}' holds lists of {value_type}: save the same number of values for every token, and int8 "
            "for bool"
        )
    if pa.types.is_fixed_size_list(value_type):
        return pa.list_(value_type.value_type, value_type.list_size)  # without names and flags of fields
    return value_type
