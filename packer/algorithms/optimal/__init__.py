"""Column generation (Gilmore and Gomory 1961): a linear program over patterns, whole packs from it, and a proof."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.best_fit import best_fit_decreasing
from packer.algorithms.bounds import lower_bound
from packer.algorithms.exact_fill import exact_fill
from packer.algorithms.open_packs import segment_limit
from packer.algorithms.optimal.columns import ColumnGeneration
from packer.algorithms.optimal.rounding import round_packs
from packer.algorithms.patterns import Patterns
from packer.algorithms.spread import deepest, spread

ATTEMPTS = 64
"""Ways in which the last solution is rounded to whole packs."""

ROUNDING_INTERVAL = 10
"""Rounds after which a solution on the way is rounded."""

KNOTS = 160
"""Rows of a coarse linear program, at most."""

SLACK = 1e-6
"""Packs by which the objective of the linear program may be off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When to stop: what comes first. All but seconds stop at the same place on every machine."""

    rounds: int = 400
    """Times that the linear program is solved."""

    columns: int = 20_000
    """Patterns that the linear program may know."""

    work: int = 400_000_000
    """Simplex iterations, each times the rows of the linear program: what its time goes with."""

    gap: float = 0.0
    """Packs above the lower bound, as a share of it, that are good enough."""

    seconds: float | None = None
    """Time after which no new round begins; None sets no limit."""


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
    began = time.monotonic()
    limit = segment_limit(histogram, max_segments)
    bound = lower_bound(histogram, max_segments)
    starts = [best_fit_decreasing(histogram, max_segments), exact_fill(histogram, max_segments)]
    if limit < deepest(histogram) and min(map(_packs, starts)) > bound:
        starts.append(spread(histogram, max_segments))
    best = min(starts, key=_packs)

    def enough() -> bool:
        late = limits.seconds is not None and time.monotonic() - began >= limits.seconds
        return late or best.packs - bound <= limits.gap * bound

    if enough():
        return Solution(patterns=best, lower_bound=bound, rounds=0, columns=0)
    rounds = columns = 0
    work = limits.work
    for knots in _stages(histogram, limit):
        program = ColumnGeneration(histogram, limit, knots=knots)
        for patterns in starts if knots is None else [best]:
            program.add_patterns(patterns)
        first_round = rounds
        while not enough() and rounds < limits.rounds and program.columns < limits.columns and program.work < work:
            seconds = None if limits.seconds is None else limits.seconds - (time.monotonic() - began)
            program.step(work - program.work, seconds)
            rounds += 1
            bound = max(bound, program.bound)
            # the linear program cannot raise the bound, rounded up, any more
            solved = program.finished or (program.exact and math.ceil(program.objective - SLACK) <= bound)
            if solved or rounds % ROUNDING_INTERVAL == 0:
                best = min(best, *_roundings(histogram, max_segments, program, 2), key=_packs)
            if solved:
                break
        if rounds == first_round:
            break
        columns = program.columns
        work -= program.work
        for rounded in _roundings(histogram, max_segments, program, ATTEMPTS if knots is None else 2):
            if enough():
                break
            best = min(best, rounded, key=_packs)
        # what a coarse program found is where the exact one begins
        starts = [best, program.templates()]
    return Solution(patterns=best, lower_bound=bound, rounds=rounds, columns=columns)


def _stages(histogram: NDArray[np.int64], limit: int) -> list[NDArray[np.int64] | None]:
    """The knots of the linear programs to solve in turn: where a limit binds and lengths are many, a coarse one first.

    Half of the knots lie at even shares of the lengths, half at even shares of the segments.
    """
    lengths = np.flatnonzero(histogram)
    if limit >= deepest(histogram) or len(lengths) <= 4 * KNOTS:
        return [None]
    shares = np.linspace(0, 1, KNOTS // 2)
    sums = np.cumsum(histogram[lengths])
    by_count = np.searchsorted(sums, shares[:-1] * sums[-1])
    by_length = np.round(shares * (len(lengths) - 1)).astype(np.int64)
    return [np.unique(np.concatenate([by_count, by_length])), None]


def _packs(patterns: Patterns) -> int:
    return patterns.packs


def _roundings(
    histogram: NDArray[np.int64], max_segments: int | None, program: ColumnGeneration, attempts: int
) -> Iterator[Patterns]:
    """The last solution of the linear program in whole packs, in several ways."""
    templates = program.templates()
    packs = program.packs[program.packs > 0]
    for attempt in range(attempts):
        yield round_packs(histogram, max_segments, templates=templates, packs=packs, attempt=attempt)
