"""The columns of a shard, and how they lie in an Arrow record batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

PADDING = -1
"""The doc_id of a padding tail."""

TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
"""Columns of max_len values a row, int32, in the order on disk."""

SEGMENT_COLUMNS = {"seq_lengths": pa.int32(), "seq_tokens": pa.int32(), "doc_ids": pa.int64(), "doc_starts": pa.int32()}
"""Columns of one value per segment (a padding tail is one), in the order on disk."""

OPTIONAL_COLUMNS = ("labels", "position_ids", "seq_tokens")
"""Those of them that are not in every dataset."""

_BATCH_BYTES = 2 << 20  # record batches of 1-4 MB write fastest


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """What the rows of a dataset look like."""

    max_len: int
    """Tokens and padding of a row."""

    pad_id: int
    """Token id of the padding."""

    token_columns: tuple[str, ...]
    """Which of TOKEN_COLUMNS are written."""

    align: int
    """Extents are multiples of it; above 1, `seq_tokens` are written."""

    @property
    def segment_columns(self) -> tuple[str, ...]:
        """Which of SEGMENT_COLUMNS are written."""
        return tuple(name for name in SEGMENT_COLUMNS if name != "seq_tokens" or self.align > 1)

    @property
    def schema(self) -> pa.Schema:
        """Of the shards."""
        return shard_schema(self.max_len, (*self.token_columns, *self.segment_columns))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, its few per-segment values apart."""
        return 4 * self.max_len * len(self.token_columns)

    def batches(self, first_row: int, last_row: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows that make the record batches of a shard; so that the same rows give the same bytes."""
        step = max(1, _BATCH_BYTES // self.row_bytes)
        for first in range(first_row, last_row, step):
            yield first, min(first + step, last_row)


def shard_schema(max_len: int, columns: Collection[str]) -> pa.Schema:
    """Arrow schema of these columns, whatever their order, in the order on disk."""
    fields = [pa.field(name, pa.list_(pa.int32(), max_len)) for name in TOKEN_COLUMNS if name in columns]
    fields += [pa.field(name, pa.list_(value)) for name, value in SEGMENT_COLUMNS.items() if name in columns]
    return pa.schema(fields)
