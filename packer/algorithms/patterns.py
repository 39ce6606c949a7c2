"""Rows as extents: patterns, each with the number of packs that follow it, or row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges


@dataclass(frozen=True, kw_only=True, slots=True)
class Patterns:
    """Patterns of extents and how many packs follow each; no pattern is empty.

    1,204 packs of [3000, 1000, 96] and 7 packs of [4096]:

        Patterns(offsets=[0, 3, 4], extents=[3000, 1000, 96, 4096], counts=[1204, 7])

    Two patterns may be equal. Their order is the algorithm's, the same in every run.
    """

    offsets: NDArray[np.int64]
    """Shape (patterns + 1,): pattern i is extents[offsets[i]:offsets[i + 1]]."""

    extents: NDArray[np.int32]
    """Shape (offsets[-1],): tokens; in descending order within a pattern."""

    counts: NDArray[np.int64]
    """Shape (patterns,): packs that follow each pattern, at least 1."""

    lower_bound: int = 0
    """Lower bound that the algorithm proved; 0 if it proved none.

    `packer.algorithms.bounds` has bounds for any histogram, which may be higher.
    """

    @property
    def packs(self) -> int:
        """The number of packs."""
        return int(self.counts.sum())

    @property
    def max_segments(self) -> int:
        """Segments in the deepest pattern; 0 when there is none."""
        return int(np.diff(self.offsets).max(initial=0))

    def histogram(self, max_len: int) -> NDArray[np.int64]:
        """Count the segments of every extent that the patterns pack, int64, shape (max_len + 1,).

        It equals the histogram that was solved: [2, 2, 1] three times and [4] once give [0, 3, 6, 0, 1].
        """
        counted = np.zeros(max_len + 1, np.int64)
        np.add.at(counted, self.extents, np.repeat(self.counts, np.diff(self.offsets)))
        return counted


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
        followed = np.repeat(numbers, packs)
        depths = np.diff(patterns.offsets)[followed]
        extents = patterns.extents[joined_ranges(patterns.offsets[followed], depths)]
        return cls(extents=extents, starts=np.concatenate([[0], np.cumsum(depths)]).astype(np.int64))

    def __add__(self, other: RowExtents) -> RowExtents:
        starts = np.concatenate([self.starts, other.starts[1:] + self.starts[-1]])
        return RowExtents(extents=np.concatenate([self.extents, other.extents]), starts=starts)
