"""Segments of the rows in a record batch, and the checks that its lists form rows; no token is read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.index_arrays import extents_of
from packer.arrow import as_numpy, has_dtype
from packer.column_names import TREE
from packer.errors import first_line
from packer.options import PackOptions
from packer.shards.manifest import Manifest
from packer.shards.row_format import PADDING, RowFormat


class RowSegments(NamedTuple):
    """Segments of a record batch, padding tails left out; int64 arrays of shape (segments,)."""

    values: NDArray[np.int64]
    """Positions in the columns with a value per segment, in which padding tails count."""

    rows: NDArray[np.int64]
    """Rows of the segments in the batch."""

    numbers: NDArray[np.int64]
    """Positions among the segments of their rows."""

    starts: NDArray[np.int64]
    """First tokens in their documents."""

    lengths: NDArray[np.int64]
    """Tokens."""

    extents: NDArray[np.int64]
    """Tokens and alignment."""

    places: NDArray[np.int64]
    """Row * max_len + offset in the row."""

    documents: NDArray[np.int64]
    """Documents."""

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> RowSegments:
        """Return the segments of a record batch without a `rows_fault`."""
        values = np.flatnonzero(as_numpy(batch["doc_ids"].values) != PADDING)
        boundaries = batch["seq_lengths"]
        offsets, extents = (as_numpy(each).astype(np.int64) for each in (boundaries.offsets, boundaries.values))
        rows = np.repeat(np.arange(batch.num_rows), np.diff(offsets))[values]

        def column(name: str) -> NDArray[np.int64]:
            chosen: NDArray[np.int64] = as_numpy(batch[name].values)[values].astype(np.int64)
            return chosen

        return cls(
            values=values,
            rows=rows,
            numbers=values - offsets[rows],
            starts=column("doc_starts"),
            lengths=column("seq_tokens" if "seq_tokens" in batch.schema.names else "seq_lengths"),
            extents=extents[values],
            places=(np.cumsum(extents) - extents)[values],
            documents=column("doc_ids"),
        )


def rows_fault(batch: pa.RecordBatch, manifest: Manifest) -> str | None:
    """Return the first fault in the structure of a record batch, or None; reads no tokens.

    Its columns must be those of a shard, of the right types, and `pa.RecordBatch.validate` must have passed. Reading
    values of a batch with a fault may crash: Arrow relies on offsets that ascend and stay inside the values, indices
    inside their dictionary, UTF-8 and true null counts. To check these takes microseconds for a batch of a few
    megabytes, because columns of numbers are not read.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, NotImplementedError) as error:
        return first_line(error)
    return _structure_fault(batch, manifest.row_format) or _kept_fault(batch, manifest.options)


def _structure_fault(batch: pa.RecordBatch, row_format: RowFormat) -> str | None:
    """Return the first fault in the segments of a record batch whose buffers have no faults, or None.

    None means that there are rows and no nulls, all segment columns have the same valid offsets, extents are at least 1
    and sum to max_len in every row, and only the last segment of a row, never its only one, is padding.
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
        return "a row has no segments, or the offsets of the segments descend or do not match the values"
    extents, documents, starts = (values[name] for name in ("seq_lengths", "doc_ids", "doc_starts"))
    if extents.min() < 1 or starts.min() < 0 or documents.min() < PADDING:
        return "a segment is empty or belongs to no document"
    if (np.add.reduceat(extents, offsets[:-1], dtype=np.int64) != row_format.max_len).any():
        return f"the seq_lengths of a row do not sum to {row_format.max_len}"
    if "seq_tokens" in values:
        tokens, align = values["seq_tokens"].astype(np.int64), row_format.align
        rounded = np.where(documents == PADDING, 0, extents)
        if ((tokens < 1) != (documents == PADDING)).any() or (extents_of(tokens, align) != rounded).any():
            return f"seq_lengths are not seq_tokens rounded up to a multiple of {align}"
    is_tail = documents == PADDING
    if np.count_nonzero(is_tail) != np.count_nonzero(is_tail[offsets[1:] - 1]) or is_tail[offsets[:-1]].any():
        return "padding comes before a segment or fills a row"
    return None


def documents_fault(segments: RowSegments, manifest: Manifest) -> str | None:
    """Return which document of a record batch without faults is not one of the source, or None."""
    ids, documents = segments.documents, manifest.source.documents
    others = ids[(ids < 0) | (ids >= documents)]
    return f"document {others[0]:,} is not of the source, 0 to {documents - 1:,}" if len(others) else None


def _kept_fault(batch: pa.RecordBatch, options: PackOptions) -> str | None:
    """Return the first fault in the columns kept from the source, or None; they have a value per segment or per token.

    The batch must have no `_structure_fault`.
    """
    for name in options.kept:
        column = batch[name]
        if (
            not pa.types.is_list(column.type)
            or column.null_count
            or not column.offsets.equals(batch["seq_lengths"].offsets)
            or len(column.values) != len(batch["seq_lengths"].values)
        ):
            return f"{name} does not have a value for each segment"
    for name in options.stored_keep_tokens:
        list_type = batch[name].type
        if (
            not pa.types.is_fixed_size_list(list_type)
            or list_type.list_size != options.max_len
            or not has_dtype(list_type.value_type)
            or batch[name].null_count
        ):
            return f"{name} does not have a value for each token"
    if options.has_trees and not batch[TREE].type.value_type.equals(pa.list_(pa.int32())):
        return f"{TREE} holds {batch[TREE].type.value_type}, not lists of int32"
    return None
