"""The rows that a partition makes of its own documents.

`note_rows` and `take_share` are tasks: pure functions of a job and a number, which any process can run, twice if need
be. A job can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.notes import Note
from packer.options import PackOptions
from packer.pipeline.apply_options import solve_histogram
from packer.pipeline.pattern_shares import Shares
from packer.pipeline.segment_reader import SegmentReader, documents_of
from packer.plan import Segments, items_of
from packer.plan.partitions import Partitions
from packer.plan.pieces import Located, ShardRows, pieces_of
from packer.plan.rows import PlacedRows, RowExtents, both_of_each, drawn_rows, place_rows, segments_left
from packer.plan.shares import Share, even_share

OWN_RESERVE = 1 / 256
"""The share of its tokens that a partition does not draw, so that what it leaves is like the corpus, not the dregs."""

LAST_RESERVE = 0.02
"""The share that the last drawing leaves to the solver, which makes up for what drawing could not fill."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionJob:
    """All that the rows of partitions depend on."""

    reader: SegmentReader
    """The documents."""

    partitions: Partitions
    """Which documents each partition has."""

    options: PackOptions
    """What shapes the rows."""

    most_rows: int
    """Rows that a partition may have."""

    patterns: Patterns | None = None
    """The global solution of which partitions take a share; None where they draw their rows."""

    def part(self, partition: int) -> Part:
        """Read the documents of a partition."""
        ranges = self.partitions.ranges(partition)
        segments = self.reader.segments(ranges)
        items = items_of(segments) if self.options.pairs else segments
        return Part(ranges=ranges, segments=segments, extents=items.extents_of_numbers())

    def row_extents(self, part: Part, partition: int, share: Share | None) -> tuple[RowExtents, NDArray[np.int64]]:
        """The rows of a partition as extents, and the histogram of what they leave.

        Args:
            part: the documents of the partition.
            partition: its number.
            share: what it takes of the patterns; None for all of them, or where rows are drawn.
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
            most_rows=None if is_only else self.most_rows,
            seed=options.seed,
            stream=partition,
        )
        if is_only and left.any():
            rows, left = rows + RowExtents.of_patterns(solve_histogram(options, left)), np.zeros_like(left)
        return rows, left

    def shard(self, partition: int, share: Share | None) -> ShardRows:
        """The rows of a partition, as a shard."""
        part = self.part(partition)
        rows, _ = self.row_extents(part, partition, share)
        placed = place_rows(part.extents, rows, self.options.max_len, seed=self.options.seed, stream=partition)
        return _OwnRows(part=part, placed=placed.of_pairs() if self.options.pairs else placed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The documents of a partition."""

    ranges: NDArray[np.int64]
    """(ranges, 2) which they are."""

    segments: Segments
    """What is made of them, numbered within the partition."""

    extents: NDArray[np.int32]
    """The extent of every item: of the segments, or of pairs of them."""

    def locate(
        self, numbers: NDArray[np.unsignedinteger[Any]] | NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(documents, starts, lengths) of segments given by number; documents are those of the whole source."""
        local, starts, lengths = self.segments.locate(numbers)
        return documents_of(self.ranges, local), starts, lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class _OwnRows:
    """The rows that a partition makes of its own documents."""

    part: Part
    placed: PlacedRows

    def __len__(self) -> int:
        return len(self.placed)

    def located(self, first_row: int, last_row: int) -> Located:
        """Look up where the segments of rows first_row..last_row-1 are."""
        row_starts = self.placed.row_starts[first_row : last_row + 1]
        documents, starts, lengths = self.part.locate(self.placed.slots[row_starts[0] : row_starts[-1]])
        return Located(documents=documents, starts=starts, lengths=lengths, row_starts=row_starts - row_starts[0])


def note_rows(job: PartitionJob, shares: Shares | None, partition: int) -> Note:
    """Note how many rows a partition makes, drawn or by its share of the patterns, and which segments it leaves."""
    part = job.part(partition)
    rows, left = job.row_extents(part, partition, None if shares is None else shares.share(partition))
    numbers = segments_left(part.extents, left, job.options.max_len, seed=job.options.seed, stream=partition)
    if job.options.pairs:
        numbers = both_of_each(numbers)
    return Note(facts={"rows": len(rows)}, arrays={"left": pieces_of(*part.locate(numbers))})


def take_share(job: PartitionJob, partition: int) -> Note:
    """Take an even share of the patterns, and note it with the histogram of what it leaves."""
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
