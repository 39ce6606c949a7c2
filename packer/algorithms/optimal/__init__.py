"""Column generation (Gilmore and Gomory 1961): a linear program over patterns, whole packs from it, and a proof."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.optimal.search import Limits, Search
from packer.algorithms.patterns import Patterns

__all__ = ["Limits", "Solution", "solve", "solve_optimal"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """A packing, and the lower bound that was proved."""

    patterns: Patterns
    """The packs; they hold every segment."""

    lower_bound: int
    """Proved lower bound on the number of packs, computed in exact integers."""

    rounds: int
    """How many times the linear program was solved."""

    columns: int
    """Columns, that is patterns, of the linear program at the end."""

    @property
    def gap(self) -> float:
        """Packs above the lower bound, as a share of it."""
        return (self.patterns.packs - self.lower_bound) / max(1, self.lower_bound)

    @property
    def proven(self) -> bool:
        """Whether the packing is proved optimal."""
        return self.patterns.packs == self.lower_bound

    def with_bound(self) -> Patterns:
        """Return the patterns with the lower bound stored in them."""
        return replace(self.patterns, lower_bound=self.lower_bound)


def solve(
    histogram: NDArray[np.int64], max_segments: int | None = None, *, gap: float = 0.0, seconds: float | None = None
) -> Patterns:
    """Pack by column generation; the patterns carry the lower bound that was proved.

    Without `seconds` the limits are counted in rounds and columns, so the patterns are the same everywhere.
    """
    return solve_optimal(histogram, max_segments, limits=Limits(gap=gap, seconds=seconds)).with_bound()


def solve_optimal(histogram: NDArray[np.int64], max_segments: int | None = None, *, limits: Limits) -> Solution:
    """Pack by column generation until the packing is proved optimal or a limit is reached.

    It starts from the heuristics, so it never returns more packs than best fit.
    """
    search = Search(histogram, max_segments, limits)
    search.run()
    return Solution(patterns=search.best, lower_bound=search.bound, rounds=search.rounds, columns=search.columns)
