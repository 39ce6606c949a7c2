"""Plan the rows of a histogram algorithm: blocks of documents are dealt to partitions, which are packed separately.

    source ──blocks──▶ partitions ──rows drawn, the rest solved──▶ shards

A block is a run of consecutive documents that are read together. A partition is a random set of blocks, and therefore a
sample of the corpus, whatever the order of the source. No row has documents of two partitions, so a shard needs only
the documents of its own partition.

The plan of a partition is a task, and a pure function of its number; with `mixed`, the first partition decides how all
are drawn. Its checkpoint records how the rows are made (`Mix`); the task that writes a shard makes the rows of its
partition again. A plan holds 24 bytes for each block: 24 MB for 250 billion tokens in documents of 2,048 tokens or
more, and 190 MB for a billion shorter documents.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.algorithms.bounds import lower_bound
from packer.algorithms.jit import jit_if_large
from packer.algorithms.mixed import Mix, mix
from packer.algorithms.optimal import WORK
from packer.algorithms.patterns import Patterns
from packer.algorithms.permute import BLOCKS, DRAWING, key_of, permute, permute_all, stream_key
from packer.engines.checkpoints import Checkpoint, Checkpoints, make_checkpoint, run_stage
from packer.json_records import Account, PlanTotals
from packer.options import PackOptions
from packer.plan.rows import Planning, even_cuts, located, place_rows, solve_histogram
from packer.plan.segments import SegmentReader, Segments, each_chunk, require_segments
from packer.shards.located_rows import LocatedRows

PARTITION_TOKENS = 64_000_000
"""Approximate number of tokens in a partition; rows are mixed only within a partition. Smaller shards are parts of a
partition; a larger shard is a separate partition."""

MOST_SEGMENTS = 1 << 20
"""Approximate maximum number of segments in a partition; a worker holds about 20 bytes for each. If documents are very
short, shards are therefore smaller than `shard_size`."""

BLOCK_PLACE = 1 << 18
"""Number of tokens per block: 1 MiB of int32."""

BLOCK_DOCUMENTS = 1 << 7
"""Maximum number of documents in a block. A block of a source that is sorted by length may have documents of one length
alone. With larger blocks, some partitions have too many of them, and too few documents that fit beside them.

