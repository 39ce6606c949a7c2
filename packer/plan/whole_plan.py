"""A plan that is held in memory as a whole, because no partition can plan its documents alone: groups and limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.facts import PlanTotals
from packer.plan.located_rows import LocatedRows
from packer.plan.rows import PlacedRows
from packer.plan.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class WholePlan:
    """Rows of all shards."""

    placed: PlacedRows
    """Rows of all shards, one shard after the other."""

    segments: Segments
    """Segments that the rows hold."""

    rows_per_shard: int
    """Largest number of rows of a shard."""

    totals: PlanTotals
    """Totals for the manifest."""

    @property
    def _cuts(self) -> list[int]:
        return even_cuts(len(self.placed), self.rows_per_shard)

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard; none is empty."""
        rows: list[int] = np.diff(self._cuts).tolist()
        return rows

    def rows(self, shard: int) -> LocatedRows:
        """Locate the rows of a shard."""
        return self.placed.part(*self._cuts[shard : shard + 2]).located(self.segments)


def even_cuts(rows: int, rows_per_shard: int) -> list[int]:
    """Return where shards of about the same size begin, and where the last ends: 7, 3 -> 0, 2, 4, 7."""
    shards = -(-rows // rows_per_shard)
    return [0, *(rows * (shard + 1) // shards for shard in range(shards))]
