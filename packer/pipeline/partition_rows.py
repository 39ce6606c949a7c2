"""The rows that a partition makes of its own documents, and those that are made of what partitions leave over.

Each function is a task: a pure function of a job and a number, which any worker can run, twice if need be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.notes import Note, Notes
from packer.options import PackOptions
from packer.pipeline.apply_options import solve_histogram
from packer.pipeline.reading import SegmentReader, documents_of
from packer.plan import Segments, items_of
from packer.plan.partitions import Partitions
from packer.plan.pieces import Located, ShardRows, extents_of_pieces, pieces_of
from packer.plan.rows import PlacedRows, RowExtents, both_of_each, drawn_rows, place_rows, segments_left
from packer.plan.shares import Share, even_share

OWN_RESERVE = 1 / 256
"""The share of its tokens that a partition does not draw, so that what it leaves is like the corpus, not the dregs."""

LAST_RESERVE, FEW_ROWS = 0.02, 64
"""The share that the last drawing leaves to the solver, which makes up for what drawing could not fill. Of the rest of
partitions, it leaves half where that is less than FEW_ROWS rows."""


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


def note_rows(job: PartitionJob, partition: int, share: Share | None = None) -> Note:
    """Note how many rows a partition makes, drawn or by its share of the patterns, and which segments it leaves."""
    part = job.part(partition)
    rows, left = job.row_extents(part, partition, share)
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
    kinds = np.flatnonzero(share.left)
    arrays: dict[str, NDArray[Any]] = {
        "given": share.given,
        "packs": share.packs,
        "left_extents": kinds,
        "left_counts": share.left[kinds],
    }
    return Note(facts={"rows": share.rows}, arrays=arrays)


def draw_rest(options: PackOptions, notes: Notes, names: Sequence[str], *, stream: int) -> Note:
    """Draw rows from what the tasks of some notes left, and note them, and what is left again.

    Args:
        options: what shapes the rows.
        notes: where the notes are.
        names: of the notes.
        stream: number of these draws, beyond those of the partitions.
    """
    pieces = read_left(notes, names)
    extents = extents_of_pieces(pieces, options.align, paired=options.pairs)
    share = min(0.5, FEW_ROWS * options.max_len / max(1, int(extents.sum(dtype=np.int64))))
    rows, _ = drawn_rows(
        extents,
        options.max_len,
        options.max_items,
        reserve=max(LAST_RESERVE, share),
        seed=options.seed,
        stream=stream,
    )
    return rows_of_pieces(options, pieces, extents, rows, stream=stream)


def solve_rest(options: PackOptions, notes: Notes, names: Sequence[str], *, stream: int) -> Note:
    """Pack all that the tasks of some notes left, by the algorithm; arguments as of `draw_rest`."""
    pieces = read_left(notes, names)
    extents = extents_of_pieces(pieces, options.align, paired=options.pairs)
    rows = RowExtents(extents=np.zeros(0, np.int32), starts=np.zeros(1, np.int64))
    if len(extents):
        rows = RowExtents.of_patterns(solve_histogram(options, np.bincount(extents, minlength=options.max_len + 1)))
    return rows_of_pieces(options, pieces, extents, rows, stream=stream)


def rows_of_pieces(
    options: PackOptions, pieces: NDArray[Any], extents: NDArray[np.int32], rows: RowExtents, *, stream: int
) -> Note:
    """Give rows the pieces that they ask for, and note both, and what is left."""
    placed = place_rows(extents, rows, options.max_len, seed=options.seed, stream=stream)
    if options.pairs:
        placed = placed.of_pairs()
    arrays = {"pieces": pieces[placed.slots], "row_starts": placed.row_starts, "left": pieces[placed.left]}
    return Note(facts={"rows": len(rows)}, arrays=arrays)


def read_left(notes: Notes, names: Sequence[str]) -> NDArray[Any]:
    """The pieces that the tasks of some notes left, one note after the other: an array of PIECE."""
    parts = []
    for name in names:
        note = notes.load(name)
        assert note is not None
        parts.append(note.arrays["left"])
    return np.concatenate(parts)
