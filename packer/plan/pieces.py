"""Segments located in the source: in the rows of a shard, and as pieces that partitions leave over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

PIECE = np.dtype([("document", "<i8"), ("start", "<i4"), ("length", "<i4")])
"""A segment in 16 bytes: its document, first token and number of tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """Segments of consecutive rows, by their place in the source."""

    documents: NDArray[np.int64]
    """Shape (segments,): document of each segment, numbered in the order that is packed."""

    starts: NDArray[np.int64]
    """Shape (segments,): first token of each segment in its document."""

    lengths: NDArray[np.int64]
    """Shape (segments,): tokens of each segment."""

    row_starts: NDArray[np.int64]
    """Shape (rows + 1,): row r holds the segments row_starts[r] to row_starts[r + 1] - 1; begins at 0."""

    @classmethod
    def in_one_row(cls, documents: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Located:
        """Return segments that do not form rows, as if they were one row."""
        return cls(documents=documents, starts=starts, lengths=lengths, row_starts=np.array([0, len(documents)]))

    @classmethod
    def of_pieces(cls, pieces: NDArray[Any]) -> Located:
        """Return pieces, an array of PIECE, as if they were one row."""
        return cls.in_one_row(*(pieces[name].astype(np.int64) for name in ("document", "start", "length")))

    @property
    def places(self) -> NDArray[np.int64]:
        """Index of the first token of each segment if they lie one after the other: shape (segments,)."""
        places: NDArray[np.int64] = np.cumsum(self.lengths) - self.lengths
        return places

    @property
    def pieces(self) -> NDArray[Any]:
        """The segments as an array of PIECE: shape (segments,)."""
        return pieces_of(self.documents, self.starts, self.lengths)

    def some(self, chosen: NDArray[np.int64] | slice) -> Located:
        """Return some of the segments, as if they were one row."""
        return Located.in_one_row(self.documents[chosen], self.starts[chosen], self.lengths[chosen])


class ShardRows(Protocol):
    """Rows of a shard, in the order in which they are written."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def located(self, first_row: int, last_row: int) -> Located:
        """Locate the segments of rows first_row..last_row - 1 in the source."""


class Shards(Protocol):
    """A plan: the rows of each shard. Can be pickled."""

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard; none is empty."""

    def shard(self, number: int) -> ShardRows:
        """Return the rows of a shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceRows:
    """Rows of pieces, written in any order."""

    pieces: NDArray[Any]
    """(segments,) array of PIECE."""

    starts: NDArray[np.int64]
    """(rows + 1,) row r holds pieces[starts[r]:starts[r + 1]]."""

    order: NDArray[np.int64]
    """(rows,) rows in the order in which they are written."""

    def __len__(self) -> int:
        return len(self.order)

    def located(self, first_row: int, last_row: int) -> Located:
        """Locate the segments of rows first_row..last_row - 1 in the source."""
        rows = self.order[first_row:last_row]
        depths = self.starts[rows + 1] - self.starts[rows]
        row_starts = np.concatenate([[0], np.cumsum(depths)]).astype(np.int64)
        # Piece i of these rows has the same distance from the start of its row in `pieces` as in the result.
        found = self.pieces[np.arange(row_starts[-1]) + np.repeat(self.starts[rows] - row_starts[:-1], depths)]
        return Located(
            documents=found["document"].astype(np.int64),
            starts=found["start"].astype(np.int64),
            lengths=found["length"].astype(np.int64),
            row_starts=row_starts,
        )


def pieces_of(documents: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return segments as an array of PIECE."""
    pieces = np.empty(len(documents), PIECE)
    pieces["document"], pieces["start"], pieces["length"] = documents, starts, lengths
    return pieces


def extents_of_pieces(pieces: NDArray[Any], align: int, *, paired: bool) -> NDArray[np.int32]:
    """Return the extent of each piece, or of each two adjacent pieces if they are paired: int32."""
    extents: NDArray[np.int32] = -(-pieces["length"] // align) * align if align > 1 else pieces["length"].copy()
    return extents.reshape(-1, 2).sum(axis=1, dtype=np.int32) if paired else extents
