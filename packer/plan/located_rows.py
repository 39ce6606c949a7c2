"""Plans: the rows of every shard, made of segments that are located in the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges
from packer.facts import PlanTotals
from packer.plan.segments import Segments, extents_of

PIECE = np.dtype([("document", "<i8"), ("start", "<i4"), ("length", "<i4")])
"""A segment in 16 bytes: its document, first token and number of tokens."""

_TOGETHER = 1 << 16  # segments that are located together


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedRows:
    """Consecutive rows, in the order in which they are written.

    Rows of 3 and 5 tokens and of 1 token: pieces [(7, 0, 3), (2, 0, 5), (7, 3, 1)] and row_starts [0, 2, 3].
    """

    pieces: NDArray[Any]
    """Shape (segments,): an array of PIECE, row by row; documents are numbered in the order that is packed."""

    row_starts: NDArray[np.int64]
    """Shape (rows + 1,): row r holds pieces[row_starts[r]:row_starts[r + 1]]; begins at 0."""

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    @classmethod
    def one_row(cls, pieces: NDArray[Any]) -> LocatedRows:
        """Return segments that do not form rows, as if they were one row."""
        return cls(pieces=pieces, row_starts=np.array([0, len(pieces)]))

    @property
    def documents(self) -> NDArray[np.int64]:
        """Document of each segment: shape (segments,)."""
        return self._values("document")

    @property
    def starts(self) -> NDArray[np.int64]:
        """First token of each segment in its document: shape (segments,)."""
        return self._values("start")

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each segment: shape (segments,)."""
        return self._values("length")

    def _values(self, name: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self.pieces[name].astype(np.int64)
        return values

    def part(self, first: int, last: int) -> LocatedRows:
        """Return rows first..last - 1."""
        row_starts = self.row_starts[first : last + 1]
        return LocatedRows(pieces=self.pieces[row_starts[0] : row_starts[-1]], row_starts=row_starts - row_starts[0])

    def reordered(self, order: NDArray[np.integer[Any]]) -> LocatedRows:
        """Return the rows in another order: row i becomes the one with number order[i]."""
        depths = np.diff(self.row_starts)[order]
        pieces = self.pieces[joined_ranges(self.row_starts[order], depths)]
        return LocatedRows(pieces=pieces, row_starts=np.concatenate([[0], np.cumsum(depths)]).astype(np.int64))


class ShardRows(Protocol):
    """Rows of a shard, all of them located or located when they are looked up."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def part(self, first: int, last: int) -> LocatedRows:
        """Return rows first..last - 1."""


class Plan(Protocol):
    """Which segments each row of each shard has. Can be pickled."""

    @property
    def totals(self) -> PlanTotals:
        """Totals for the manifest."""

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard; none is empty."""

    def rows(self, shard: int) -> ShardRows:
        """Make the rows of a shard, the same ones each time."""


def rows_of_plan(plan: Plan) -> Iterator[LocatedRows]:
    """Yield the rows of a plan, one shard after the other."""
    for shard in range(len(plan.shard_rows)):
        rows = plan.rows(shard)
        yield rows.part(0, len(rows))


def located_pieces(
    segments: Segments,
    numbers: NDArray[np.unsignedinteger[Any]] | NDArray[np.int64],
    ranges: NDArray[np.int64] | None = None,
) -> NDArray[Any]:
    """Locate segments by number: an array of PIECE.

    Args:
        segments: segments of the documents in these ranges.
        numbers: (segments,) segment numbers.
        ranges: (ranges, 2) first document of each range and the one after its last; None for the whole source.
    """
    pieces = np.empty(len(numbers), PIECE)
    for first in range(0, len(numbers), _TOGETHER):
        part = pieces[first : first + _TOGETHER]
        documents, part["start"], part["length"] = segments.locate(numbers[first : first + _TOGETHER])
        part["document"] = documents if ranges is None else documents_of(ranges, documents)
    return pieces


def documents_of(ranges: NDArray[np.int64], local: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Convert numbers within ranges to documents: ranges [[3, 5], [9, 11]], local [0, 2, 3] -> [3, 9, 10]."""
    counts = np.diff(ranges).reshape(-1)
    ends = np.cumsum(counts)
    of_range = np.searchsorted(ends, local, side="right")
    documents: NDArray[np.int64] = ranges[:, 0][of_range] + local - (ends - counts)[of_range]
    return documents


def joined_rows(parts: Iterable[LocatedRows]) -> LocatedRows:
    """Return rows, part after part; they are never held twice."""
    pieces, depths = bytearray(), [np.zeros(1, np.int64)]
    for part in parts:
        pieces += np.ascontiguousarray(part.pieces).view(np.uint8).data
        depths.append(np.diff(part.row_starts))
    return LocatedRows(pieces=np.frombuffer(pieces, PIECE), row_starts=np.cumsum(np.concatenate(depths)))


def pieces_of(
    documents: NDArray[np.int64], starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]
) -> NDArray[Any]:
    """Return segments as an array of PIECE."""
    pieces = np.empty(len(documents), PIECE)
    pieces["document"], pieces["start"], pieces["length"] = documents, starts, lengths
    return pieces


def extents_of_pieces(pieces: NDArray[Any], align: int, *, paired: bool) -> NDArray[np.int32]:
    """Return the extent of each piece, or of each two adjacent pieces if they are paired: int32."""
    extents: NDArray[np.int32] = extents_of(pieces["length"].copy(), align)
    return extents.reshape(-1, 2).sum(axis=1, dtype=np.int32) if paired else extents
