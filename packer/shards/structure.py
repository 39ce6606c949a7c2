"""Whether a record batch of a shard has the structure of rows; numpy and pyarrow alone, no token is read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from packer.arrow import as_numpy
from packer.shards.columns import PADDING, RowFormat


def structure_fault(batch: pa.RecordBatch, row_format: RowFormat) -> str | None:
    """Return what is wrong with the segments of a record batch of rows, or None.

    What None says: there are no nulls, the segment columns are of the same lengths, their offsets stay inside the
    values, extents are at least 1 and sum to max_len in every row, and padding is at most the last segment of a row.

    Args:
        batch: has the columns of a shard, of their types; its buffers hold what it claims (`pa.RecordBatch.validate`).
        row_format: what the rows should look like.
    """
    names = row_format.segment_columns
    columns = [batch[name] for name in row_format.schema.names if name in batch.schema.names]
    if any(column.null_count or column.values.null_count for column in columns):
        return "there are nulls"
    if batch.num_rows == 0:
        return None
    offsets = as_numpy(batch["seq_lengths"].offsets)
    values = {name: as_numpy(batch[name].values) for name in names}
    if any(not np.array_equal(as_numpy(batch[name].offsets), offsets) for name in names):
        return f"{', '.join(names)} are of different lengths"
    if (
        offsets[0] != 0
        or (offsets[1:] <= offsets[:-1]).any()
        or {len(column) for column in values.values()} != {int(offsets[-1])}
    ):
        return "the lists of segments run backwards or outside, or one is empty"
    extents, documents, starts = (values[name] for name in ("seq_lengths", "doc_ids", "doc_starts"))
    if extents.min() < 1 or starts.min() < 0 or documents.min() < PADDING:
        return "a segment is empty, or of no document"
    if (np.add.reduceat(extents, offsets[:-1], dtype=np.int64) != row_format.max_len).any():
        return f"the seq_lengths of a row do not sum to {row_format.max_len}"
    if "seq_tokens" in values:
        tokens, align = values["seq_tokens"].astype(np.int64), row_format.align
        rounded = np.where(documents == PADDING, 0, extents)
        if ((tokens < 1) != (documents == PADDING)).any() or (-(-tokens // align) * align != rounded).any():
            return f"seq_lengths are not seq_tokens rounded up to a multiple of {align}"
    if "source_ids" in values and (
        ((values["source_ids"] < 0) != (documents == PADDING)).any() or values["copy"].min() < 0
    ):
        return "a segment is of no source, or a negative copy"
    tails = np.flatnonzero(documents == PADDING)
    if np.setdiff1d(tails, offsets[1:] - 1).size or np.intersect1d(tails, offsets[:-1]).size:
        return "padding stands before a segment, or alone"
    return None
