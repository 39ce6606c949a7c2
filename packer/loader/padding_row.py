"""A row of nothing but padding, which stands in for an empty batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from packer.labels import NO_LOSS
from packer.loader.open_shards import ColumnViews, Row
from packer.shards.row_format import PADDING


def padding_row(views: ColumnViews, token_types: Mapping[str, np.dtype[Any]], *, max_len: int, pad_id: int) -> Row:
    """Return a row of padding with the columns of a dataset.

    Args:
        views: columns of any record batch.
        token_types: types of the columns with a value per token.
        max_len: length of a row.
        pad_id: token id of the padding.
    """
    token_fill = {"input_ids": pad_id, "labels": NO_LOSS}
    segment_fill = {"seq_lengths": max_len, "doc_ids": PADDING, "source_ids": PADDING}
    row: Row = {}
    for name, dtype in token_types.items():
        row[name] = np.full(max_len, token_fill.get(name, 0), dtype)
    if "position_ids" in row:
        row["position_ids"] = np.arange(max_len, dtype=np.int32)
    for name, values in views.segments.items():
        row[name] = np.array([segment_fill.get(name, 0)], values.dtype)
    for name, column in views.others.items():
        row[name] = np.array([False if column.type == pa.bool_() else None])  # as padding has it on disk
    return row
