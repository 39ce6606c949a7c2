"""A plan that is held in memory as a whole: which segment goes to which row of which shard.

Only groups of documents, kept together or apart, are planned like this, because no partition can plan them alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.plan.pieces import Located, ShardRows
from packer.plan.rows import RowExtents, place_rows
from packer.plan.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Which segment goes to which row of which shard, in the order on disk.

    Rows 0 and 1 of one shard, [7, 2] and [5]: shard_rows [0, 2], row_starts [0, 2, 3], slots [7, 2, 5].
    """

    shard_rows: NDArray[np.int64]
    """Shape (shards + 1,): shard s holds rows shard_rows[s]..shard_rows[s + 1] - 1; no shard is empty."""

    row_starts: NDArray[np.int64]
    """Shape (packs + 1,): row r holds slots[row_starts[r]:row_starts[r + 1]]."""

    slots: NDArray[np.uint32] | NDArray[np.int64]
    """Shape (segments,): segment numbers (see `Segments`), row by row; each number with tokens occurs once."""

    pool_packs: int
    """Rows whose segments come from the pool of leftovers."""

    @property
    def packs(self) -> int:
        """Number of rows."""
        return len(self.row_starts) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedShards:
    """Shards of a plan that is held as a whole."""

    plan: Plan
    segments: Segments

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard; none is empty."""
        rows: list[int] = np.diff(self.plan.shard_rows).tolist()
        return rows

    def shard(self, number: int) -> ShardRows:
        """Return the rows of a shard."""
        first, last = self.plan.shard_rows[number : number + 2]
        return _PlannedRows(plan=self.plan, segments=self.segments, first=int(first), last=int(last))


@dataclass(frozen=True, kw_only=True, slots=True)
class _PlannedRows:
    """Rows first..last - 1 of a plan."""

    plan: Plan
    segments: Segments
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    def located(self, first_row: int, last_row: int) -> Located:
        """Locate the segments of rows first_row..last_row - 1 in the source."""
        row_starts = self.plan.row_starts[self.first + first_row : self.first + last_row + 1]
        documents, starts, lengths = self.segments.locate(self.plan.slots[row_starts[0] : row_starts[-1]])
        return Located(documents=documents, starts=starts, lengths=lengths, row_starts=row_starts - row_starts[0])


def deal(segments: Segments, patterns: Patterns, *, rows_per_shard: int, seed: int) -> Plan:
    """Fill the rows of patterns with all segments.

    Args:
        segments: segments to place, as made by `cut_documents`.
        patterns: packs of exactly the histogram of `segments`.
        rows_per_shard: largest number of rows of a shard.
        seed: seed of all permutations, 0 to 2**64 - 1; another seed gives another packing with as many rows.
    """
    extents = segments.extents_of_numbers()
    placed = place_rows(extents, RowExtents.of_patterns(patterns), segments.max_len, seed=seed, stream=0)
    return Plan(
        shard_rows=np.array(even_cuts(0, patterns.packs, rows_per_shard), np.int64),
        row_starts=placed.row_starts,
        slots=placed.slots,
        pool_packs=patterns.packs if patterns.packs > rows_per_shard else 0,
    )


def even_cuts(first_row: int, rows: int, rows_per_shard: int) -> list[int]:
    """Return where shards of about the same size begin, and where the last ends: 0, 7, 3 -> 0, 2, 4, 7."""
    shards = -(-rows // rows_per_shard)
    return [first_row, *(first_row + rows * (shard + 1) // shards for shard in range(shards))]
