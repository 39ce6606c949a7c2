"""Rows of a plan: extents are filled with segments, chosen at random among equal ones, and located in the source.

The module also has the types that all plans share: `Planning`, their input, and `Plan`, the rows of every shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.algorithms.index_arrays import sorted_indices
from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Patterns, Rows
from packer.algorithms.permute import EQUAL_LENGTHS, ROWS, SEGMENTS_IN_ROW, key_of, permute_all, permute_runs
from packer.engines.checkpoints import Checkpoints
from packer.engines.engine import Engine
from packer.json_records import PlanTotals
from packer.options import PackOptions
from packer.plan.segments import SegmentReader, Segments, documents_in
from packer.progress import Progress, silent
from packer.shards.located_rows import LocatedRows


def solve_histogram(options: PackOptions, histogram: NDArray[np.int64], start: Patterns | None = None) -> Patterns:
    """Pack a histogram, int64, shape (max_len + 1,), with the algorithm in the options.

    start: patterns with which an algorithm that proves bounds begins.
    """
    solve = get_algorithm(options.algorithm).solve
    assert solve is not None
    return solve(histogram, options.max_segments, *([] if start is None else [start]))


def place_rows(extents: NDArray[np.int32], rows: Rows, max_len: int, *, seed: int, stream: int = 0) -> Rows:
    """Fill rows with segments at random: choose among equal extents, and shuffle the rows and the segments in each.

    `extents` has the extent of each segment number, 0 for a number without a segment. `rows` holds extents; there is a
    segment for each.
    """
    starts, numbers = sorted_by_extent(extents, max_len, seed=seed, stream=stream)
    order = np.arange(len(rows), dtype=numbers.dtype)
    permute_all(order, key_of(seed, ROWS, stream))
    slots = np.empty(len(rows.values), numbers.dtype)
    _fill_rows(rows.values, rows.row_starts, order, numbers, starts, slots)
    row_starts = np.concatenate([[0], np.cumsum(np.diff(rows.row_starts)[order])]).astype(np.int64)
    permute_runs(row_starts, key_of(seed, SEGMENTS_IN_ROW, stream), SEGMENTS_IN_ROW, 0, slots)
    return Rows(values=slots, row_starts=row_starts)


def sorted_by_extent(
    extents: NDArray[np.int32], max_len: int, *, seed: int, stream: int = 0
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Sort segment numbers by extent as `sorted_indices` does. Numbers of equal extent above 0 are in random order."""
    starts, numbers = sorted_indices(extents, max_len + 1)
    permute_runs(starts[1:], np.uint64(seed), EQUAL_LENGTHS, (stream << 32) + 1, numbers)
    return starts, numbers


@jit_if_large
def _fill_rows(
    row_extents: NDArray[np.int32],
    row_starts: NDArray[np.int64],
    row_order: NDArray[np.uint32],
    numbers: NDArray[np.uint32],
    out_firsts: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
) -> None:
    """Fill rows, in the order `row_order`, with the next segment of each of their extents; write them to `out_slots`.

    `out_firsts`, shape (max_len + 2,), has the start of each extent in `numbers`. On return, it points at the first
    unused segment of each extent.
    """
    slot = 0
    for row in row_order:
        for e in range(row_starts[row], row_starts[row + 1]):
            extent = row_extents[e]
            out_slots[slot] = numbers[out_firsts[extent]]
            out_firsts[extent] += 1
            slot += 1


def collected_rows(numbers: NDArray[Any], row_of: NDArray[Any], rows: int, *, seed: int) -> Rows:
    """Return rows in random order, with shuffled segments in each. `row_of` has the row of each segment."""
    ranks = np.arange(rows, dtype=np.uint32 if rows < 2**32 else np.int64)
    permute_all(ranks, key_of(seed, ROWS, 0))
    row_starts, order = sorted_indices(ranks[row_of], rows)
    numbers = numbers[order]
    permute_runs(row_starts, np.uint64(seed), SEGMENTS_IN_ROW, 0, numbers)
    return Rows(values=numbers, row_starts=row_starts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planning:
    """Documents to plan, and the engine that runs the tasks of the plan."""

    reader: SegmentReader

    rows_per_shard: int
    """Maximum number of rows per shard."""

    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    """Store for the results of tasks. A task with a checkpoint does not run again."""

    engine: Engine = field(default_factory=Engine)
    progress: Progress = silent


class Plan(Protocol):
    """The segments of each row of each shard. Can be pickled."""

    @property
    def totals(self) -> PlanTotals:
        """Totals for the manifest."""

    @property
    def shard_starts(self) -> NDArray[np.int64]:
        """First row of each shard, plus the number of rows; shape (shards + 1,). No shard is empty."""

    def rows(self, shard: int) -> LocatedRows:
        """Make the rows of a shard; every call returns the same rows."""


def even_cuts(rows: int, rows_per_shard: int) -> NDArray[np.int64]:
    """Return the bounds of shards of nearly equal size: 7 rows, at most 3 per shard -> 0, 2, 4, 7."""
    shards = -(-rows // rows_per_shard)
    return np.arange(shards + 1) * rows // max(1, shards)


_TOGETHER = 1 << 16  # number of segments whose documents are looked up together


def located(rows: Rows, segments: Segments) -> LocatedRows:
    """Locate rows that are given as segment numbers."""
    return LocatedRows(values=located_segments(segments, rows.values), row_starts=rows.row_starts)


def located_segments(segments: Segments, numbers: NDArray[np.unsignedinteger[Any]] | NDArray[np.int64]) -> NDArray[Any]:
    """Locate segments that are given by number; returns an array of SEGMENT."""
    found = segments.locate(numbers)
    if segments.ranges is not None:
        for first in range(0, len(found), _TOGETHER):
            part = found["document"][first : first + _TOGETHER]
            part[:] = documents_in(segments.ranges, part)
    return found
