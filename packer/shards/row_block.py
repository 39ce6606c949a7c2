"""Blocks of rows: their segments, and the columns of a shard that have a value per segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.column_names import SEGMENT_COLUMNS
from packer.shards.kept_columns import KeptValues
from packer.shards.row_format import PADDING, RowFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBlock:
    """Segments of consecutive rows, padding tails not included; each array has a value per segment."""

    lists: NDArray[np.int64]
    """Lists of the token columns that the segments come from: shape (segments,)."""

    kept_lists: NDArray[np.int64]
    """Lists of the kept columns that they come from; they differ if tokens were copied out of their source before."""

    documents: NDArray[np.int64]
    """Documents of the segments, numbered in their own source: shape (segments,)."""

    source_ids: NDArray[np.int64]
    """Sources of the segments: shape (segments,)."""

    copies: NDArray[np.int64]
    """Repetitions of the documents, from 0: shape (segments,)."""

    starts: NDArray[np.int64]
    """First tokens of the segments in their documents: shape (segments,)."""

    lengths: NDArray[np.int64]
    """Tokens of the segments: shape (segments,)."""

    extents: NDArray[np.int64]
    """Tokens and alignment of the segments: shape (segments,)."""

    context: NDArray[np.int64]
    """Tokens at the start of the segments that have no loss, at least 1: shape (segments,)."""

    row_starts: NDArray[np.int64]
    """Shape (rows + 1,): row r holds segments row_starts[r]..row_starts[r + 1] - 1."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_starts) - 1

    @property
    def ends(self) -> NDArray[np.int64]:
        """End of the last extent of each row, counted from the start of the row: shape (rows,)."""
        ends: NDArray[np.int64] = np.add.reduceat(self.extents, self.row_starts[:-1])
        return ends


class SegmentColumns(NamedTuple):
    """Columns with a value per segment of a block of rows, padding tails included."""

    offsets: NDArray[np.int32]
    """Shape (rows + 1,): row r has the values offsets[r]..offsets[r + 1] - 1."""

    is_padding: NDArray[np.bool_]
    """Shape (values,): whether a value is that of a padding tail."""

    kept_lists: NDArray[np.int64]
    """Shape (values,): list of the kept columns that a value comes from; 0 for a padding tail."""

    columns: dict[str, NDArray[Any]]
    """Shape (values,) each, by name, in the order of the schema."""

    @classmethod
    def of(cls, block: RowBlock, row_format: RowFormat) -> SegmentColumns:
        """Return the columns of a block of rows."""
        max_len, ends = row_format.max_len, block.ends
        is_short = ends < max_len
        tails = np.flatnonzero(is_short)
        offsets = block.row_starts.astype(np.int32)
        offsets[1:] += np.cumsum(is_short, dtype=np.int32)
        pads = offsets[tails + 1] - 1  # a padding tail is the last segment of its row
        is_padding = np.zeros(offsets[-1], bool)
        is_padding[pads] = True
        segments = np.flatnonzero(~is_padding)
        of_segments: dict[str, tuple[NDArray[np.int64], Any]] = {
            "seq_lengths": (block.extents, max_len - ends[tails]),
            "seq_tokens": (block.lengths, 0),
            "doc_ids": (block.documents, PADDING),
            "doc_starts": (block.starts, 0),
            "source_ids": (block.source_ids, PADDING),
            "copy": (block.copies, 0),
        }
        columns = {}
        for name in row_format.segment_columns:
            values, padding = of_segments[name]
            column = columns[name] = np.empty(len(is_padding), SEGMENT_COLUMNS[name])
            column[segments], column[pads] = values, padding
        kept_lists = np.zeros(len(is_padding), np.int64)
        kept_lists[segments] = block.kept_lists
        return cls(offsets, is_padding, kept_lists, columns)

    def arrays(self, first: int, last: int, kept: KeptValues, row_format: RowFormat) -> list[pa.Array]:
        """Return rows first..last - 1 of every column, in the order of the schema, kept columns last.

        Args:
            first: first row.
            last: row after the last.
            kept: values of the kept columns.
            row_format: format of the rows.
        """
        begin, end = self.offsets[first], self.offsets[last]
        offsets = as_arrow(self.offsets[first : last + 1] - begin)
        arrays = [pa.ListArray.from_arrays(offsets, as_arrow(column[begin:end])) for column in self.columns.values()]
        if row_format.kept:
            lists, is_padding = self.kept_lists[begin:end], self.is_padding[begin:end]
            for name in row_format.kept:
                arrays.append(pa.ListArray.from_arrays(offsets, kept.column(name, lists, is_padding)))
        return arrays
