"""The tasks of a plan by partitions: rows of a partition, and of the leftovers in a region.

A plan is a tree of tasks. Those of the first stage pack the documents of partitions, and those of each later one the
leftovers of a region of the stage below. A task is a pure function of its number, so any process can run it, and
running it twice does no harm; its checkpoint has the pieces that it leaves over.

The plan (`PartitionPlan`) has shards of each partition, and shards of rows made of leftovers (the pool). Rows of the
pool differ from others: shorter segments, and padding. The numbers of its shards are spread evenly over all numbers, so
that a trainer that reads shards in order does not meet these rows all at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges
from packer.algorithms.mixed import draw_rows
from packer.algorithms.patterns import Patterns, Rows
from packer.algorithms.permute import DRAWING, POOL_ROWS, key_of, permute_all
from packer.engines.checkpoints import Checkpoint, Checkpoints
from packer.json_records import PlanTotals
from packer.options import PackOptions
from packer.plan.cutting import SegmentReader
from packer.plan.partitions import Partitions
from packer.plan.pattern_shares import PatternShares, even_share
from packer.plan.rows import (
    even_cuts,
    extents_of_pieces,
    located,
    located_pieces,
    place_rows,
    segments_left,
    solve_histogram,
)
from packer.plan.segments import Segments
from packer.shards.located_rows import LocatedRows

OWN_RESERVE, OWN_FEW_ROWS = 1 / 256, 256
"""Share of its tokens that a partition leaves over, a random sample. The share is larger, up to a tenth, if all
partitions together would leave less than OWN_FEW_ROWS rows."""


LAST_RESERVE = 0.02
"""Share of the tokens that drawing leaves to the solver, whose rows are tighter."""


FEW_ROWS = 64
"""Smallest number of rows that drawing leaves to the solver, up to half of the tokens."""


Method: TypeAlias = "Literal['draw', 'solve'] | PatternShares"
"""How rows of leftovers are made: drawn, by the algorithm, or from shares of the algorithm's patterns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A finished stage. Region r of the next stage packs the leftovers of tasks r * size to (r + 1) * size - 1."""

    checkpoints: Checkpoints
    name: str

    rows: NDArray[np.int64]
    """Shape (tasks,): number of rows that each task made."""

    size: int
    """Tasks per region; the last region may have fewer."""

    @property
    def regions(self) -> int:
        """Number of regions."""
        return -(-len(self.rows) // self.size)

    def numbers(self, region: int) -> range:
        """Return the tasks of a region."""
        return range(region * self.size, min((region + 1) * self.size, len(self.rows)))

    def checkpoint(self, number: int) -> Checkpoint:
        """Load the checkpoint of a task."""
        return self.checkpoints.read(f"{self.name}-{number}")

    def left_in(self, region: int) -> NDArray[Any]:
        """Return the pieces that the tasks of a region left over, task by task: an array of PIECE."""
        checkpoints = self.checkpoints.read_all([f"{self.name}-{number}" for number in self.numbers(region)])
        return np.concatenate([checkpoint.arrays["left"] for checkpoint in checkpoints])


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionJob:
    """Everything that the rows of partitions and regions depend on."""

    reader: SegmentReader
    partitions: Partitions

    most_rows: int
    """Largest number of rows that a partition makes."""

    patterns: Patterns | None = None
    """Global solution that is shared out to partitions; None if they draw their rows."""

    far: bool = False
    """Whether segments from anywhere in the order may close a row that is drawn."""

    @property
    def options(self) -> PackOptions:
        """Options of the pack."""
        return self.reader.options

    def documents(self, partition: int) -> tuple[Segments, NDArray[np.int32]]:
        """Read the segments of a partition, and the extent of each by number; 0 for a number without one."""
        segments = self.reader.segments(self.partitions.ranges(partition))
        return segments, segments.extents()

    def own_rows(
        self, extents: NDArray[np.int32], partition: int, shares: PatternShares | None
    ) -> tuple[Rows, NDArray[np.int64]]:
        """Make the rows of a partition, whose segments have these extents, and the histogram of those left over.

        `shares` has what partitions take of the patterns; without it, the only partition takes all, or rows are drawn.
        """
        if self.patterns is not None:
            rows = self.patterns.rows() if shares is None else self._shared(shares, partition)
            return rows, self.histogram(extents) - self.histogram(rows.values)
        is_only = len(self.partitions) == 1
        reserve, most_rows = (self._last_reserve(extents), None) if is_only else (self._own_reserve, self.most_rows)
        rows, left = self._drawn(extents, reserve, partition, most_rows)
        if is_only and left.any():
            rows, left = Rows.joined([rows, self._solved(left)]), np.zeros_like(left)
        return rows, left

    def rows_of_rest(self, extents: NDArray[np.int32], method: Method, region: int, stream: int) -> Rows:
        """Make rows of the leftovers in a region."""
        if isinstance(method, PatternShares):
            return self._shared(method, region)
        if method == "draw":
            return self._drawn(extents, self._last_reserve(extents), stream)[0]
        return self._solved(self.histogram(extents))

    def histogram(self, extents: NDArray[np.int32]) -> NDArray[np.int64]:
        """Count segments by extent: shape (max_len + 1,)."""
        histogram = np.bincount(extents, minlength=self.options.max_len + 1)
        histogram[0] = 0
        return histogram

    def _drawn(
        self, extents: NDArray[np.int32], reserve: float, stream: int, most_rows: int | None = None
    ) -> tuple[Rows, NDArray[np.int64]]:
        """Draw rows that are exactly full from segments in random order; leave at least the share `reserve` of tokens.

        Returns the rows, and the histogram of what is left over. Each partition or region has a random stream.
        """
        max_len, order = self.options.max_len, extents[extents > 0]
        # The type of segment numbers, so that it is compiled only once.
        permute_all(order.view(np.uint32), key_of(self.options.seed, DRAWING, stream))
        total = int(order.sum(dtype=np.int64))
        least = 0 if most_rows is None else total - most_rows * max_len
        reserved = max(int(total * reserve), least)
        return draw_rows(order, max_len, self.options.max_segments, reserve=reserved, far=self.far)

    @property
    def _own_reserve(self) -> float:
        """Share of its tokens that a partition leaves to regions."""
        return max(OWN_RESERVE, min(0.1, OWN_FEW_ROWS / (self.most_rows * len(self.partitions))))

    def _last_reserve(self, extents: NDArray[np.int32]) -> float:
        """Return the share of the tokens that drawing leaves to the solver."""
        few = FEW_ROWS * self.options.max_len / max(1, int(extents.sum(dtype=np.int64)))
        return max(LAST_RESERVE, min(0.5, few))

    def _solved(self, histogram: NDArray[np.int64]) -> Rows:
        if not histogram.any():
            return Rows(values=np.zeros(0, np.int32), row_starts=np.zeros(1, np.int64))
        return solve_histogram(self.options, histogram).rows()

    def _shared(self, shares: PatternShares, number: int) -> Rows:
        assert self.patterns is not None
        return self.patterns.rows(*shares.of(number))


def pack_partition(job: PartitionJob, shares: PatternShares | None, partition: int) -> Checkpoint:
    """Count the rows that a partition makes, and save the pieces that it leaves over."""
    segments, extents = job.documents(partition)
    rows, left = job.own_rows(extents, partition, shares)
    numbers = segments_left(extents, left, job.options.max_len, seed=job.options.seed, stream=partition)
    left_over = located_pieces(segments, numbers)
    return Checkpoint(facts={"rows": len(rows)}, arrays={"left": left_over})


def take_share(job: PartitionJob, partition: int) -> Checkpoint:
    """Take an even share of the patterns, and save it with the histogram of the segments left over."""
    assert job.patterns is not None
    share = even_share(
        job.histogram(job.documents(partition)[1]),
        job.patterns,
        partition=partition,
        partitions=len(job.partitions),
        most_rows=job.most_rows,
        seed=job.options.seed,
    )
    return Checkpoint(facts={"rows": share.rows}, arrays=share.arrays())


def pack_leftovers(job: PartitionJob, method: Method, below: Stage, first_stream: int, region: int) -> Checkpoint:
    """Make rows of the leftovers in a region; save the rows and the pieces that are still left.

    `first_stream` is the random stream of region 0, after those of the stages below.
    """
    options, stream, pieces = job.options, first_stream + region, below.left_in(region)
    extents = extents_of_pieces(pieces, options.align)
    rows = job.rows_of_rest(extents, method, region, stream)
    placed, left = place_rows(extents, rows, options.max_len, seed=options.seed, stream=stream)
    arrays = {"pieces": pieces[placed.values], "row_starts": placed.row_starts, "left": pieces[left]}
    return Checkpoint(facts={"rows": len(rows)}, arrays=arrays)


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
        return located(placed, segments)

    def pool_shards(self, region: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard of each of these rows of a region of partitions."""
        first = int(self.stages[1].rows[:region].sum())
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
