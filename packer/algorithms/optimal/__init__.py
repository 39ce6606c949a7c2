"""Column generation (Gilmore and Gomory 1961): a linear program over patterns, whole packs from it, and a proof."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.exact_fill import exact_fill
from packer.algorithms.open_packs import best_fit_decreasing
from packer.algorithms.optimal.search import Limits, Search
from packer.algorithms.patterns import Patterns

__all__ = ["Limits", "Solution", "auto", "prove", "solve", "solve_optimal"]

WORTH = 0.0002
"""Gap, as a share of the lower bound, that is not worth closing: two packs in ten thousand."""

ROUNDS, COLUMNS, WORK = 60, 6_000, 40_000_000
"""Limits of column generation: a second or two. They are counts, so that every machine gives the same patterns."""


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


def auto(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Return the better of best fit and exact fill, or the packing of `optimal` if their gap is worth closing."""
    bound = lower_bound(histogram, max_segments)
    best = best_fit_decreasing(histogram, max_segments)
    if best.packs > bound:
        best = min(best, exact_fill(histogram, max_segments), key=lambda patterns: patterns.packs)
    # a single pack is not worth an import
    if best.packs - bound <= max(1, WORTH * bound):
        return best
    return prove(histogram, max_segments, gap=WORTH)


def prove(histogram: NDArray[np.int64], max_segments: int | None = None, *, gap: float = 0) -> Patterns:
    """Pack a histogram as `optimal` does, within the limits of `auto`, down to a gap above the lower bound."""
    limits = Limits(rounds=ROUNDS, columns=COLUMNS, work=WORK, gap=gap)
    return solve_optimal(histogram, max_segments, limits=limits).with_bound()
