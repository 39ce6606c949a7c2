"""The default algorithm: fast heuristics, then column generation if the gap that they leave is worth closing."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.best_fit import best_fit_decreasing
from packer.algorithms.bounds import lower_bound
from packer.algorithms.exact_fill import exact_fill
from packer.algorithms.patterns import Patterns

WORTH = 0.0002
"""Gap, as a share of the lower bound, that is not worth closing: two packs in ten thousand."""

ROUNDS, COLUMNS, WORK = 60, 6_000, 40_000_000
"""Limits of column generation: a second or two. They are counts, so that every machine gives the same patterns."""


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
    # imported here: most histograms never need it
    from packer.algorithms.optimal import Limits, solve_optimal

    limits = Limits(rounds=ROUNDS, columns=COLUMNS, work=WORK, gap=gap)
    return solve_optimal(histogram, max_segments, limits=limits).with_bound()
