"""Patterns of extents with their number of packs; and rows of values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True, slots=True)
class Patterns:
    """Patterns of extents, and the number of packs that follow each pattern. No pattern is empty.

    1,204 packs of [3000, 1000, 96] and 7 packs of [4096]:

        Patterns(offsets=[0, 3, 4], extents=[3000, 1000, 96, 4096], counts=[1204, 7])

    Two patterns may be equal. The algorithm defines their order, which is the same in every run.
    """

    offsets: NDArray[np.int64]
    """Shape (patterns + 1,): pattern i is extents[offsets[i]:offsets[i + 1]]."""

    extents: NDArray[np.int32]
    """Shape (offsets[-1],): extents in tokens, in descending order within a pattern."""

    counts: NDArray[np.int64]
    """Shape (patterns,): number of packs that follow each pattern, at least 1."""

    lower_bound: int = 0
    """Lower bound on the number of packs that the algorithm proved; 0 if it proved none.

    Bounds of `packer.algorithms.bounds` may be higher.
    """

    values: NDArray[np.float64] | None = None
    """Shape (max_len + 1,): value of each extent in a linear program, at which no pattern of these extents is worth
    more than 1. Other segments of these extents therefore need at least as many packs as they are worth."""

    @property
    def packs(self) -> int:
        """Number of packs."""
        return int(self.counts.sum())

    def rows(self) -> Rows:
        """Return the extents of all rows."""
        numbers = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        return Rows(values=self.extents, row_starts=self.offsets).chosen(numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows with one value per segment, such as its extent or number: [7, 2] and [5] have row_starts [0, 2, 3]."""

    values: NDArray[Any]
    """Shape (segments,): values of all rows, in row order."""

    row_starts: NDArray[np.int64]
    """Shape (rows + 1,): row r is values[row_starts[r]:row_starts[r + 1]]; row_starts[0] is 0."""

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    def part(self, first: int, last: int) -> Self:
        """Return rows first to last - 1."""
        starts = self.row_starts[first : last + 1]
        return type(self)(values=self.values[starts[0] : starts[-1]], row_starts=starts - starts[0])

    def chosen(self, numbers: NDArray[np.integer[Any]]) -> Self:
        """Return the rows with these numbers in this order. A number may appear several times."""
        depths = np.diff(self.row_starts)[numbers]
        values = self.values[joined_ranges(self.row_starts[numbers], depths)]
        return type(self)(values=values, row_starts=np.concatenate([[0], np.cumsum(depths)]).astype(np.int64))

    @classmethod
    def joined(cls, parts: Iterable[Rows]) -> Self:
        """Concatenate rows of the same dtype, at least one part. The values are held in memory only once."""
        values, depths = bytearray(), [np.zeros(1, np.int64)]
        for part in parts:
            values += np.ascontiguousarray(part.values).view(np.uint8).data
            depths.append(np.diff(part.row_starts))
        return cls(values=np.frombuffer(values, part.values.dtype), row_starts=np.cumsum(np.concatenate(depths)))
