"""The plan of a histogram algorithm: shards of each partition, and shards of rows made of leftovers (the pool).

Rows of the pool differ from others: shorter segments, and padding. The numbers of its shards are spread evenly over all
numbers, so that a trainer that reads shards in order does not meet these rows all at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges
from packer.checkpoints import Checkpoints
from packer.manifest_fields import PlanTotals
from packer.permute import key_of, permute_all
from packer.plan.partition_tasks import PartitionJob, Stage
from packer.plan.pattern_shares import PatternShares
from packer.plan.rows import (
    LocatedRows,
    even_cuts,
    place_rows,
)
from packer.random_purposes import POOL_ROWS


class RowRange(NamedTuple):
    """Rows begin..end - 1 of a task of stage number `level`: of a partition at level 0, otherwise of a region."""

    level: int
    number: int
    begin: int
    end: int


class _LatestRows:
    """Rows of the partition that was made last, of which the next shard is probably a part, too. Pickled without it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partition = -1
        self._rows: LocatedRows | None = None

    def of(self, partition: int, make: Callable[[int], LocatedRows]) -> LocatedRows:
        """Return the rows of a partition; other threads that need them wait until they are made."""
        with self._lock:
            if self._rows is None or self._partition != partition:
                self._rows, self._partition = make(partition), partition
            return self._rows

    def __reduce__(self) -> tuple[type[_LatestRows], tuple[()]]:
        return _LatestRows, ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionPlan:
    """Shards of partitions, with those of the pool among them. Can be pickled: a shard reads checkpoints when made."""

    job: PartitionJob

    rows_per_shard: int
    """Largest number of rows of a shard. A partition that has more is divided into several shards."""

    shares: PatternShares | None
    """Packs that each partition takes of the patterns; None if rows are drawn, or if there is one partition."""

    stages: tuple[Stage, ...]
    """The stage of partitions, and those that made rows of leftovers, in order."""

    totals: PlanTotals

    _latest: _LatestRows = field(default_factory=_LatestRows, compare=False, repr=False)

    @property
    def checkpoints(self) -> Checkpoints:
        """Store of the checkpoints."""
        return self.stages[0].checkpoints

    @property
    def own_rows(self) -> NDArray[np.int64]:
        """Rows that each partition makes of its own documents: shape (partitions,)."""
        return self.stages[0].rows

    @property
    def shard_rows(self) -> list[int]:
        """Rows of each shard; none is empty."""
        shards = self._own_shards
        turns, of = joined_ranges(np.zeros_like(shards), shards), np.repeat(shards, shards)
        own = np.repeat(self.own_rows, shards)
        own, pool = own * (turns + 1) // of - own * turns // of, np.diff(self._pool_cuts)
        rows: list[int] = np.insert(own, self.pool_numbers - np.arange(len(pool)), pool).tolist()
        return rows

    @property
    def _own_shards(self) -> NDArray[np.int64]:
        """Number of shards of each partition: shape (partitions,)."""
        return -(-self.own_rows // self.rows_per_shard)

    @property
    def pool_numbers(self) -> NDArray[np.int64]:
        """Numbers of the shards of the pool, ascending and spread evenly: of 2 and 7 shards in all, 1 and 5.

        The other shards are those of partitions, in order.
        """
        pool = len(self._pool_cuts) - 1
        shards = pool + int(self._own_shards.sum())
        numbers: NDArray[np.int64] = (2 * np.arange(pool) + 1) * shards // (2 * max(1, pool))
        return numbers

    @property
    def _pool_cuts(self) -> list[int]:
        """First row of each shard of the pool, counted through its checkpoints, and the end of the last."""
        return even_cuts(self.totals.pool_rows, self.rows_per_shard)

    def is_of_pool(self, number: int) -> bool:
        """Whether a shard is one of the pool."""
        return bool(np.isin(number, self.pool_numbers))

    def own_part(self, number: int) -> RowRange:
        """Return the rows of a shard that is not one of the pool: a part of a partition."""
        turn = number - int(np.searchsorted(self.pool_numbers, number))
        ends = np.cumsum(self._own_shards)
        partition = int(np.searchsorted(ends, turn, side="right"))
        cuts = even_cuts(int(self.own_rows[partition]), self.rows_per_shard)
        turn -= int(ends[partition]) - (len(cuts) - 1)
        return RowRange(0, partition, cuts[turn], cuts[turn + 1])

    def rows(self, shard: int) -> LocatedRows:
        """Make the rows of a shard."""
        if self.is_of_pool(shard):
            return self._rows_of_pool(shard)
        _, partition, begin, end = self.own_part(shard)
        if end - begin == self.own_rows[partition]:
            return self._rows_of_partition(partition)
        return self._latest.of(partition, self._rows_of_partition).part(begin, end)

    def _rows_of_partition(self, partition: int) -> LocatedRows:
        options = self.job.options
        segments, extents = self.job.documents(partition)
        rows, _ = self.job.own_rows(extents, partition, self.shares)
        placed, _ = place_rows(extents, rows, options.max_len, seed=options.seed, stream=partition)
        return LocatedRows.of(placed, segments)

    def pool_shards(self, level: int, region: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard of each of these rows of a region."""
        before = [*(stage.rows for stage in self.stages[1:level]), self.stages[level].rows[:region]]
        first = sum(int(each.sum()) for each in before)
        return self.pool_numbers[np.searchsorted(self._pool_cuts, first + rows, side="right") - 1]

    def pool_parts(self, number: int) -> list[RowRange]:
        """Return the rows that a shard of the pool has, which are consecutive: the part in each region, in order."""
        turn = int(np.searchsorted(self.pool_numbers, number))
        first, last = self._pool_cuts[turn : turn + 2]
        parts = []
        for level, stage in enumerate(self.stages[1:], start=1):
            for region, rows in enumerate(stage.rows.tolist()):
                begin, end = max(first, 0), min(last, rows)
                if begin < end:
                    parts.append(RowRange(level, region, begin, end))
                first, last = first - rows, last - rows
        return parts

    def _rows_of_pool(self, number: int) -> LocatedRows:
        """Make the rows of a shard of the pool: rows of consecutive checkpoints, in random order."""

        def saved(part: RowRange) -> LocatedRows:
            arrays = self.stages[part.level].checkpoint(part.number).arrays
            return LocatedRows(values=arrays["pieces"], row_starts=arrays["row_starts"]).part(part.begin, part.end)

        rows = LocatedRows.joined(map(saved, self.pool_parts(number)))
        order = np.arange(len(rows), dtype=np.uint32)  # the type of segment numbers, so that it is compiled only once
        permute_all(order, key_of(self.job.options.seed, POOL_ROWS, int(np.searchsorted(self.pool_numbers, number))))
        return rows.chosen(order)
