"""Segments of rows, before the rows are written and in the record batches of a shard."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.index_arrays import extents_of
from packer.algorithms.patterns import Rows
from packer.arrow import as_numpy
from packer.column_names import PADDING

SEGMENT = np.dtype([("document", "<i8"), ("start", "<i4"), ("length", "<i4")])
"""A segment in 16 bytes: its document, the index of its first token there, and its number of tokens."""


def is_segment(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Return whether each value of the per-segment columns belongs to a segment rather than a padding tail."""
    found: NDArray[np.bool_] = as_numpy(batch["doc_ids"].values) != PADDING
    return found


class LocatedRows(Rows):
    """Consecutive rows of segments, in the order in which they are written. `values` is an array of SEGMENT.

    Documents are numbered in the order in which they are packed. Rows of 3 and 5 tokens, and of 1 token, have the
    values [(7, 0, 3), (2, 0, 5), (7, 3, 1)] and row_starts [0, 2, 3].
    """

    __slots__ = ()

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> LocatedRows:
        """Return the rows of a record batch without a `rows_fault`."""
        positions = np.flatnonzero(is_segment(batch))
        lengths = "seq_tokens" if "seq_tokens" in batch.schema.names else "seq_lengths"
        segments = np.empty(len(positions), SEGMENT)
        for field, column in (("document", "doc_ids"), ("start", "doc_starts"), ("length", lengths)):
            segments[field] = as_numpy(batch[column].values)[positions]
        return cls(values=segments, row_starts=np.searchsorted(positions, as_numpy(batch["seq_lengths"].offsets)))

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """Row of each segment, counted from 0, shape (segments,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.row_starts))

    @property
    def documents(self) -> NDArray[np.int64]:
        """Document of each segment, shape (segments,)."""
        return self._field("document")

    @property
    def starts(self) -> NDArray[np.int64]:
        """Index of each segment's first token in its document, shape (segments,)."""
        return self._field("start")

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each segment, shape (segments,)."""
        return self._field("length")

    def extents(self, align: int) -> NDArray[np.int64]:
        """Return the number of places that each segment takes in its row, shape (segments,)."""
        return extents_of(self.lengths, align)

    def ends(self, align: int) -> NDArray[np.int64]:
        """Return the end of the last extent of each row, counted from the start of the row, shape (rows,)."""
        ends: NDArray[np.int64] = np.add.reduceat(self.extents(align), self.row_starts[:-1])
        return ends

    def places(self, align: int, max_len: int) -> NDArray[np.int64]:
        """Return the place of each segment's first token, counted from the first row, shape (segments,)."""
        extents = self.extents(align)
        before = np.cumsum(extents) - extents  # extents before each segment, without padding tails
        row_of = self.row_numbers
        places: NDArray[np.int64] = row_of * max_len + before - before[self.row_starts[:-1]][row_of]
        return places

    def _field(self, name: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self.values[name].astype(np.int64)
        return values
