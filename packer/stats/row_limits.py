"""Use of limited columns (`--limit`), such as the number of images in a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitUse:
    """Use of a limited column by the rows."""

    column: str
    """Name of the column."""

    limit: int
    """Most that a row may hold."""

    mean: float
    """Held by a row, on average."""

    largest: int
    """Held by the row that holds most."""


class LimitSums:
    """Collects what the rows hold of limited columns.

    Args:
        limits: most that a row may hold, by column.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._totals, self._largest, self._rows = dict.fromkeys(limits, 0), dict.fromkeys(limits, 0), 0

    def add(self, values: Mapping[str, NDArray[np.integer[Any]]], row_starts: NDArray[np.integer[Any]]) -> None:
        """Add rows.

        Args:
            values: (segments,) values of each limited column, by column.
            row_starts: (rows + 1,) row r holds the segments row_starts[r]:row_starts[r + 1], at least one.
        """
        for name in self._limits:
            sums = np.add.reduceat(values[name][: row_starts[-1]].astype(np.int64), row_starts[:-1])
            self._totals[name] += int(sums.sum())
            self._largest[name] = max(self._largest[name], int(sums.max()))
        self._rows += len(row_starts) - 1

    def finish(self) -> tuple[LimitUse, ...]:
        """Return what the rows hold, at least one, of each column."""
        return tuple(
            LimitUse(column=name, limit=limit, mean=self._totals[name] / self._rows, largest=self._largest[name])
            for name, limit in self._limits.items()
        )
