"""The columns of a shard, and how they lie in an Arrow record batch."""

from __future__ import annotations

import pyarrow as pa

PADDING = -1
"""The doc_id of a padding tail."""

TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
"""Columns of max_len values a row, int32, in the order on disk."""

SEGMENT_COLUMNS = {"seq_lengths": pa.int32(), "doc_ids": pa.int64(), "doc_starts": pa.int32()}
"""Columns of one value per segment (a padding tail is one), in the order on disk."""

_BATCH_BYTES = 2 << 20  # record batches of 1-4 MB write fastest


def shard_schema(max_len: int, token_columns: tuple[str, ...]) -> pa.Schema:
    """Arrow schema of a shard whose rows have these token columns."""
    fields = [pa.field(name, pa.list_(pa.int32(), max_len)) for name in token_columns]
    fields += [pa.field(name, pa.list_(value)) for name, value in SEGMENT_COLUMNS.items()]
    return pa.schema(fields)


def row_bytes(max_len: int, token_columns: tuple[str, ...]) -> int:
    """Bytes of a row, its few per-segment values apart."""
    return 4 * max_len * len(token_columns)


def rows_per_batch(max_len: int, token_columns: tuple[str, ...]) -> int:
    """Rows of a record batch; part of the format, so that the same rows give the same bytes."""
    return max(1, _BATCH_BYTES // row_bytes(max_len, token_columns))
