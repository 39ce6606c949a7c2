"""The plan of a histogram algorithm: a shard per partition, and shards of rows made of leftovers (the pool).

`note_rows`, `take_share`, `draw_rest`, `solve_rest` and `fill_rest` are pure functions of their arguments, the last of
which is the number of a partition or region. Any process can run them, and running one twice does no harm.

Rows of the pool differ from others: shorter segments, and padding. The numbers of its shards are spread evenly over all
numbers, so that a trainer that reads shards in order does not meet these rows all at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.optimal import prove
from packer.algorithms.patterns import Patterns, RowExtents
from packer.facts import PlanTotals
from packer.notes import Note, Notes
from packer.options import PackOptions
from packer.plan.apply_options import solve_histogram
from packer.plan.cutting import items_of
from packer.plan.partitions import Partitions
from packer.plan.permute import key_of, permute_all
from packer.plan.rows import (
    LocatedRows,
    both_of_each,
    drawn_rows,
    even_cuts,
    extents_of_pieces,
    joined_rows,
    located_pieces,
    place_rows,
    segments_left,
)
from packer.plan.segments import Segments
from packer.planning.packable_segments import SegmentReader
from packer.planning.pattern_shares import Share, Shares, even_share
from packer.planning.regions import PoolStage, Regions, load
from packer.random_purposes import POOL_ROWS

OWN_RESERVE = 1 / 256
"""Share of its tokens that a partition does not draw, so that its leftovers have about the lengths of the corpus."""

LAST_RESERVE = 0.02
"""Share of the tokens that drawing leaves to the solver, which then makes up for rows with padding."""


FEW_ROWS = 64
"""Drawing leaves LAST_RESERVE of the tokens of a region, but at least this many rows, or half of the tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionJob:
    """Everything that the rows of partitions depend on."""

    reader: SegmentReader
    """Reader of the documents."""

    partitions: Partitions
    """Documents of each partition."""

    options: PackOptions
    """Options of the pack."""

    most_rows: int
    """Largest number of rows of a partition."""

    patterns: Patterns | None = None
    """Global solution that is shared out to partitions; None if they draw their rows."""

    far: bool = False
    """Whether segments from anywhere in the order may close a row that is drawn."""

    def part(self, partition: int) -> Part:
        """Read the documents of a partition."""
        ranges = self.partitions.ranges(partition)
        segments = self.reader.segments(ranges)
        items = items_of(segments, pairs=self.options.pairs)
        return Part(ranges=ranges, segments=segments, extents=items.extents_of_numbers())

    def row_extents(self, part: Part, partition: int, share: Share | None) -> tuple[RowExtents, NDArray[np.int64]]:
        """Make the rows of a partition as extents, and the histogram of the items left over.

        Args:
            part: documents of the partition.
            partition: number of the partition.
            share: packs that the partition takes of the patterns; None for all packs, or if rows are drawn.
        """
        options = self.options
        if self.patterns is not None:
            given, packs = (None, None) if share is None else (share.given, share.packs)
            rows = RowExtents.of_patterns(self.patterns, given, packs)
            left = np.bincount(part.extents, minlength=options.max_len + 1)
            left -= np.bincount(rows.extents, minlength=options.max_len + 1)
            return rows, left
        is_only = len(self.partitions) == 1
        rows, left = drawn_rows(
            part.extents,
            options.max_len,
            options.max_items,
            reserve=LAST_RESERVE if is_only else OWN_RESERVE,
            far=self.far,
            most_rows=None if is_only else self.most_rows,
            seed=options.seed,
            stream=partition,
        )
        if is_only and left.any():
            rows, left = rows + RowExtents.of_patterns(solve_histogram(options, left)), np.zeros_like(left)
        return rows, left

    def rows(self, partition: int, share: Share | None) -> LocatedRows:
        """Make the rows of a partition; the arguments are those of `row_extents`."""
        part = self.part(partition)
        rows, _ = self.row_extents(part, partition, share)
        placed, _ = place_rows(part.extents, rows, self.options.max_len, seed=self.options.seed, stream=partition)
        return (placed.of_pairs() if self.options.pairs else placed).located(part.segments, part.ranges)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Documents of a partition."""

    ranges: NDArray[np.int64]
    """Shape (ranges, 2): first document of each range, and the one after its last."""

    segments: Segments
    """Segments of the documents, numbered within the partition."""

    extents: NDArray[np.int32]
    """Shape (items,): extent of every segment, or pair of segments; 0 for a number without one."""


def note_rows(job: PartitionJob, shares: Shares | None, partition: int) -> Note:
    """Count the rows that a partition makes, and note the pieces that it leaves over.

    Args:
        job: job that makes the rows.
        shares: packs that partitions take of the patterns; None if rows are drawn.
        partition: number of the partition.
    """
    part = job.part(partition)
    rows, left = job.row_extents(part, partition, None if shares is None else shares.share(partition))
    numbers = segments_left(part.extents, left, job.options.max_len, seed=job.options.seed, stream=partition)
    if job.options.pairs:
        numbers = both_of_each(numbers)
    return Note(facts={"rows": len(rows)}, arrays={"left": located_pieces(part.segments, numbers, part.ranges)})


def take_share(job: PartitionJob, partition: int) -> Note:
    """Take an even share of the patterns, and note it with the histogram of the segments left over."""
    assert job.patterns is not None
    extents = job.part(partition).extents
    histogram = np.bincount(extents, minlength=job.options.max_len + 1)
    histogram[0] = 0
    share = even_share(
        histogram,
        job.patterns,
        partition=partition,
        partitions=len(job.partitions),
        most_rows=job.most_rows,
        seed=job.options.seed,
    )
    return Note(facts={"rows": share.rows}, arrays=share.arrays())


def draw_rest(options: PackOptions, below: Regions, first_stream: int, region: int, *, far: bool) -> Note:
    """Draw rows from the leftovers in a region; note the rows and the pieces that are still left.

    Args:
        options: options of the pack.
        below: stage whose tasks left pieces over.
        first_stream: random stream of region 0, after those of the stages below.
        region: number of the region.
        far: whether segments from anywhere in the order may close a row.
    """
    pieces = _left_in(below, region)
    extents = extents_of_pieces(pieces, options.align, paired=options.pairs)
    share = min(0.5, FEW_ROWS * options.max_len / max(1, int(extents.sum(dtype=np.int64))))
    stream = first_stream + region
    rows, _ = drawn_rows(
        extents,
        options.max_len,
        options.max_items,
        reserve=max(LAST_RESERVE, share),
        far=far,
        seed=options.seed,
        stream=stream,
    )
    return _rows_of_pieces(options, pieces, extents, rows, stream)


def solve_rest(options: PackOptions, below: Regions, first_stream: int, region: int, *, proves: bool = False) -> Note:
    """Pack all leftovers in a region by the algorithm, and note the rows.

    Args:
        options: options of the pack.
        below: stage whose tasks left pieces over.
        first_stream: random stream of region 0, after those of the stages below.
        region: number of the region.
        proves: solve with `prove`, which also tries to save a single row, instead of the algorithm in the options.
    """
    pieces = _left_in(below, region)
    extents = extents_of_pieces(pieces, options.align, paired=options.pairs)
    rows = RowExtents(extents=np.zeros(0, np.int32), starts=np.zeros(1, np.int64))
    if len(extents):
        histogram = np.bincount(extents, minlength=options.max_len + 1)
        solved = prove(histogram, options.max_items) if proves else solve_histogram(options, histogram)
        rows = RowExtents.of_patterns(solved)
    return _rows_of_pieces(options, pieces, extents, rows, first_stream + region)


def fill_rest(
    options: PackOptions, patterns: Patterns, shares: str, below: Regions, first_stream: int, region: int
) -> Note:
    """Fill the packs that a region takes with its leftovers; note the rows and the pieces that are still left.

    Args:
        options: options of the pack.
        patterns: global solution.
        shares: stage that noted the packs of each region; see `share_with_regions`.
        below: stage whose tasks left pieces over.
        first_stream: random stream of region 0, after those of the stages below.
        region: number of the region.
    """
    share = load(below.notes, f"{shares}-{region}")
    pieces = _left_in(below, region)
    extents = extents_of_pieces(pieces, options.align, paired=options.pairs)
    rows = RowExtents.of_patterns(patterns, share.arrays["given"], share.arrays["packs"])
    return _rows_of_pieces(options, pieces, extents, rows, first_stream + region)


def _left_in(below: Regions, region: int) -> NDArray[Any]:
    """Return the pieces that the tasks of a region left over, task by task: an array of PIECE."""
    return np.concatenate([note.arrays["left"] for note in below.notes_of(region)])


def _rows_of_pieces(
    options: PackOptions, pieces: NDArray[Any], extents: NDArray[np.int32], rows: RowExtents, stream: int
) -> Note:
    """Deal pieces to rows, and note the rows and the pieces left over."""
    placed, left = place_rows(extents, rows, options.max_len, seed=options.seed, stream=stream)
    if options.pairs:
        placed, left = placed.of_pairs(), both_of_each(left)
    arrays = {"pieces": pieces[placed.numbers], "row_starts": placed.row_starts, "left": pieces[left]}
    return Note(facts={"rows": len(rows)}, arrays=arrays)


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