Wikipedia's lengths at 512, sorted, with at most 3 segments in a row, need 0.08% more rows than packed all at once if
blocks have 1,024 documents, and 0.003% with 128. In random order, they need 0.006%."""

BLOCKS_PER_PARTITION = 256
"""Minimum number of blocks in a partition, so that even a small partition is a sample of the corpus."""

WORK_OF_PARTITION = 10_000_000
"""Work limit of the solver for each of several partitions, half a second; see `packer.algorithms.optimal.Limits`. A
single partition gets more, because one row matters more there."""

MOST_LENGTHS = 1280
"""Maximum number of lengths for which a partition's linear program begins with the patterns of all documents. With more
lengths, solving coarse programs first takes less work."""

SPARE = 1 / 64
"""Share of a shard's rows that is left free. Partitions are not exactly equal, and a partition with more rows than a
shard would become two shards."""


def plan_partitions(planning: Planning, surveyed: Survey) -> PartitionPlan:
    """Plan the rows of all documents by a histogram algorithm.

    Partitions, and shards larger than partitions, have fewer rows if they would exceed MOST_SEGMENTS.
    """
    options, histogram = planning.reader.options, surveyed.histogram
    algorithm = get_algorithm(options.algorithm)
    bound = lower_bound(histogram, options.max_segments)

    # Choose the number of partitions. The number of drawn rows is close to the bound.
    solved = None if algorithm.draws else _solved(planning, histogram)
    packs = bound if solved is None else solved.packs
    held = max(surveyed.segments, surveyed.account.documents)
    most = max(1, packs * MOST_SEGMENTS // held)
    per_shard, per_partition = min(planning.rows_per_shard, most), min(_rows_per_partition(planning), most)
    count = 1 if packs <= per_partition else -int(-packs // (per_partition * (1 - SPARE)))

    # If a linear program proved a higher bound, each partition begins with its patterns.
    has_few_lengths = int(np.count_nonzero(histogram)) <= MOST_LENGTHS
    if count > 1 and has_few_lengths and not algorithm.always_draws:
        solved = solved or _solved(planning, histogram)
    is_start = has_few_lengths and solved is not None and (algorithm.continues or solved.lower_bound > bound)

    # Plan the partitions.
    job = PartitionJob(
        reader=planning.reader,
        partitions=make_partitions(surveyed.block_starts, count, seed=options.seed),
        checkpoints=planning.checkpoints,
        name=f"partitions-{count}",
        solved=solved,
        is_start=is_start,
    )
    if algorithm.always_draws:  # the first partition decides how all are drawn
        make_checkpoint(planning.checkpoints, f"{job.name}-0", partial(job.plan, 0), planning.engine, lasting=True)
    facts = run_stage(
        planning.checkpoints, job.name, count, job.plan, engine=planning.engine, progress=planning.progress
    )
    rows = np.array([facts[partition]["rows"] for partition in range(count)], np.int64)

    # Prove a bound for the documents of all partitions together.
    if count == 1:
        bound = max(bound, facts[0]["lower_bound"])
    elif algorithm.proves and not algorithm.always_draws and rows.sum() > bound:
        bound = max(bound, (solved or _solved(planning, histogram)).lower_bound)
    totals = PlanTotals.of(
        surveyed.account, max_len=options.max_len, segments=surveyed.segments, rows=int(rows.sum()), lower_bound=bound
    )
    return PartitionPlan.of(job, rows, per_shard, totals)


def _solved(planning: Planning, histogram: NDArray[np.int64]) -> Patterns:
    """Solve the histogram of all documents once. Versions of HiGHS find different solutions, so the result is saved."""

    def solve() -> Checkpoint:
        return _saved(_by_patterns(solve_histogram(planning.reader.options, histogram)))

    return _mix_in(make_checkpoint(planning.checkpoints, "solved", solve, planning.engine, lasting=True)).rest


def _by_patterns(patterns: Patterns) -> Mix:
    """Return a `Mix` that makes all rows from patterns."""
    return Mix(drawn=0, far=False, rest=patterns, lower_bound=patterns.lower_bound)


_FACTS = ("drawn", "far", "share", "lower_bound")  # facts of a checkpoint that are fields of `Mix`


def _saved(mix: Mix) -> Checkpoint:
    """Return the checkpoint that records how rows are made."""
    facts = {"rows": mix.packs, **{name: getattr(mix, name) for name in _FACTS}}
    rest = mix.rest
    arrays: dict[str, NDArray[Any]] = {"offsets": rest.offsets, "extents": rest.extents, "counts": rest.counts}
    if rest.values is not None:
        arrays["values"] = rest.values
    return Checkpoint(facts=facts, arrays=arrays)


def _mix_in(checkpoint: Checkpoint) -> Mix:
    """Return the `Mix` that `_saved` recorded."""
    facts = {name: checkpoint.facts[name] for name in _FACTS}
    arrays = {name: array.copy() for name, array in checkpoint.arrays.items()}
    return Mix(rest=Patterns(**arrays, lower_bound=facts["lower_bound"]), **facts)


def _rows_per_partition(planning: Planning) -> int:
    """Return the target number of rows per partition: whole shards with about PARTITION_TOKENS in total."""
    tokens = planning.rows_per_shard * planning.reader.options.max_len
    return planning.rows_per_shard * max(1, round(PARTITION_TOKENS / tokens))


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionJob:
    """Everything that determines the rows of partitions. Can be pickled."""

    reader: SegmentReader
    partitions: Partitions
    checkpoints: Checkpoints

    name: str
    """Name of the stage. The checkpoint of partition 3 is "NAME-3"."""

    solved: Patterns | None = None
    """Patterns of all documents, if known."""

    is_start: bool = False
    """Whether the solver of each partition begins with these patterns."""

    @property
    def options(self) -> PackOptions:
        """Options of the pack."""
        return self.reader.options

    def plan(self, partition: int) -> Checkpoint:
        """Decide how the rows of a partition are made."""
        options, algorithm, solved = self.options, get_algorithm(self.options.algorithm), self.solved
        _, extents = self._documents(partition)
        start = solved if self.is_start else None
        if not algorithm.draws or not extents.any():
            histogram = np.bincount(extents, minlength=options.max_len + 1)
            histogram[0] = 0
            patterns = solved if len(self.partitions) == 1 else None
            return _saved(_by_patterns(patterns or solve_histogram(options, histogram, start)))
        is_led = algorithm.always_draws and partition > 0
        return _saved(
            mix(
                self._order(extents, partition),
                options.max_len,
                options.max_segments,
                always_draws=algorithm.always_draws,
                work=WORK if len(self.partitions) == 1 else WORK_OF_PARTITION,
                first=_mix_in(self.checkpoints.read(f"{self.name}-0")) if is_led else None,
                start=start,
                values=None if solved is None else solved.values,
            )
        )

    def rows(self, partition: int) -> LocatedRows:
        """Make the rows of a partition from its checkpoint."""
        options, (segments, extents) = self.options, self._documents(partition)
        rows = self.patterns(partition).rows()
        return located(place_rows(extents, rows, options.max_len, seed=options.seed, stream=partition), segments)

    def patterns(self, partition: int) -> Patterns:
        """Return the extents of the rows of a partition from its checkpoint."""
        options, made = self.options, _mix_in(self.checkpoints.read(f"{self.name}-{partition}"))
        order = self._order(self._documents(partition)[1], partition) if made.drawn else np.zeros(0, np.int32)
        return made.patterns(order, options.max_len, options.max_segments)

    def _documents(self, partition: int) -> tuple[Segments, NDArray[np.int32]]:
        """Read the segments of a partition, and the extent of each segment number (0: no such segment)."""
        segments = self.reader.segments(self.partitions.ranges(partition))
        return segments, segments.extents()

    def _order(self, extents: NDArray[np.int32], partition: int) -> NDArray[np.int32]:
        """Return the extents of a partition's segments in the order in which they are drawn."""
        order = extents[extents > 0]
        # View as the dtype of segment numbers, so that the kernel is compiled only once.
        permute_all(order.view(np.uint32), key_of(self.options.seed, DRAWING, partition))
        return order


