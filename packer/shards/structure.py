"""Whether a record batch of a shard has the structure of rows; numpy and pyarrow alone, no token is read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from packer.arrow import as_numpy
from packer.column_names import ROLE
from packer.options import PackOptions
from packer.shards.manifest import Manifest
from packer.shards.row_format import PADDING, RowFormat


def rows_fault(batch: pa.RecordBatch, manifest: Manifest) -> str | None:
    """Return what is wrong with a record batch of rows as far as it can be told without their tokens, or None.

    Until None is returned, reading a value of the batch may crash.

    Args:
        batch: has the columns of a shard, of their types; `pa.RecordBatch.validate` has passed.
        manifest: of the dataset.
    """
    return buffers_fault(batch) or structure_fault(batch, manifest.row_format) or kept_fault(batch, manifest.options)


def buffers_fault(batch: pa.RecordBatch) -> str | None:
    """Return what is wrong with the buffers of a record batch, or None.

    What None says: offsets ascend inside the values, indices inside their dictionary, strings are UTF-8, and there are
    as many nulls as the metadata claims. Arrow itself takes all of that on trust: without it, reading may crash.
    Columns of numbers are not read, so that a batch of a few megabytes takes microseconds.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, NotImplementedError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return None


def structure_fault(batch: pa.RecordBatch, row_format: RowFormat) -> str | None:
    """Return what is wrong with the segments of a record batch of rows, or None.

    What None says: there are rows, there are no nulls, the segment columns are of the same lengths, their offsets stay
    inside the values, extents are at least 1 and sum to max_len in every row, and padding is at most the last segment
    of a row.

    Args:
        batch: has the columns of a shard, of their types; its buffers are right (`buffers_fault`).
        row_format: what the rows should look like.
    """
    names = row_format.segment_columns
    columns = [batch[name] for name in row_format.schema.names if name in batch.schema.names]
    if any(column.null_count or column.values.null_count for column in columns):
        return "there are nulls"
    if batch.num_rows == 0:
        return "a record batch has no rows"
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


def kept_fault(batch: pa.RecordBatch, options: PackOptions) -> str | None:
    """Return what is wrong with the columns that are kept of the source: a value for each segment, or for each token.

    Args:
        batch: has the columns of a shard, whose structure is right.
        options: those of the manifest.
    """
    for name in (*options.kept, *options.keep_tokens):
        if batch.schema.names.count(name) != 1:
            return f"the columns are {', '.join(batch.schema.names)}, the options ask for {name}"
    for name in options.kept:
        column = batch[name]
        if (
            not pa.types.is_list(column.type)
            or column.null_count
            or not column.offsets.equals(batch["seq_lengths"].offsets)
            or len(column.values) != len(batch["seq_lengths"].values)
        ):
            return f"{name} is not a value for each segment"
    for name in options.keep_tokens:
        found = batch[name].type
        if (
            not pa.types.is_fixed_size_list(found)
            or found.list_size != options.max_len
            or not _has_whole_bytes(found.value_type)
            or batch[name].null_count
        ):
            return f"{name} is not a value for each token"
    if options.pairs and not pa.types.is_string(batch[ROLE].type.value_type):
        return f"{ROLE} holds {batch[ROLE].type.value_type}, not strings"
    return None


def _has_whole_bytes(value_type: pa.DataType) -> bool:
    try:
        return not pa.types.is_nested(value_type) and value_type.bit_width % 8 == 0
    except ValueError:  # values of no fixed width
        return False
