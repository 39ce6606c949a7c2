"""Check what a row may hold: at most max_segments, within limits, one group, trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, as_scalar, format_value
from packer.arrow import compute as pc
from packer.column_names import TREE
from packer.errors import SourceError
from packer.options import PackOptions
from packer.shards.structure import RowSegments
from packer.token_memory import list_lengths
from packer.token_memory.prefix_trees import first_wrong_tree

NO_GROUP = -1
"""Group number of documents without a group."""


class Chunks(Protocol):
    """Column in chunks: a `pa.ChunkedArray`, or a column that decodes its chunks one by one."""

    @property
    def type(self) -> pa.DataType:
        """Type of all values."""

    @property
    def chunks(self) -> Iterable[pa.Array]:
        """Values, in order."""


def group_values(column: pa.Array | Chunks, name: str) -> pa.DictionaryArray:
    """Encode a column that groups documents as a dictionary: equal values get one index, null gets none.

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
    if pa.types.is_null(column.type):  # to pyarrow, null is a value here
        return pa.DictionaryArray.from_arrays(pa.nulls(len(column), pa.int32()), column.slice(0, 0))
    if pa.types.is_dictionary(column.type):  # in which values may repeat
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type):  # of which there may be more than 2 GB
        column = column.cast(pa.large_string())
    if pa.types.is_floating(column.type):  # 0.0 and -0.0 are equal, and so are all NaN
        values = as_numpy(column.fill_null(as_scalar(0, column.type))) + 0.0
        values[np.isnan(values)] = np.nan
        column = as_arrow(values, as_numpy(column.is_valid()))
    return pc.dictionary_encode(column)


def group_codes(groups: pa.DictionaryArray) -> NDArray[np.int32]:
    """Return the group of each value: int32, shape (values,), 0..groups - 1 or NO_GROUP."""
    codes: NDArray[np.int32] = as_numpy(groups.indices.fill_null(as_scalar(NO_GROUP, groups.indices.type)))
    return codes


def sharing_fault(batch: pa.RecordBatch, segments: RowSegments, options: PackOptions) -> tuple[int, str] | None:
    """Find a row of a valid batch that holds too many segments, or segments that must not share a row.

    Returns the number of the row in the batch and words for a message that starts with the row, or None. Groups are
    checked only if the rows keep their column; a SourceError says that its values cannot be compared.
    """
    real, rows, documents = segments.values, segments.rows, segments.documents
    limit, counts = options.max_segments, np.bincount(rows, minlength=1)
    if limit is not None and counts.max() > limit:
        row = int(np.argmax(counts > limit))
        return row, f"holds {counts[row]:,} segments, packed with max_segments {limit:,}"
    for column, most in options.limits.items():
        sums = np.bincount(rows, weights=as_numpy(batch[column].values)[real], minlength=1)
        if sums.max() > most:
            row = int(np.argmax(sums > most))
            return row, f"holds {column} {int(sums[row]):,}, packed with limit {column}:{most}"
    if options.has_trees:
        fault = _tree_fault(batch, segments)
        if fault is not None:
            return fault
    name = options.group_by
    if name is None or name not in options.keep:
        return None
    groups = group_values(batch[name].values.take(as_arrow(real)), name)
    return group_fault(rows, groups, options, lambda segment: f"document {documents[segment]}")


def group_fault(
    rows: NDArray[np.int64], groups: pa.DictionaryArray, options: PackOptions, describe: Callable[[int], str]
) -> tuple[int, str] | None:
    """Find the first row that holds two groups.

    Returns the row and words for a message that starts with the row, or None. `rows` and `groups` (null: no group) have
    the shape (segments,). `describe` names the document of a segment.
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
    """Find two segments in the first row that holds two groups.

    Returns their positions, the lower one first, or None: for rows [0, 0, 1, 1] and groups [7, 7, 5, 6], (2, 3). Rows
    are in any order; NO_GROUP is a group like any other.
    """
    first = np.zeros(int(rows.max(initial=-1)) + 1, np.int64)
    first[rows[::-1]] = np.arange(len(rows) - 1, -1, -1)  # the last assignment, of the first segment, stays
    others = np.flatnonzero(groups[first[rows]] != groups)
    if not len(others):
        return None
    other = int(others[np.argmin(rows[others])])
    return int(first[rows[other]]), other


def _tree_fault(batch: pa.RecordBatch, segments: RowSegments) -> tuple[int, str] | None:
    """Find the first segment whose nodes are not those of a tree."""
    trees = batch[TREE].values.take(as_arrow(segments.values))
    counts = list_lengths(trees)
    nodes, labels = as_numpy(trees.flatten()), as_numpy(batch["labels"].flatten())
    wrong = int(np.argmax(counts % 3 > 0)) if (counts % 3).any() else -1
    if wrong < 0:
        wrong = first_wrong_tree(
            nodes.reshape(-1, 3), np.cumsum(counts // 3, dtype=np.int64), segments.lengths, segments.places, labels
        )
    if wrong < 0:
        return None
    return int(
        segments.rows[wrong]
    ), f"holds document {segments.documents[wrong]}, whose {TREE} does not fit its tokens"
