"""Checks of record batches: their lists form rows, and the segments of each row may share it.

No tokens are read, except in trees. A row has at most max_segments segments, respects the limits and has one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.index_arrays import extents_of
from packer.arrow import as_arrow, as_numpy, as_scalar, format_value, has_dtype
from packer.arrow import compute as pc
from packer.column_names import PADDING, TREE
from packer.errors import SourceError, first_line
from packer.options import PackOptions
from packer.shards.located_rows import LocatedRows, is_segment
from packer.shards.manifest import Manifest
from packer.shards.row_format import RowFormat
from packer.token_memory.prefix_trees import first_wrong_tree
from packer.token_memory.token_column import list_lengths


def rows_fault(batch: pa.RecordBatch, manifest: Manifest) -> str | None:
    """Return the first fault in the structure of a record batch. Returns None if there is none. Reads no token.

    The batch must have the columns and types of a shard, and must have passed `pa.RecordBatch.validate`. Reading values
    of a batch with a fault may crash. Arrow relies on offsets that ascend and stay inside the values, on indices inside
    their dictionary, on UTF-8 and on true null counts. Checking these takes microseconds for a batch of a few
    megabytes, because columns of numbers are not read.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, NotImplementedError) as error:
        return first_line(error)
    return _structure_fault(batch, manifest.row_format) or _kept_fault(batch, manifest.options)


