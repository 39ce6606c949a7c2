"""The plan of a pack in which every partition makes its own rows: which way, and how many.

    partitions ──own rows──▶ what is left ──by region──▶ what is left again ──▶ solved as a whole

Rows are drawn at random where that takes no more rows than the solver needs; elsewhere partitions take their share of
the solver's patterns. Every step is a list of tasks that leave notes, so that an interrupted plan goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import Algorithm, get_algorithm
from packer.algorithms.bounds import lower_bound
from packer.algorithms.patterns import Patterns
from packer.notes import Note, Notes, run_stage
from packer.options import PackOptions
from packer.pipeline.apply_options import solve_histogram
from packer.pipeline.partition_rows import (
    PartitionJob,
    draw_rest,
    note_rows,
    read_left,
    rows_of_pieces,
    solve_rest,
    take_share,
)
from packer.pipeline.reading import SegmentReader
from packer.pipeline.surveying import Survey
from packer.plan.deal import even_cuts
from packer.plan.partitions import make_partitions
from packer.plan.permute import POOL_ROWS, key_of, permute_all
from packer.plan.pieces import PieceRows, ShardRows, extents_of_pieces
from packer.plan.rows import RowExtents
from packer.plan.shares import Share, further_share
from packer.progress import Progress, silent

REGION = 256
"""Partitions whose leftovers are packed together before the last rest is."""

WORTH = 1e-5
"""Rows above the solver's, as a share of them, that drawn rows may cost; one row is always allowed."""

MOST_SEGMENTS = 1 << 20
"""Segments of a partition, about, at most: a worker holds some 20 bytes of each. Where documents have a few tokens,
shards are smaller than they may be."""

