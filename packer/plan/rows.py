"""Make rows of extents, and fill them with segments; a permutation decides between segments of equal extent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.joined_ranges import joined_ranges
from packer.algorithms.mixed import draw_rows
from packer.algorithms.patterns import Patterns
from packer.plan.permute import key_of, permute_all
from packer.plan.row_kernels import expand_patterns, fill_rows, permute_equal, sort_by_extent
from packer.random_purposes import DRAWING, ROWS, SEGMENTS_IN_ROW


@dataclass(frozen=True, kw_only=True, slots=True)
class RowExtents:
    """Extents of rows, to be filled with segments; rows [3, 1] and [4] have extents [3, 1, 4] and starts [0, 2, 3]."""

    extents: NDArray[np.int32]
    """Shape (segments in rows,): extents, row by row."""

    starts: NDArray[np.int64]
    """Shape (rows + 1,): row r takes extents[starts[r]:starts[r + 1]]."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def of_patterns(
        cls, patterns: Patterns, numbers: NDArray[np.int32] | None = None, packs: NDArray[np.int64] | None = None
    ) -> RowExtents:
        """Return the rows that follow patterns: all of them, or `packs` rows of the patterns with these numbers."""
        if numbers is None or packs is None:
            numbers, packs = np.arange(len(patterns.counts), dtype=np.int32), patterns.counts
        depths = np.diff(patterns.offsets)[numbers]
        extents = np.empty(int(packs @ depths), np.int32)
        starts = np.zeros(int(packs.sum()) + 1, np.int64)
        expand_patterns(numbers, packs, patterns.offsets, patterns.extents, extents, starts)
        return cls(extents=extents, starts=starts)

    def __add__(self, other: RowExtents) -> RowExtents:
        starts = np.concatenate([self.starts, other.starts[1:] + self.starts[-1]])
        return RowExtents(extents=np.concatenate([self.extents, other.extents]), starts=starts)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedRows:
    """Rows of segment numbers, in random order, and the segments that no row took."""

    row_starts: NDArray[np.int64]
    """Shape (rows + 1,): row r holds slots[row_starts[r]:row_starts[r + 1]]."""

    slots: NDArray[np.uint32] | NDArray[np.int64]
    """Shape (segments in rows,): segment numbers, row by row."""

    left: NDArray[np.uint32] | NDArray[np.int64]
    """Shape (segments left,): numbers of the other segments, by extent."""

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    def of_pairs(self) -> PlacedRows:
        """Return the rows with each number i replaced by the two segments 2i and 2i + 1, side by side."""
        return replace(
            self, row_starts=self.row_starts * 2, slots=both_of_each(self.slots), left=both_of_each(self.left)
        )


def drawn_rows(
    extents: NDArray[np.int32],
    max_len: int,
    max_segments: int | None,
    *,
    reserve: float,
    far: bool = False,
    most_rows: int | None = None,
    seed: int,
    stream: int,
) -> tuple[RowExtents, NDArray[np.int64]]:
    """Draw rows that are exactly full from segments in random order; see `packer.algorithms.mixed`.

    Args:
        extents: (segments,) extent of each segment, 0 for a number without a segment.
        max_len: length of a row.
        max_segments: largest number of segments in a row; None for no limit.
        reserve: smallest share of the summed extents that is left over.
        far: whether segments from anywhere in the order may close a row.
        most_rows: largest number of rows to draw; None for no limit.
        seed: seed of the pack.
        stream: random stream, one per partition or region.

    Returns:
        The rows, and the histogram of the segments left over: int64, shape (max_len + 1,).
    """
    order = extents[extents > 0]
    total = int(order.sum(dtype=np.int64))
    permute_all(order.view(np.uint32), key_of(seed, DRAWING, stream))  # of one type with numbers, and compiled once
    least = 0 if most_rows is None else total - most_rows * max_len
    drawn = draw_rows(order, max_len, max_segments, reserve=max(int(total * reserve), least), far=far)
    return RowExtents(extents=drawn.row_extents, starts=drawn.row_starts), drawn.left


def place_rows(extents: NDArray[np.int32], rows: RowExtents, max_len: int, *, seed: int, stream: int) -> PlacedRows:
    """Fill rows with segments at random: choose among equal extents, and order the rows and the segments in each.

    Args:
        extents: (numbers,) extent of each segment number, 0 for a number without a segment.
        rows: extents of the rows; there must be a segment for each.
        max_len: length of a row.
        seed: seed of the pack.
        stream: random stream, one per partition or region.
    """
    groups, numbers = _permuted(extents, max_len, seed, stream)
    order = np.arange(len(rows), dtype=numbers.dtype)
    permute_all(order, key_of(seed, ROWS, stream))
    taken = groups.copy()
    row_starts = np.zeros(len(rows) + 1, np.int64)
    slots = np.empty(len(rows.extents), numbers.dtype)
    key = key_of(seed, SEGMENTS_IN_ROW, stream)
    fill_rows(rows.extents, rows.starts, order, taken, numbers, key, row_starts, slots)
    return PlacedRows(row_starts=row_starts, slots=slots, left=_collected(groups, taken, numbers))


def segments_left(
    extents: NDArray[np.int32], left: NDArray[np.int64], max_len: int, *, seed: int, stream: int
) -> NDArray[np.uint32] | NDArray[np.int64]:
    """Return the numbers of the segments that `place_rows` would leave, without making the rows.

    Args:
        extents: (numbers,) extent of each segment number, 0 for a number without a segment.
        left: (max_len + 1,) number of segments of every extent that are left.
        max_len: length of a row.
        seed: seed of the pack.
        stream: random stream, one per partition or region.
    """
    groups, numbers = _permuted(extents, max_len, seed, stream)
    taken = groups.copy()
    taken[1:-1] = groups[2:] - left[1:]  # rows take the first of every extent
    return _collected(groups, taken, numbers)


def _permuted(
    extents: NDArray[np.int32], max_len: int, seed: int, stream: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return (groups, numbers) of `sort_by_extent`, with the segments of each extent in random order."""
    groups = np.zeros(max_len + 2, np.int64)
    numbers = np.empty(int(np.count_nonzero(extents)), np.uint32 if len(extents) < 2**32 else np.int64)
    sort_by_extent(extents, groups, numbers)
    permute_equal(groups, stream, np.uint64(seed), numbers)
    return groups, numbers


def _collected(groups: NDArray[np.int64], taken: NDArray[np.int64], numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of the segments that no row took, by extent; `fill_rows` writes `taken`."""
    left: NDArray[Any] = numbers[joined_ranges(taken[1:-1], groups[2:] - taken[1:-1])]
    return left


def both_of_each(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of both segments of each pair: [4, 0] -> [8, 9, 0, 1]."""
    both = np.repeat(numbers, 2)
    both *= 2
    both[1::2] += 1
    return both
