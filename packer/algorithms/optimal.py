"""Column generation (Gilmore and Gomory 1961): a linear program over patterns, whole packs from it, and a proof.

The search begins with heuristics, goes on with linear programs from coarse to exact, makes whole packs of their
solutions, and decides when to stop.
"""

import logging
import math
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.column_generation import ColumnGeneration, UnsolvedError, pricing_work
from packer.algorithms.exact_fill import exact_fill
from packer.algorithms.open_packs import best_fit_decreasing, segment_limit
from packer.algorithms.patterns import Patterns, Rows
from packer.algorithms.round_patterns import follow_templates, joined_patterns, round_packs, rounded
from packer.algorithms.worst_fit import deepest, spread

_packs = attrgetter("packs")
log = logging.getLogger(__name__)

WORK = 100_000_000
"""Limit of `auto`, a few seconds. It is a count, so that every machine gives the same patterns."""

KNOTS = (160, 640)
"""Approximate numbers of rows of the coarse linear programs."""

ATTEMPTS, COARSE_ATTEMPTS = 64, 12
"""How many ways to round the last solution of a linear program, and of a coarse one, to whole packs are tried."""

ROUNDING_INTERVAL = 10
"""Rounds between roundings of intermediate solutions."""

COLUMNS_PER_KNOT = 4
"""Patterns of the best packing so far, per row, with which a coarse linear program starts."""

COARSE = 5e-5
"""How far, as a share, the bound of a coarse linear program may stay from its objective."""

WORK_PER_PLACE = 3
"""Units of work of rounding, for each place of its patterns."""

WORK_PER_SPREAD = 25
"""Units of work of a try of spread, for each length."""

PATIENCE = 8
"""Further rounds after the bound is reached: other solutions may round better."""

SHARE_OF_SPREAD = 0.3
"""Share of the work after which spread ends."""

SLACK = 1e-6
"""Tolerance of the linear program's objective, in packs."""

KEPT = (0.85, 0.7, 0.85, 0.7, 0.85, 0.5)
"""Shares of the packs of a solution that are kept when the rest is solved again."""

LEFT_PER_TEMPLATE = 8
"""Most packs that are not kept, per pattern that a solution uses."""

WORK_OF_PART = 10_000_000
"""Most units of work for the rest that the kept packs leave."""

SHARE_OF_FIXING, LEAST_FIXING = 1.0, 2_500_000
"""Work for all rests after a linear program, as a share of the work so far, and at least: the last pack is not worth
more than all the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When to stop: at the limit reached first, which is the same place on every machine."""

    rounds: int = 400
    """Most times that the linear program is solved."""

    columns: int = 20_000
    """Most columns, that is patterns, of the linear program."""

    work: int = 400_000_000
    """Most units of work (simplex iterations, pricing, rounding) of about 40 nanoseconds each."""


