"""The plan of a histogram algorithm: a shard per partition, and shards of rows made of leftovers (the pool).

Rows of the pool differ from others: shorter segments, and padding. The numbers of its shards are spread evenly over all
numbers, so that a trainer that reads shards in order does not meet these rows all at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.facts import PlanTotals
from packer.notes import Notes
from packer.pipeline.partitions.partition_tasks import PartitionJob
from packer.pipeline.partitions.pattern_shares import Shares
from packer.pipeline.partitions.regions import PoolStage, load
from packer.plan.located_rows import LocatedRows, joined_rows
from packer.plan.permute import key_of, permute_all
from packer.plan.whole_plan import even_cuts
from packer.random_purposes import POOL_ROWS


def spread_numbers(pool: int, shards: int) -> NDArray[np.int64]:
    """Return the numbers of the shards of the pool, spread evenly over those of all shards: 2 of 7 -> 1 and 5."""
    numbers: NDArray[np.int64] = (2 * np.arange(pool) + 1) * shards // (2 * max(1, pool))
    return numbers


class PoolPart(NamedTuple):
    """Rows begin..end - 1 of the note of a region."""

    stage: PoolStage
    region: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionPlan:
    """Shards of partitions, with those of the pool among them. Can be pickled: notes are read when a shard is made."""

    job: PartitionJob
    """Job that makes the rows of a partition."""

    notes: Notes
    """Store of the notes with the rows of the pool."""

    own_rows: NDArray[np.int64]
    """Shape (partitions,): rows that each partition makes of its own documents."""

    shares: Shares | None
    """Packs that each partition takes of the patterns; None if rows are drawn, or if there is one partition."""

    stages: tuple[PoolStage, ...]
    """Stages that made rows of leftovers, in order."""

    totals: PlanTotals
    """Totals for the manifest."""

    @property
    def pool_rows(self) -> NDArray[np.int64]:
        """Rows in each note of these stages: shape (notes of the pool,)."""
        return np.concatenate([np.zeros(0, np.int64), *(stage.rows for stage in self.stages)])

    @property
    def pool(self) -> tuple[str, ...]:
        """Names of the notes with rows made of leftovers, in order."""
        return tuple(name for stage in self.stages for name in stage.names)

    @property
    def shard_rows(self) -> list[int]:
        """Rows of each shard; none is empty."""
        own, pool = self.own_rows[self.own_rows > 0], np.diff(self._pool_cuts)
        rows: list[int] = np.insert(own, self.pool_numbers - np.arange(len(pool)), pool).tolist()
        return rows

    @property
    def pool_numbers(self) -> NDArray[np.int64]:
        """Numbers of the shards of the pool, ascending; the other shards are those of partitions, in order."""
        pool = len(self._pool_cuts) - 1
        return spread_numbers(pool, pool + int(np.count_nonzero(self.own_rows)))

    @property
    def _pool_cuts(self) -> list[int]:
        """First row of each shard of the pool, counted through its notes, and the end of the last."""
        return even_cuts(self.totals.pool_rows, self.job.most_rows)

    def is_of_pool(self, number: int) -> bool:
        """Whether a shard is one of the pool."""
        return bool(np.isin(number, self.pool_numbers))

    def partition_of(self, number: int) -> int:
        """Return the partition of a shard, which must not be one of the pool."""
        return int(np.flatnonzero(self.own_rows)[number - np.searchsorted(self.pool_numbers, number)])

    def rows(self, shard: int) -> LocatedRows:
        """Make the rows of a shard."""
        if self.is_of_pool(shard):
            return self._rows_of_pool(shard)
        partition = self.partition_of(shard)
        return self.job.rows(partition, None if self.shares is None else self.shares.share(partition))

    def pool_shards(self, stage: PoolStage, region: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard of each of these rows of a region."""
        first = int(self.pool_rows[: self.pool.index(stage.names[region])].sum())
        return self.pool_numbers[np.searchsorted(self._pool_cuts, first + rows, side="right") - 1]

    def pool_parts(self, number: int) -> list[PoolPart]:
        """Return the rows that a shard of the pool has, which are consecutive: the part in each note, in order."""
        turn = int(np.searchsorted(self.pool_numbers, number))
        first, last = self._pool_cuts[turn : turn + 2]
        regions = [(stage, region) for stage in self.stages for region in range(len(stage.below))]
        parts = []
        for (stage, region), rows in zip(regions, self.pool_rows.tolist(), strict=True):
            begin, end = max(first, 0), min(last, rows)
            if begin < end:
                parts.append(PoolPart(stage, region, begin, end))
            first, last = first - rows, last - rows
        return parts

    def _rows_of_pool(self, number: int) -> LocatedRows:
        """Make the rows of a shard of the pool: rows of consecutive notes, in random order."""

        def noted(part: PoolPart) -> LocatedRows:
            arrays = load(self.notes, part.stage.names[part.region]).arrays
            return LocatedRows(pieces=arrays["pieces"], row_starts=arrays["row_starts"]).part(part.begin, part.end)

        rows = joined_rows(map(noted, self.pool_parts(number)))
        order = np.arange(len(rows), dtype=np.uint32)  # the type of segment numbers, so that it is compiled only once
        permute_all(order, key_of(self.job.options.seed, POOL_ROWS, int(np.searchsorted(self.pool_numbers, number))))
        return rows.reordered(order)