HOPELESS = 0.005
"""The same of the first partition alone, from which on drawing is given up at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionPlan:
    """Where the rows of every shard come from: first those of partitions, then those of the pool."""

    job: PartitionJob
    """Makes the rows of a partition."""

    own_rows: NDArray[np.int64]
    """Shape (partitions,): rows that each partition makes of its own documents."""

    shares: tuple[Share, ...] | None
    """What each partition takes of the patterns; None where rows are drawn, or there is one partition."""

    pool: tuple[Note, ...]
    """Rows of what partitions left over, in order."""

    lower_bound: int
    """Rows that no packing goes below."""

    @property
    def pool_packs(self) -> int:
        """Rows in the pool."""
        return sum(note.facts["rows"] for note in self.pool)

    @property
    def packs(self) -> int:
        """All rows."""
        return int(self.own_rows.sum()) + self.pool_packs

    @property
    def shard_rows(self) -> list[int]:
        """Rows of each shard; none is empty."""
        own = self.own_rows[self.own_rows > 0].tolist()
        return [*own, *np.diff(even_cuts(0, self.pool_packs, self.job.most_rows)).tolist()]

    def shard(self, number: int) -> ShardRows:
        """The rows of a shard."""
        partitions = np.flatnonzero(self.own_rows)
        if number < len(partitions):
            partition = int(partitions[number])
            return self.job.shard(partition, None if self.shares is None else self.shares[partition])
        return self._pool_shard(number - len(partitions))

    def _pool_shard(self, number: int) -> ShardRows:
        """A shard of the pool: rows of some notes, which follow each other, in random order."""
        cuts = even_cuts(0, self.pool_packs, self.job.most_rows)
        first, last = cuts[number : number + 2]
        order = np.arange(last - first)
        permute_all(order, key_of(self.job.options.seed, POOL_ROWS, number))
        pieces, depths = [], []
        for note in self.pool:
            rows = note.facts["rows"]
            begin, end = max(first, 0), min(last, rows)
            if begin < end:
                row_starts = note.arrays["row_starts"]
                pieces.append(note.arrays["pieces"][row_starts[begin] : row_starts[end]])
                depths.append(np.diff(row_starts[begin : end + 1]))
            first, last = first - rows, last - rows
        starts = np.concatenate([[0], np.cumsum(np.concatenate(depths))]).astype(np.int64)
        return PieceRows(pieces=np.concatenate(pieces), starts=starts, order=order)


def plan_partitions(
    reader: SegmentReader,
    surveyed: Survey,
    options: PackOptions,
    *,
    rows_per_shard: int,
    notes: Notes,
    workers: int = 1,
    progress: Progress = silent,
) -> PartitionPlan:
    """Plan the rows of all documents by a histogram algorithm.

    Args:
        reader: the documents.
        surveyed: what `survey` said of them.
        options: what shapes the rows.
        rows_per_shard: the most rows of a shard; fewer where those would have more than MOST_SEGMENTS segments.
        notes: where tasks leave theirs; what is there already is not done again.
        workers: tasks at a time; the plan is the same for any number.
        progress: called with "plan" and the tasks that are done.
    """
    algorithm = get_algorithm(options.algorithm)
    assert isinstance(algorithm, Algorithm)
    bound = lower_bound(surveyed.histogram, options.max_items)
    patterns = None
    if not algorithm.always_draws:
        patterns = _solved(surveyed, options, notes)
        bound = max(bound, patterns.lower_bound)
    packs = bound if patterns is None else patterns.packs
    held = max(surveyed.segments, surveyed.account.documents)
    rows_per_shard = max(1, min(rows_per_shard, packs * MOST_SEGMENTS // held))
    planner = _Planner(
        reader=reader, surveyed=surveyed, options=options, rows_per_shard=rows_per_shard, notes=notes,
        workers=workers, progress=progress, lower_bound=bound,
    )  # fmt: skip
    if algorithm.draws:
        drawn = planner.drawn(packs, None if patterns is None else max(packs + 1, int(packs * (1 + WORTH))))
        if drawn is not None:
            return drawn
    assert patterns is not None
    return planner.by_patterns(patterns)


def _solved(surveyed: Survey, options: PackOptions, notes: Notes) -> Patterns:
    """The solution for all documents; kept, because one that a time limit ends may be another the next time."""
    note = notes.load("solved")
    if note is None:
        patterns = solve_histogram(options, surveyed.histogram)
        arrays: dict[str, NDArray[Any]] = {
            "offsets": patterns.offsets,
            "extents": patterns.extents,
            "counts": patterns.counts,
        }
        notes.save("solved", Note(facts={"lower_bound": patterns.lower_bound}, arrays=arrays), lasting=True)
        return patterns
    return Patterns(
        offsets=np.array(note.arrays["offsets"]),
        extents=np.array(note.arrays["extents"]),
        counts=np.array(note.arrays["counts"]),
        lower_bound=note.facts["lower_bound"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planner:
    """What both ways of planning share; the attributes are the arguments of `plan_partitions`."""

    reader: SegmentReader
    surveyed: Survey
    options: PackOptions
    rows_per_shard: int
    notes: Notes
    workers: int
    progress: Progress
    lower_bound: int

    def job(self, partitions: int, patterns: Patterns | None) -> PartitionJob:
        """A job with so many partitions."""
        return PartitionJob(
            reader=self.reader,
            partitions=make_partitions(self.surveyed.blocks, partitions, seed=self.options.seed),
            options=self.options,
            most_rows=self.rows_per_shard,
            patterns=patterns,
        )

    def run(
        self, stage: str, count: int, task: Callable[[int], Note], *, first: int = 0, told: bool = True
    ) -> NDArray[np.int64]:
        """Run the tasks first..count-1 of a stage; the rows that each made, int64, shape (count - first,)."""
        progress = self.progress if told else silent
        rows = np.zeros(count - first, np.int64)
        numbers = range(first, count)
        for number, facts in run_stage(self.notes, stage, numbers, task, workers=self.workers, progress=progress):
            rows[number - first] = facts["rows"]
        return rows

    def load(self, name: str) -> Note:
        """The note of a task that has run."""
        note = self.notes.load(name)
        assert note is not None
        return note

    def drawn(self, packs: int, allowed: int | None) -> PartitionPlan | None:
        """Draw the rows; None where that takes more than are allowed.

        Args:
            packs: rows that there will be, about.
            allowed: rows that there may be; None for any number.
        """
        job = self.job(-(-packs // self.rows_per_shard), None)
        count = len(job.partitions)
        stage = f"drawn-{count}"
        own = self.run(stage, 1, lambda partition: note_rows(job, partition), told=count == 1)
        if count == 1 and own[0] > self.rows_per_shard:
            return self.drawn(int(own[0]), allowed)
        if count > 1 and allowed is not None and self._is_hopeless(job, self.load(f"{stage}-0")):
            return None
        own = np.concatenate([own, self.run(stage, count, lambda partition: note_rows(job, partition), first=1)])
        pool = self._drawn_pool(stage, count) if count > 1 else ()
        plan = PartitionPlan(job=job, own_rows=own, shares=None, pool=pool, lower_bound=self.lower_bound)
        return None if allowed is not None and plan.packs > allowed else plan

    def _drawn_pool(self, stage: str, partitions: int) -> tuple[Note, ...]:
        """Draw rows of what the partitions of each region left, and solve what is left of that."""
        regions = -(-partitions // REGION)

        def draw_region(region: int) -> Note:
            first, last = region * REGION, min((region + 1) * REGION, partitions)
            names = [f"{stage}-{partition}" for partition in range(first, last)]
            return draw_rest(self.options, self.notes, names, stream=partitions + region)

        self.run(f"{stage}-region", regions, draw_region, told=False)
        names = [f"{stage}-region-{region}" for region in range(regions)]
        stream = partitions + regions
        self.run(f"{stage}-rest", 1, lambda _: solve_rest(self.options, self.notes, names, stream=stream), told=False)
        return (*map(self.load, names), self.load(f"{stage}-rest-0"))

    def _is_hopeless(self, job: PartitionJob, note: Note) -> bool:
        """Whether the first partition alone needs many more rows drawn than solved."""
        extents = job.part(0).extents
        histogram = np.bincount(extents, minlength=self.options.max_len + 1)
        histogram[0] = 0
        left = extents_of_pieces(note.arrays["left"], self.options.align, paired=self.options.pairs)
        rows = int(note.facts["rows"])
        if len(left):
            rows += solve_histogram(self.options, np.bincount(left, minlength=self.options.max_len + 1)).packs
        least = lower_bound(histogram, self.options.max_items)
        return (
            rows > least * (1 + HOPELESS) + 1
            and rows > solve_histogram(self.options, histogram).packs * (1 + HOPELESS) + 1
        )

    def by_patterns(self, patterns: Patterns) -> PartitionPlan:
        """Share out the solver's patterns; what partitions cannot fill is filled from all that they leave."""
        job = self.job(-(-patterns.packs // self.rows_per_shard), patterns)
        count = len(job.partitions)
        if count == 1:
            own = np.array([patterns.packs], np.int64)
            return PartitionPlan(job=job, own_rows=own, shares=None, pool=(), lower_bound=self.lower_bound)
        self.run(f"share-{count}", count, lambda partition: take_share(job, partition))
        shares, left = self._further_shares(patterns, count)
        own = self.run(f"left-{count}", count, lambda partition: note_rows(job, partition, shares[partition]))

        def fill_pool(_: int) -> Note:
            pieces = read_left(self.notes, [f"left-{count}-{partition}" for partition in range(count)])
            extents = extents_of_pieces(pieces, self.options.align, paired=self.options.pairs)
            given = np.flatnonzero(left).astype(np.int32)
            rows = RowExtents.of_patterns(patterns, given, left[given])
            return rows_of_pieces(self.options, pieces, extents, rows, stream=count)

        self.run(f"pool-{count}", 1, fill_pool, told=False)
        pool = (self.load(f"pool-{count}-0"),) if left.any() else ()
        return PartitionPlan(job=job, own_rows=own, shares=tuple(shares), pool=pool, lower_bound=self.lower_bound)

    def _further_shares(self, patterns: Patterns, count: int) -> tuple[list[Share], NDArray[np.int64]]:
        """Give every partition, in turn, what it still fills; the shares, and packs of each pattern nobody took."""
        notes = [self.load(f"share-{count}-{partition}") for partition in range(count)]
        left = patterns.counts.copy()
        for note in notes:
            left[note.arrays["given"]] -= note.arrays["packs"]
        histogram = np.zeros(self.options.max_len + 1, np.int64)
        shares = []
        for note in notes:
            histogram[:] = 0
            histogram[note.arrays["left_extents"]] = note.arrays["left_counts"]
            share = Share(given=note.arrays["given"], packs=note.arrays["packs"], left=histogram)
            share = further_share(share, patterns, left, most_rows=self.rows_per_shard)
            shares.append(replace(share, left=np.zeros(0, np.int64)))  # not held for every partition
        return shares, left
