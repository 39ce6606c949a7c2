"""Column generation (Gilmore and Gomory 1961): a linear program over patterns, whole packs from it, and a proof."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.optimal.search import Limits, Search
from packer.algorithms.patterns import Patterns

__all__ = ["Limits", "Solution", "solve", "solve_optimal"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """Patterns, and what is proved about them."""

    patterns: Patterns
    """Packs for every segment."""

    lower_bound: int
    """Packs that no solution can go below, proved in exact integers."""

    rounds: int
    """Times that the linear program was solved."""

    columns: int
    """Patterns that the linear program knew at the end."""

    @property
    def gap(self) -> float:
        """Packs above the lower bound, as a share of it."""
        return (self.patterns.packs - self.lower_bound) / max(1, self.lower_bound)

    @property
    def proven(self) -> bool:
        """No solution has fewer packs."""
        return self.patterns.packs == self.lower_bound

    def with_bound(self) -> Patterns:
        """The patterns, which tell the bound themselves."""
        return replace(self.patterns, lower_bound=self.lower_bound)


def solve(
    histogram: NDArray[np.int64], max_segments: int | None = None, *, gap: float = 0.0, seconds: float | None = None
) -> Patterns:
    """Pack by column generation, with the bound that was proved.

    Without `seconds` the limits are counted in rounds and columns, so the patterns are the same everywhere.
    """
    return solve_optimal(histogram, max_segments, limits=Limits(gap=gap, seconds=seconds)).with_bound()


def solve_optimal(histogram: NDArray[np.int64], max_segments: int | None = None, *, limits: Limits) -> Solution:
    """Pack by column generation until the packs are proved optimal or a limit is reached; the best so far.

    Begins with the heuristics and never gives more packs than best fit.
    """
    search = Search(histogram, max_segments, limits)
    search.run()
    return Solution(patterns=search.best, lower_bound=search.bound, rounds=search.rounds, columns=search.columns)