def solve(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Pack by column generation; the patterns carry the lower bound that was proved."""
    return Search(histogram, max_segments, Limits()).run()


def auto(
    histogram: NDArray[np.int64], max_segments: int | None = None, *, work: int = WORK, enough: int | None = None
) -> Patterns:
    """Pack as `solve`, with less work; stop as soon as a packing has at most `enough` packs."""
    return Search(histogram, max_segments, Limits(work=work), part_of=enough).run()


class Search:
    """The best packing and the best proved bound so far, and the decision to stop.

    It starts from the heuristics, so it never returns more packs than best fit.
    """

    def __init__(
        self, histogram: NDArray[np.int64], max_segments: int | None, limits: Limits, *, part_of: int | None = None
    ) -> None:
        """Start with the heuristics. For a part of a histogram, `part_of` packs are enough; None for a whole one."""
        self._histogram = histogram
        self._max_segments = max_segments
        self._limits = limits
        self._work = limits.work
        self._part_of = part_of
        self._limit = segment_limit(histogram, max_segments)
        self.rounds = 0
        self.bound = lower_bound(histogram, max_segments)
        self.starts = [best_fit_decreasing(histogram, max_segments), exact_fill(histogram, max_segments)]
        self.best = min(self.starts, key=_packs)
        if self._limit < deepest(histogram) and not self.enough():
            self.starts.append(self._spread())
            self.best = min(self.starts, key=_packs)

    def run(self) -> Patterns:
        """Solve the linear programs in turn; return the best packing, with the bound."""
        values = None
        for knots in stages(self._histogram, self._limit):
            if self.enough():
                break
            program = ColumnGeneration(self._histogram, self._limit, knots=knots, values=values)
            for patterns in self.starts:
                program.add_patterns(patterns if knots is None else _some(patterns, COLUMNS_PER_KNOT * len(knots)))
            try:
                may_go_on = self._solve(program, coarse=knots is not None)
            except UnsolvedError as error:
                log.warning("HiGHS left a linear program unsolved (%s), so there may be more rows than needed", error)
                break
            if not may_go_on:
                break
            # what a coarse program found is where the next one begins
            values = program.values
            self.starts = [self.best, program.solution()[0]]
        return replace(self.best, lower_bound=self.bound)

    def _spread(self) -> Patterns:
        """Run spread, which stops after its share of the work."""
        lengths = np.flatnonzero(self._histogram)
        # it has all of them where pricing needs more than the rest
        pricing = pricing_work(lengths, len(self._histogram) - 1, self._limit)
        share = SHARE_OF_SPREAD if self._work > 2 * pricing else 1.0
        at_the_end = self._work - int(share * self._work)

        def stop() -> bool:
            self._work -= WORK_PER_SPREAD * len(lengths)
            return self._work < at_the_end

        return spread(self._histogram, self._max_segments, stop=stop)

    def enough(self) -> bool:
        """Whether no packing, or for a part none that is needed, has fewer packs."""
        return self.best.packs <= max(self.bound, self._part_of or 0)

    def _may_go_on(self, program: ColumnGeneration) -> bool:
        """Whether no limit is reached yet."""
        limits = self._limits
        allowed = self.rounds < limits.rounds and program.columns < limits.columns
        return allowed and self._work > program.pricing_work and not self.enough()

    def _solve(self, program: ColumnGeneration, *, coarse: bool) -> bool:
        """Solve a linear program in rounds and round it; return False if the limits do not allow a single round."""
        before = self.rounds
        patience = 0 if coarse else PATIENCE
        solved = False
        while not solved and self._may_go_on(program):
            worked = program.work
            program.step(self._work)
            self._work -= program.work - worked
            self.rounds += 1
            self.bound = max(self.bound, program.bound)
            # the linear program cannot raise the bound, rounded up, any more; or, where it is coarse, hardly
            tolerance = COARSE * self.bound if coarse else 0.0
            patience -= program.exact and math.ceil(program.packs.sum() - SLACK - tolerance) <= self.bound
            solved = program.finished or patience < 0
            if solved or (self.rounds - before) % ROUNDING_INTERVAL == 0 or (not coarse and patience < PATIENCE):
                self._round(program, 2, coarse=coarse)
        if self.rounds == before:
            return False
        self._round(program, COARSE_ATTEMPTS if coarse else ATTEMPTS, coarse=coarse)
        if self._part_of is None:
            self._fix(program, coarse=coarse)
        return True

    def _round(self, program: ColumnGeneration, attempts: int, *, coarse: bool) -> None:
        """Round the last solution of a linear program to whole packs in several ways, at least in one."""
        templates, packs = program.solution()
        for attempt in range(attempts):
            if self.enough() or (attempt > 0 and self._work <= 0):
                break
            # the templates of a coarse program give the lengths their places only nearly
            strict = not coarse and (attempt < 2 or attempt % 2 == 0)
            found = round_packs(self._histogram, self._max_segments, templates, packs, attempt, strict=strict)
            self._work -= WORK_PER_PLACE * len(found.extents)
            self.best = min(self.best, found, key=_packs)

    def _fix(self, program: ColumnGeneration, *, coarse: bool) -> None:
        """Keep most packs of a rounded solution, and solve the rest as a problem of its own."""
        templates, packs = program.solution()
        last = self._work - max(LEAST_FIXING, int(SHARE_OF_FIXING * (self._limits.work - self._work)))
        for attempt, share in enumerate(KEPT):
            # a program that was stopped early may have no solution to keep
            if len(packs) == 0 or self.enough() or self._work <= max(last, 8 * program.pricing_work):
                break
            most = packs.sum() - LEFT_PER_TEMPLATE * len(packs)
            share = max(share, most / packs.sum())
            sums = np.floor(np.cumsum(rounded(packs, attempt)) * share + 0.5).astype(np.int64)
            counts = np.diff(sums, prepend=0)
            kept, left = follow_templates(self._histogram, self._limit, templates, counts, strict=not coarse)
            work = min(self._work, WORK_OF_PART, self._work - last)
            part = Search(left, self._max_segments, replace(self._limits, work=work), part_of=self.bound - kept.packs)
            self.best = min(self.best, joined_patterns(kept, part.run()), key=_packs)
            self._work -= work - part._work


def stages(histogram: NDArray[np.int64], limit: int) -> list[NDArray[np.int64] | None]:
    """Return the knots of the linear programs to solve in turn; None stands for all lengths.

    If a limit binds and there are many lengths, coarse programs come first. The value of a length changes fastest among
    the shortest lengths, and among those that only the shortest fit beside. So a third of the knots grows from the
    shortest length by a constant factor, a third is its mirror image below the capacity, and a third lies at even
    shares.
    """
    lengths = np.flatnonzero(histogram)
    if limit >= deepest(histogram):
        return [None]
    capacity = len(histogram) - 1
    programs: list[NDArray[np.int64] | None] = []
    for rows in KNOTS:
        if len(lengths) <= 2 * rows:
            break
        short = np.geomspace(lengths[0], max(capacity / 2, lengths[0]), rows // 3)
        wanted = np.concatenate([short, capacity - short])
        by_length = np.minimum(np.searchsorted(lengths, wanted), len(lengths) - 1)
        even = np.round(np.linspace(0, 1, rows // 3) * (len(lengths) - 1)).astype(np.int64)
        programs.append(np.unique(np.concatenate([by_length, even])))
    return [*programs, None]


def _some(patterns: Patterns, count: int) -> Patterns:
    """Return about `count` of the patterns, at even steps, and the one with the longest segment."""
    firsts = patterns.extents[patterns.offsets[:-1]]
    longest = np.flatnonzero(firsts == firsts.max(initial=0))[:1]  # none if there are no patterns
    kept = np.union1d(np.arange(0, len(firsts), max(1, len(firsts) // count)), longest)
    rows = Rows(values=patterns.extents, row_starts=patterns.offsets).chosen(kept)
    return Patterns(offsets=rows.row_starts, extents=rows.values, counts=patterns.counts[kept])