class _LatestRows:
    """Rows of the last partition that was made; the next shard is probably a part of it. Pickling drops them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partition = -1
        self._rows: LocatedRows | None = None

    def of(self, partition: int, make: Callable[[int], LocatedRows]) -> LocatedRows:
        """Return the rows of a partition. Other threads that need them wait until they are made."""
        with self._lock:
            if self._rows is None or self._partition != partition:
                self._rows, self._partition = make(partition), partition
            return self._rows

    def __reduce__(self) -> tuple[type[_LatestRows], tuple[()]]:
        return _LatestRows, ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionPlan:
    """Shards of partitions, in order. Can be pickled: a shard's partition is read from its checkpoint when needed."""

    job: PartitionJob
    totals: PlanTotals

    shard_starts: NDArray[np.int64]
    """First row of each shard, plus the number of rows; shape (shards + 1,)."""

    partition_starts: NDArray[np.int64]
    """First row of each partition, plus the number of rows; shape (partitions + 1,)."""

    _latest: _LatestRows = field(default_factory=_LatestRows, compare=False, repr=False)

    @classmethod
    def of(cls, job: PartitionJob, rows: NDArray[np.int64], rows_per_shard: int, totals: PlanTotals) -> PartitionPlan:
        """Divide each partition into shards of at most `rows_per_shard` rows. `rows` has the number of rows of each."""
        starts = np.append(0, np.cumsum(rows))
        cuts = [start + even_cuts(count, rows_per_shard)[:-1] for start, count in zip(starts, rows, strict=False)]
        return cls(job=job, totals=totals, shard_starts=np.concatenate([*cuts, starts[-1:]]), partition_starts=starts)

    @property
    def gives_tokens(self) -> bool:
        """Whether `patterns` gives the tokens of whole documents: none is split, and extents are not aligned."""
        return self.job.options.align == 1 and not self.totals.documents_split

    def patterns(self) -> Iterator[Patterns]:
        """Yield the extents of the rows of each partition, without choosing their documents."""
        return map(self.job.patterns, range(len(self.job.partitions)))

    def rows(self, shard: int) -> LocatedRows:
        """Make the rows of a shard."""
        begin, end = self.shard_starts[shard : shard + 2].tolist()
        partition = int(np.searchsorted(self.partition_starts, begin, side="right")) - 1
        first, last = self.partition_starts[partition : partition + 2].tolist()
        if (begin, end) == (first, last):
            return self.job.rows(partition)
        return self._latest.of(partition, self.job.rows).part(begin - first, end - first)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Counts over all documents, without data per document."""

    account: Account

    segments: int
    """Number of segments; all of them are placed in rows."""

    histogram: NDArray[np.int64]
    """Number of segments of every extent; shape (max_len + 1,)."""

    block_starts: NDArray[np.int64]
    """First document of each block, plus the number of documents; shape (blocks + 1,). Blocks have about equal numbers
    of tokens."""


def survey(planning: Planning) -> Survey:
    """Survey all documents, chunk by chunk. A block is a fraction of a partition.

    Raises a SourceError if there is nothing to pack, and in the cases of `reader.segments`.
    """
    options = planning.reader.options
    target = max(1, min(BLOCK_PLACE, _rows_per_partition(planning) * options.max_len // BLOCKS_PER_PARTITION))
    histogram = np.zeros(options.max_len + 1, np.int64)
    account, starts, documents, places = None, [np.zeros(1, np.int64)], 0, 0
    for chunk in each_chunk(planning.reader, Segments.places_of_documents, planning.engine.workers):
        account = chunk.account if account is None else account + chunk.account
        histogram += chunk.histogram
        # A block ends with the document that reaches a multiple of the target.
        sums = places + np.cumsum(np.maximum(chunk.values, target // BLOCK_DOCUMENTS), dtype=np.int64)
        multiples = np.arange(places // target + 1, int(sums[-1]) // target + 1) * target
        starts.append(documents + 1 + np.searchsorted(sums, multiples))
        documents, places = documents + len(sums), int(sums[-1])
    segments = int(histogram.sum())
    account = require_segments(account, segments, options)
    block_starts = np.unique(np.concatenate([*starts, [documents]]))
    return Survey(account=account, segments=segments, histogram=histogram, block_starts=block_starts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitions:
    """Blocks dealt to partitions at random, about equally many to each. With few blocks, some partitions are empty."""

    starts: NDArray[np.int64]
    """Block b has the documents starts[b] to starts[b + 1] - 1; shape (blocks + 1,)."""

    order: NDArray[np.int64]
    """Blocks of the first partition, ascending, then the blocks of the second, and so on; shape (blocks,)."""

    cuts: NDArray[np.int64]
    """Partition p has the blocks order[cuts[p]:cuts[p + 1]]; shape (partitions + 1,)."""

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def ranges(self, partition: int) -> NDArray[np.int64]:
        """Return the documents of a partition as ascending ranges (first, last + 1): int64, shape (ranges, 2).

        Adjacent blocks are one range.
        """
        blocks = self.order[self.cuts[partition] : self.cuts[partition + 1]]
        is_first = np.diff(blocks, prepend=-2) > 1
        is_last = np.diff(blocks, append=len(self.starts) + 1) > 1
        return np.stack([self.starts[blocks[is_first]], self.starts[blocks[is_last] + 1]], axis=1)


def make_partitions(starts: NDArray[np.int64], partitions: int, *, seed: int) -> Partitions:
    """Deal blocks to partitions at random, so that each partition is a sample of the whole source.

    Every run of as many adjacent blocks as there are partitions gives one block to each partition. If the source is
    sorted by length, date or origin, partitions are therefore more alike than with an arbitrary permutation.
    """
    owners = np.empty(len(starts) - 1, np.int64)
    _deal_blocks(np.empty(partitions, np.uint32), np.uint64(seed), owners)
    cuts = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=partitions))]).astype(np.int64)
    return Partitions(starts=starts, order=np.argsort(owners, kind="stable"), cuts=cuts)


@jit_if_large
def _deal_blocks(out_turns: NDArray[np.uint32], seed: np.uint64, out: NDArray[np.int64]) -> None:
    """Write the partition of each block: a permutation of all partitions for every run of that many blocks.

    `out_turns`, shape (partitions,), is scratch space.
    """
    turns, partitions = out_turns, len(out_turns)
    for first in range(0, len(out), partitions):
        for partition in range(partitions):
            turns[partition] = partition
        permute(turns, 0, partitions, np.uint64(stream_key(seed, BLOCKS, first)))
        for block in range(first, min(first + partitions, len(out))):
            out[block] = turns[block - first]
