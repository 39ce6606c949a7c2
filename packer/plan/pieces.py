"""Segments by themselves, apart from the documents around them: what partitions leave over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

PIECE = np.dtype([("document", "<i8"), ("start", "<i4"), ("length", "<i4")])
"""A segment: the number of its document, the token it starts at, its tokens. 16 bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """Consecutive rows, as where each of their segments is in the source."""

    documents: NDArray[np.int64]
    """Shape (segments,): the document of each, in the order that is packed."""

    starts: NDArray[np.int64]
    """Shape (segments,): the token it starts at."""

    lengths: NDArray[np.int64]
    """Shape (segments,): its tokens."""

    row_starts: NDArray[np.int64]
    """Shape (rows + 1,): row r holds the segments row_starts[r] to row_starts[r + 1] - 1; begins at 0."""


class ShardRows(Protocol):
    """The rows of a shard, in the order in which they are written."""

    def __len__(self) -> int:
        """The number of rows."""

    def located(self, first_row: int, last_row: int) -> Located:
        """Look up where the segments of rows first_row..last_row-1 are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceRows:
    """Rows of pieces, in an order of their own."""

    pieces: NDArray[Any]
    """(segments,) an array of PIECE."""

    starts: NDArray[np.int64]
    """(rows + 1,) row r holds pieces[starts[r]:starts[r + 1]]."""

    order: NDArray[np.int64]
    """(rows,) the row that is written first, the one after it, and so on."""

    def __len__(self) -> int:
        return len(self.order)

    def located(self, first_row: int, last_row: int) -> Located:
        """Look up where the segments of rows first_row..last_row-1 are."""
        rows = self.order[first_row:last_row]
        depths = self.starts[rows + 1] - self.starts[rows]
        row_starts = np.concatenate([[0], np.cumsum(depths)]).astype(np.int64)
        # piece i of all is the i-th behind the start of its row
        found = self.pieces[np.arange(row_starts[-1]) + np.repeat(self.starts[rows] - row_starts[:-1], depths)]
        return Located(
            documents=found["document"].astype(np.int64),
            starts=found["start"].astype(np.int64),
            lengths=found["length"].astype(np.int64),
            row_starts=row_starts,
        )


def pieces_of(documents: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Segments as an array of PIECE."""
    pieces = np.empty(len(documents), PIECE)
    pieces["document"], pieces["start"], pieces["length"] = documents, starts, lengths
    return pieces


def extents_of_pieces(pieces: NDArray[Any], align: int, *, paired: bool) -> NDArray[np.int32]:
    """The place that each piece takes, or where they are pairs each two of them: int32."""
    extents: NDArray[np.int32] = -(-pieces["length"] // align) * align if align > 1 else pieces["length"].copy()
    return extents.reshape(-1, 2).sum(axis=1, dtype=np.int32) if paired else extents