def _structure_fault(batch: pa.RecordBatch, row_format: RowFormat) -> str | None:
    """Return the first fault in the segments of a record batch whose buffers have no faults. Returns None if valid.

    In a valid batch, there are rows and no nulls. All segment columns have the same valid offsets. Extents are at least
    1 and sum to max_len in every row. Only the last segment of a row may be padding, and never its only segment.
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


def documents_fault(rows: LocatedRows, manifest: Manifest) -> str | None:
    """Return a sentence if a document of a record batch without faults is not in the source. Returns None otherwise."""
    ids, documents = rows.documents, manifest.source.documents
    others = ids[(ids < 0) | (ids >= documents)]
    return f"document {others[0]:,} is not of the source, 0 to {documents - 1:,}" if len(others) else None


def _kept_fault(batch: pa.RecordBatch, options: PackOptions) -> str | None:
    """Return the first fault in the kept columns of a batch without a `_structure_fault`. Returns None if valid."""
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


NO_GROUP = -1
"""Group number of documents without a group."""


class Chunks(Protocol):
    """A column in chunks: a `pa.ChunkedArray`, or a column that decodes its chunks one by one."""

    @property
    def type(self) -> pa.DataType:
        """Type of all values."""

    @property
    def chunks(self) -> Iterable[pa.Array]:
        """Values in chunks, in order."""


def group_values(column: pa.Array | Chunks, name: str) -> pa.DictionaryArray:
    """Encode a column of groups as a dictionary: equal values get the same index, null gets none.

    Raises a SourceError if values of this type cannot be compared.
    """
    chunks = [column] if isinstance(column, pa.Array) else column.chunks
    try:
        encoded = [_encoded(chunk) for chunk in chunks]
        return pa.concat_arrays(encoded) if encoded else pc.dictionary_encode(pa.nulls(0, column.type))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise SourceError(
            f"column '{name}' holds {column.type}, which does not group; save it as strings or integers"
        ) from error


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    if pa.types.is_null(column.type):  # pyarrow would make null a value
        return pa.DictionaryArray.from_arrays(pa.nulls(len(column), pa.int32()), column.slice(0, 0))
    if pa.types.is_dictionary(column.type):  # values of a dictionary may repeat
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type):  # there may be more than 2 GB of strings
        column = column.cast(pa.large_string())
    if pa.types.is_floating(column.type):  # 0.0 and -0.0 are equal, and all NaN are equal
        values = as_numpy(column.fill_null(as_scalar(0, column.type))) + 0.0
        values[np.isnan(values)] = np.nan
        column = as_arrow(values, as_numpy(column.is_valid()))
    return pc.dictionary_encode(column)


def group_codes(groups: pa.DictionaryArray) -> NDArray[np.int32]:
    """Return the group of each value: 0 to groups - 1, or NO_GROUP; int32, shape (values,)."""
    codes: NDArray[np.int32] = as_numpy(groups.indices.fill_null(as_scalar(NO_GROUP, groups.indices.type)))
    return codes


def sharing_fault(batch: pa.RecordBatch, rows: LocatedRows, options: PackOptions) -> tuple[int, str] | None:
    """Find a row of a valid batch with too many segments, or with segments that must not share a row.

    Returns None if there is none; otherwise the index of the row in the batch, and a message that follows the name of
    the row. Groups are checked only if the rows keep their column. Raises a SourceError if its values cannot be
    compared.
    """
    is_real, documents = is_segment(batch), rows.documents
    limit, counts = options.max_segments, np.diff(rows.row_starts)
    if limit is not None and counts.max() > limit:
        row = int(np.argmax(counts > limit))
        return row, f"holds {counts[row]:,} segments, packed with max_segments {limit:,}"
    for column, most in options.limits.items():
        sums = np.bincount(rows.row_numbers, weights=as_numpy(batch[column].values)[is_real], minlength=1)
        if sums.max() > most:
            row = int(np.argmax(sums > most))
            return row, f"holds {column} {int(sums[row]):,}, packed with limit {column}:{most}"
    if options.has_trees:
        fault = _tree_fault(batch, rows, options)
        if fault is not None:
            return fault
    name = options.group_by
    if name is None or name not in options.keep:
        return None
    groups = group_values(batch[name].values.filter(as_arrow(is_real)), name)
    return group_fault(rows.row_numbers, groups, options, lambda segment: f"document {documents[segment]}")


def group_fault(
    rows: NDArray[np.int64], groups: pa.DictionaryArray, options: PackOptions, describe: Callable[[int], str]
) -> tuple[int, str] | None:
    """Find the first row with two groups.

    rows, groups: row and group (null: none) of each segment, shape (segments,). describe: function that names the
    document of a segment. Returns None if there is none; otherwise the row, and a message that follows the name of the
    row.
    """
    name = options.group_by
    found = clash(rows, group_codes(groups))
    if found is None:
        return None
    one, other = found
    values = [format_value(value)[:40] if value.is_valid else "null" for value in (groups[one], groups[other])]
    held = f"{describe(one)} of {name} {values[0]} and {describe(other)} of {name} {values[1]}"
    return int(rows[one]), f"holds {held}, packed with group_by {name}"


def clash(rows: NDArray[np.int64], groups: NDArray[np.int32]) -> tuple[int, int] | None:
    """Find two segments of different groups in the first row with two groups.

    Returns their positions, the lower one first, or None: rows [0, 0, 1, 1] and groups [7, 7, 5, 6] -> (2, 3). Rows may
    be in any order. NO_GROUP counts as a group.
    """
    first = np.zeros(int(rows.max(initial=-1)) + 1, np.int64)
    first[rows[::-1]] = np.arange(len(rows) - 1, -1, -1)  # the row's first segment is assigned last
    others = np.flatnonzero(groups[first[rows]] != groups)
    if not len(others):
        return None
    other = int(others[np.argmin(rows[others])])
    return int(first[rows[other]]), other


def _tree_fault(batch: pa.RecordBatch, rows: LocatedRows, options: PackOptions) -> tuple[int, str] | None:
    """Find the first segment whose nodes do not form a tree of its tokens. Returns the same as `sharing_fault`."""
    trees = batch[TREE].values.filter(as_arrow(is_segment(batch)))
    counts = list_lengths(trees)
    if (counts % 3).any():
        wrong = int(np.argmax(counts % 3 > 0))
    else:
        nodes, ends = as_numpy(trees.flatten()).reshape(-1, 3), np.cumsum(counts // 3, dtype=np.int64)
        places, labels = rows.places(options.align, options.max_len), as_numpy(batch["labels"].flatten())
        wrong = first_wrong_tree(nodes, ends, rows.lengths, places, labels)
    if wrong < 0:
        return None
    return int(rows.row_numbers[wrong]), f"holds document {rows.documents[wrong]}, whose {TREE} does not fit its tokens"
