"""Segments of rows, before the rows are written and in the record batches of a shard."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.index_arrays import extents_of
from packer.algorithms.patterns import Rows
from packer.arrow import as_numpy
from packer.shards.row_format import PADDING

PIECE = np.dtype([("document", "<i8"), ("start", "<i4"), ("length", "<i4")])
"""A segment in 16 bytes: its document, first token and number of tokens."""


class RowSegments(NamedTuple):
    """Segments of a record batch without padding tails, as int64 arrays of shape (segments,)."""

    values: NDArray[np.int64]
    """Positions in the columns with a value per segment, which also have values for padding tails."""

    rows: NDArray[np.int64]
    """Rows in the batch."""

    numbers: NDArray[np.int64]
    """Numbers of the segments in their rows, counted from 0."""

    starts: NDArray[np.int64]
    """First tokens in their documents."""

    lengths: NDArray[np.int64]
    """Numbers of tokens."""

    extents: NDArray[np.int64]
    """Places that the segments take, tokens and padding for alignment."""

    places: NDArray[np.int64]
    """Places of the first tokens, counted from the first row of the batch: row * max_len + offset in the row."""

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


class LocatedRows(Rows):
    """Consecutive rows of pieces, in the order in which they are written: `values` is an array of PIECE.

    Documents are numbered in the order that is packed. Rows of 3 and 5 tokens and of 1 token have the values
    [(7, 0, 3), (2, 0, 5), (7, 3, 1)] and row_starts [0, 2, 3].
    """

    __slots__ = ()

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> LocatedRows:
        """Return the rows of a record batch of a shard that has no faults."""
        found = RowSegments.of(batch)
        pieces = np.empty(len(found.documents), PIECE)
        pieces["document"], pieces["start"], pieces["length"] = found.documents, found.starts, found.lengths
        return cls(values=pieces, row_starts=np.searchsorted(found.rows, np.arange(batch.num_rows + 1)))

    @property
    def documents(self) -> NDArray[np.int64]:
        """Document of each segment: shape (segments,)."""
        return self._field("document")

    @property
    def starts(self) -> NDArray[np.int64]:
        """First token of each segment in its document: shape (segments,)."""
        return self._field("start")

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each segment: shape (segments,)."""
        return self._field("length")

    def extents(self, align: int) -> NDArray[np.int64]:
        """Places that each segment takes in its row: shape (segments,)."""
        return extents_of(self.lengths, align)

    def ends(self, align: int) -> NDArray[np.int64]:
        """End of the last extent of each row, counted from the start of the row: shape (rows,)."""
        ends: NDArray[np.int64] = np.add.reduceat(self.extents(align), self.row_starts[:-1])
        return ends

    def places(self, align: int, max_len: int) -> NDArray[np.int64]:
        """Place of the first token of each segment, counted from the first row: shape (segments,)."""
        extents = self.extents(align)
        before = np.cumsum(extents) - extents  # extents before each segment, padding tails not counted
        row_of = np.repeat(np.arange(len(self)), np.diff(self.row_starts))
        places: NDArray[np.int64] = row_of * max_len + before - before[self.row_starts[:-1]][row_of]
        return places

    def _field(self, name: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self.values[name].astype(np.int64)
        return values
