"""Plan the rows of a histogram algorithm: partitions pack their own documents, and regions pack the leftovers.

    partitions ──own rows──▶ leftovers ──regions──▶ leftovers ──regions of regions──▶ ... ──▶ solved as a whole

Rows are drawn at random if that takes no more rows than the solver needs. Otherwise partitions take shares of the
solver's patterns. Every step is a list of tasks that leave checkpoints, from which an interrupted plan continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.algorithms.bounds import lower_bound
from packer.algorithms.mixed import NEAR
from packer.algorithms.patterns import Patterns
from packer.engines.checkpoints import Checkpoint, make_checkpoint, run_stage
from packer.json_records import Account, PlanTotals
from packer.options import PackOptions
from packer.plan.cutting import Planning, each_chunk, require_segments
from packer.plan.partition_tasks import (
    Method,
    PartitionJob,
    PartitionPlan,
    Stage,
    pack_leftovers,
    pack_partition,
    take_share,
)
from packer.plan.partitions import BLOCK_PLACE, BLOCKS_PER_PARTITION, BlockMarker, make_partitions
from packer.plan.pattern_shares import PatternShares, saved_shares
from packer.plan.rows import extents_of_pieces, solve_histogram
from packer.plan.segments import Segments
from packer.progress import silent

REGION = 256
"""Partitions per region, and regions per region of the level above: a task reads at most this many checkpoints."""

PARTITION_TOKENS = 64_000_000
"""Approximate size of a partition, which decides how well rows are mixed: smaller shards are parts of a partition, and
a larger one is a partition of its own."""

MOST_SEGMENTS = 1 << 20
"""Approximate limit on the segments of a partition; a worker holds about 20 bytes for each. With very short documents,
shards are smaller than `shard_size`."""

MOST_ADDED = 0.005
"""Drawing with `far` is given up if it adds more than this share of rows in the first partition; without, if it adds
any."""


def plan_partitions(planning: Planning, surveyed: Survey) -> PartitionPlan:
    """Plan the rows of all documents by a histogram algorithm.

    Partitions, and shards if they are larger, have fewer rows to keep to MOST_SEGMENTS.
    """
    options = planning.reader.options
    algorithm = get_algorithm(options.algorithm)
    bound = lower_bound(surveyed.histogram, options.max_segments)
    patterns = None
    if not algorithm.always_draws:
        patterns = _solved(planning, surveyed.histogram)
        bound = max(bound, patterns.lower_bound)
    packs = bound if patterns is None else patterns.packs
    held = max(surveyed.segments, surveyed.account.documents)
    most = max(1, packs * MOST_SEGMENTS // held)
    planner = _Planner(
        planning=planning,
        surveyed=surveyed,
        rows_per_shard=min(planning.rows_per_shard, most),
        rows_per_partition=min(rows_per_partition(planning), most),
        lower_bound=bound,
    )
    if algorithm.draws:
        drawn = planner.drawn(packs, packs, far=False)
        if drawn is None and (patterns is None or surveyed.segments > NEAR):
            drawn = planner.drawn(packs, None if patterns is None else packs, far=True)
        if drawn is not None:
            return drawn
    assert patterns is not None
    return planner.by_patterns(patterns)


def _solved(planning: Planning, histogram: NDArray[np.int64]) -> Patterns:
    """Solve the histogram of all documents once; another version of HiGHS may give another solution."""

    def solve() -> Checkpoint:
        patterns = solve_histogram(planning.reader.options, histogram)
        arrays: dict[str, NDArray[Any]] = {name: getattr(patterns, name) for name in ("offsets", "extents", "counts")}
        return Checkpoint(facts={"lower_bound": patterns.lower_bound}, arrays=arrays)

    checkpoint = make_checkpoint(planning.checkpoints, "solved", solve, planning.engine, lasting=True)
    return Patterns(**{name: array.copy() for name, array in checkpoint.arrays.items()}, **checkpoint.facts)


def rows_per_partition(planning: Planning) -> int:
    """Return the rows that a partition is to have: those of as many shards as have about PARTITION_TOKENS."""
    tokens = planning.rows_per_shard * planning.reader.options.max_len
    return planning.rows_per_shard * max(1, round(PARTITION_TOKENS / tokens))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planner:
    """Plans by drawing or by patterns."""

    planning: Planning
    surveyed: Survey
    rows_per_shard: int
    rows_per_partition: int
    lower_bound: int

    @property
    def options(self) -> PackOptions:
        """Options of the pack."""
        return self.planning.reader.options

    def job(self, packs: int, patterns: Patterns | None = None, *, far: bool = False) -> PartitionJob:
        """Return the job with as many partitions as this number of rows needs."""
        partitions = -(-packs // self.rows_per_partition)
        return PartitionJob(
            reader=self.planning.reader,
            partitions=make_partitions(self.surveyed.block_starts, partitions, seed=self.options.seed),
            most_rows=self.rows_per_partition,
            patterns=patterns,
            far=far,
        )

    def run(self, name: str, count: int, task: Callable[[int], Checkpoint], *, silently: bool = False) -> Stage:
        """Run the tasks of a stage whose checkpoints do not exist yet; return the stage."""
        progress = silent if silently else self.planning.progress
        found = run_stage(
            self.planning.checkpoints, name, range(count), task, engine=self.planning.engine, progress=progress
        )
        rows = np.array([found[number]["rows"] for number in range(count)], np.int64)
        return Stage(checkpoints=self.planning.checkpoints, name=name, rows=rows, size=REGION)

    def drawn(self, packs: int, allowed: int | None, *, far: bool) -> PartitionPlan | None:
        """Draw the rows, about `packs`; return None if that takes more rows than allowed.

        With `far`, segments from anywhere in the order may close a row; see `packer.algorithms.mixed`.
        """
        job = self.job(packs, far=far)
        count = len(job.partitions)
        name, task = f"drawn-{'far-' if far else ''}{count}", partial(pack_partition, job, None)
        own = self.run(name, 1, task, silently=count > 1)
        if count == 1:
            plan = self.plan(job, None, [own])
        else:
            if allowed is not None and self._adds_too_many(job, own.checkpoint(0)):
                return None
            stages = [self.run(name, count, task)]
            while stages[-1].regions > 1 or len(stages) == 1:
                stages.append(self.pack_rest(f"{name}-level{len(stages)}", job, "draw", stages))
            plan = self.plan(job, None, [*stages, self.pack_rest(f"{name}-rest", job, "solve", stages)])
        return None if allowed is not None and plan.totals.rows > allowed else plan

    def pack_rest(self, name: str, job: PartitionJob, method: Method, stages: Sequence[Stage]) -> Stage:
        """Run a task for each region of the last stage, which makes rows of its leftovers."""
        below, stream = stages[-1], sum(len(stage.rows) for stage in stages)
        return self.run(name, below.regions, partial(pack_leftovers, job, method, below, stream), silently=True)

    def _adds_too_many(self, job: PartitionJob, checkpoint: Checkpoint) -> bool:
        """Whether drawing needs many more rows than solving in the first partition alone."""
        histogram = job.histogram(job.documents(0)[1])
        left = extents_of_pieces(checkpoint.arrays["left"], self.options.align)
        rows = int(checkpoint.facts["rows"])
        if len(left):
            rows += solve_histogram(self.options, job.histogram(left)).packs
        factor = 1 + MOST_ADDED * job.far
        least = lower_bound(histogram, self.options.max_segments)
        return rows > least * factor + 1 and rows > solve_histogram(self.options, histogram).packs * factor + 1

    def by_patterns(self, patterns: Patterns) -> PartitionPlan:
        """Share out the packs of patterns to partitions, and those that no partition can fill to regions."""
        job = self.job(patterns.packs, patterns)
        count, max_len = len(job.partitions), self.options.max_len
        if count == 1:
            only = Stage(checkpoints=self.planning.checkpoints, name="", rows=np.array([patterns.packs]), size=REGION)
            return self.plan(job, None, [only])
        even, checkpoints = f"share-{count}", self.planning.checkpoints
        self.run(even, count, partial(take_share, job))
        left: NDArray[np.int64] = patterns.counts.copy()
        for share in saved_shares(checkpoints, even, count, max_len):
            left[share.given] -= share.packs
        own = PatternShares(checkpoints=checkpoints, name=f"further-{count}", size=REGION, even=even)
        before = saved_shares(checkpoints, even, count, max_len)
        regions = own.deal(before, patterns, left, max_len=max_len, most_rows=self.rows_per_partition)
        stages, shares = [self.run(f"left-{count}", count, partial(pack_partition, job, own))], own
        while left.any():
            name = f"pool-{count}" if regions == 1 else f"pool-{count}-level{len(stages)}"
            before = saved_shares(checkpoints, shares.name, regions, max_len)
            shares = PatternShares(checkpoints=checkpoints, name=f"{name}-shares", size=REGION)
            regions = shares.deal(before, patterns, left, max_len=max_len)
            stages.append(self.pack_rest(name, job, shares, stages))
        return self.plan(job, own, stages)

    def plan(self, job: PartitionJob, shares: PatternShares | None, stages: Sequence[Stage]) -> PartitionPlan:
        """Return the plan whose rows these stages have made."""
        own, *pool = (int(stage.rows.sum()) for stage in stages)
        totals = PlanTotals.of(
            self.surveyed.account,
            max_len=self.options.max_len,
            segments=self.surveyed.segments,
            rows=own + sum(pool),
            pool_rows=sum(pool),
            lower_bound=self.lower_bound,
        )
        return PartitionPlan(
            job=job, rows_per_shard=self.rows_per_shard, shares=shares, stages=tuple(stages), totals=totals
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Counts of all documents, with nothing for each of them."""

    account: Account

    segments: int
    """Number of segments, which are all placed in rows."""

    histogram: NDArray[np.int64]
    """(max_len + 1,) segments of every extent."""

    block_starts: NDArray[np.int64]
    """(blocks + 1,) where runs of documents start that take about the same number of places in rows, and the end."""


def survey(planning: Planning) -> Survey:
    """Survey all documents, chunk by chunk. A block is a fraction of a partition.

    Raises a SourceError if there is nothing to pack, and as `reader.segments` does.
    """
    options = planning.reader.options
    target = max(1, min(BLOCK_PLACE, rows_per_partition(planning) * options.max_len // BLOCKS_PER_PARTITION))
    marker = BlockMarker(target)
    histogram = np.zeros(options.max_len + 1, np.int64)
    account = None
    for chunk in each_chunk(planning.reader, Segments.places_of_documents, planning.engine.workers):
        account = chunk.account if account is None else account + chunk.account
        histogram += chunk.histogram
        marker.add(chunk.values)
    segments = int(histogram.sum())
    account = require_segments(account, segments, options)
    return Survey(account=account, segments=segments, histogram=histogram, block_starts=marker.finish())
