"""Packing by column generation (Gilmore and Gomory, 1961), with a proof of the bound.

The search starts with heuristics. It solves linear programs over patterns, from coarse to exact, rounds their solutions
to whole packs, and decides when to stop.
"""

import logging
import math
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.column_generation import ColumnGeneration, UnsolvedError, pricing_work
from packer.algorithms.exact_fill import Filled, add_packs, exact_fill, next_left, nothing_filled, packs_left
from packer.algorithms.jit import jit_if_large
from packer.algorithms.open_packs import best_fit_decreasing, segment_limit, to_patterns
from packer.algorithms.patterns import Patterns, Rows
from packer.algorithms.worst_fit import deepest, spread

_packs = attrgetter("packs")
log = logging.getLogger(__name__)

WORK = 100_000_000
"""Work limit of `auto`, a few seconds. It is a count, so every machine returns the same patterns."""

KNOTS = (160, 640)
"""Approximate numbers of rows of the coarse linear programs."""

ATTEMPTS, FEW_ATTEMPTS = 64, 12
"""Number of ways to round the last solution of a linear program to whole packs; few if better ways come afterwards."""

ROUNDING_INTERVAL = 10
"""Number of rounds between roundings of intermediate solutions."""

COLUMNS_PER_KNOT = 4
"""A coarse linear program starts with this many patterns of the best packing per row."""

COARSE = 5e-5
"""A coarse linear program counts as solved if its bound is this close to its objective, as a share of it."""

WORK_PER_PLACE = 3
"""Work units of rounding, per place in the rounded patterns."""

WORK_PER_SPREAD = 25
"""Work units of one try of `spread`, per length."""

PATIENCE = 8
"""Number of further rounds after the bound is reached, because other solutions may round better."""

SHARE_OF_SPREAD = 0.3
"""Share of the work after which `spread` ends."""

SLACK = 1e-6
"""Tolerance of the linear program's objective, in packs."""

KEPT = (0.85, 0.7, 0.85, 0.7, 0.85, 0.5)
"""Shares of a solution's packs that are kept when the remaining segments are solved again."""

LEFT_PER_TEMPLATE = 8
"""Maximum number of packs that are solved again, per pattern that a solution uses."""

WORK_OF_PART = 10_000_000
"""Maximum work units to solve again for the segments outside of kept packs."""

SHARE_OF_FIXING, LEAST_FIXING = 1.0, 2_500_000
"""Work for solving such segments after a linear program: share of the work so far, and minimum.

Without this limit, saving one last pack could take more work than all others.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a search, which stops at the first limit that it reaches: the same one on every machine."""

    rounds: int = 400
    """Maximum number of times that the linear program is solved."""

    columns: int = 20_000
    """Maximum number of columns (patterns) of the linear program."""

    work: int = 400_000_000
    """Maximum work units (simplex iterations, pricing, rounding) of about 40 nanoseconds each."""


def solve(histogram: NDArray[np.int64], max_segments: int | None = None, start: Patterns | None = None) -> Patterns:
    """Pack by column generation. The patterns carry the proved lower bound."""
    return Search(histogram, max_segments, Limits(), start=start).run()


def auto(
    histogram: NDArray[np.int64],
    max_segments: int | None = None,
    start: Patterns | None = None,
    *,
    work: int = WORK,
    enough: int | None = None,
) -> Patterns:
    """Pack like `solve`, with less work. Stop when a packing has at most `enough` packs."""
    return Search(histogram, max_segments, Limits(work=work), part_of=enough, start=start).run()


class Search:
    """The best packing and the best proved bound so far, and the decision when to stop.

    It starts with the heuristics, so it never returns more packs than best fit.
    """

    def __init__(
        self,
        histogram: NDArray[np.int64],
        max_segments: int | None,
        limits: Limits,
        *,
        part_of: int | None = None,
        start: Patterns | None = None,
    ) -> None:
        """Start with the heuristics.

        part_of: number of packs that is enough for a part of a histogram. start: patterns of a solved histogram with
        these lengths and about these shares, such as the whole. The linear program begins with them.
        """
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
        self._start = start
        if start is not None:
            self.starts = [start]
        elif self._limit < deepest(histogram) and not self.enough():
            self.starts.append(self._spread())
            self.best = min(self.starts, key=_packs)

    def run(self) -> Patterns:
        """Solve the linear programs in turn; return the best packing with the bound."""
        values = None
        for knots in stages(self._histogram, self._limit) if self._start is None else [None]:
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
            # The next program starts with the patterns and values of a coarse program.
            values = program.values
            if not may_go_on:
                break
            self.starts = [self.best, program.solution()[0]]
        worth = None if values is None else np.zeros(len(self._histogram))
        if worth is not None:
            worth[self._histogram > 0] = values
        return replace(self.best, lower_bound=self.bound, values=worth)

    def _spread(self) -> Patterns:
        """Run `spread` until its share of the work is used up."""
        lengths = np.flatnonzero(self._histogram)
        # `spread` gets all the work if too little would be left for pricing.
        pricing = pricing_work(lengths, len(self._histogram) - 1, self._limit)
        share = SHARE_OF_SPREAD if self._work > 2 * pricing else 1.0
        at_the_end = self._work - int(share * self._work)

        def stop() -> bool:
            self._work -= WORK_PER_SPREAD * len(lengths)
            return self._work < at_the_end

        return spread(self._histogram, self._max_segments, stop=stop)

    def enough(self) -> bool:
        """Whether the best packing reaches the bound or, for a part, `part_of`."""
        return self.best.packs <= max(self.bound, self._part_of or 0)

    def _may_go_on(self, program: ColumnGeneration) -> bool:
        """Whether no limit has been reached."""
        limits = self._limits
        allowed = self.rounds < limits.rounds and program.columns < limits.columns
        return allowed and self._work > program.pricing_work and not self.enough()

    def _solve(self, program: ColumnGeneration, *, coarse: bool) -> bool:
        """Solve a linear program in rounds, and round its solutions. Returns False if the limits allow no round."""
        before = self.rounds
        patience = 0 if coarse else PATIENCE
        solved = False
        while not solved and self._may_go_on(program):
            worked = program.work
            program.step(self._work)
            self._work -= program.work - worked
            self.rounds += 1
            self.bound = max(self.bound, program.bound)
            # Stop when the linear program can no longer raise the rounded bound. A coarse program stops when it can
            # raise its bound only slightly.
            tolerance = COARSE * self.bound if coarse else 0.0
            patience -= program.exact and math.ceil(program.packs.sum() - SLACK - tolerance) <= self.bound
            solved = program.finished or patience < 0
            if solved or (self.rounds - before) % ROUNDING_INTERVAL == 0 or (not coarse and patience < PATIENCE):
                self._round(program, 2, coarse=coarse)
        if self.rounds == before:
            return False
        # A packing that is not enough is fixed afterwards, but a part is not.
        self._round(program, FEW_ATTEMPTS if coarse or self._part_of is None else ATTEMPTS, coarse=coarse)
        if self._part_of is None:
            self._fix(program, coarse=coarse)
        return True

    def _round(self, program: ColumnGeneration, attempts: int, *, coarse: bool) -> None:
        """Round the last solution of a linear program to whole packs in up to `attempts` ways, at least one."""
        templates, packs = program.solution()
        for attempt in range(attempts):
            if self.enough() or (attempt > 0 and self._work <= 0):
                break
            # The templates of a coarse program provide places only approximately.
            strict = not coarse and (attempt < 2 or attempt % 2 == 0)
            found = round_packs(self._histogram, self._max_segments, templates, packs, attempt, strict=strict)
            self._work -= WORK_PER_PLACE * len(found.extents)
            self.best = min(self.best, found, key=_packs)

    def _fix(self, program: ColumnGeneration, *, coarse: bool) -> None:
        """Keep most packs of a rounded solution, and solve the remaining segments as a separate problem."""
        templates, packs = program.solution()
        last = self._work - max(LEAST_FIXING, int(SHARE_OF_FIXING * (self._limits.work - self._work)))
        for attempt, share in enumerate(KEPT):
            # A program that was stopped early may have no solution.
            if len(packs) == 0 or self.enough() or self._work <= max(last, 8 * program.pricing_work):
                break
            most = packs.sum() - LEFT_PER_TEMPLATE * len(packs)
            share = max(share, most / packs.sum())
            sums = np.floor(np.cumsum(rounded(packs, attempt)) * share + 0.5).astype(np.int64)
            counts = np.diff(sums, prepend=0)
            kept, left = follow_templates(self._histogram, self._limit, templates, counts, strict=not coarse)
            work = min(self._work, WORK_OF_PART, self._work - last)
            limits, start = replace(self._limits, work=work), None if self._start is None else templates
            part = Search(left, self._max_segments, limits, part_of=self.bound - kept.packs, start=start)
            self.best = min(self.best, joined_patterns(kept, part.run()), key=_packs)
            self._work -= work - part._work


def stages(histogram: NDArray[np.int64], limit: int) -> list[NDArray[np.int64] | None]:
    """Return the knots of the linear programs to solve in turn; None stands for all lengths.

    If a limit on segments binds and there are many lengths, coarse programs come first. The value of a length changes
    fastest among the shortest lengths, and among the longest, beside which only the shortest fit. A third of the knots
    therefore grows from the shortest length by a constant factor, a third mirrors these below the capacity, and a third
    is evenly spaced.
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
    """Return about `count` of the patterns, evenly spaced, and a pattern with the longest segment."""
    firsts = patterns.extents[patterns.offsets[:-1]]
    longest = np.flatnonzero(firsts == firsts.max(initial=0))[:1]  # empty if there are no patterns
    kept = np.union1d(np.arange(0, len(firsts), max(1, len(firsts) // count)), longest)
    rows = Rows(values=patterns.extents, row_starts=patterns.offsets).chosen(kept)
    return Patterns(offsets=rows.row_starts, extents=rows.values, counts=patterns.counts[kept])


# ---- From fractions of a linear program to whole packs: some follow rounded patterns, the others are packed again ----

GOLDEN = (5**0.5 - 1) / 2
"""Golden ratio conjugate. Its multiples modulo 1 are evenly spread; they are the offsets of the roundings."""

LOOSE = ((16, 50), (16, 0), (64, 50), (1, 50), (64, 0), (1, 0))
"""(number of turns over the templates, window for full packs); attempts cycle through these pairs."""


def round_packs(
    histogram: NDArray[np.int64],
    max_segments: int | None,
    templates: Patterns,
    packs: NDArray[np.float64],
    attempt: int,
    *,
    strict: bool,
) -> Patterns:
    """Pack the histogram with about `packs[i]` packs like template i, and the remaining segments by a heuristic.

    With `strict`, places take only segments of their length or shorter ones. Attempt 0 then rounds `packs` down, and
    attempt 1 to the nearest integers. Later attempts round with `rounded`.
    """
    if strict and attempt < 2:
        counts = np.floor(packs + (1e-6, 0.5)[attempt]).astype(np.int64)
    else:
        counts = rounded(packs, attempt)
    limit = segment_limit(histogram, max_segments)
    first, left = follow_templates(histogram, limit, templates, counts, attempt, strict=strict)
    rest = best_fit_decreasing(left, max_segments), exact_fill(left, max_segments)
    return joined_patterns(first, min(rest, key=lambda patterns: patterns.packs))


def rounded(packs: NDArray[np.float64], attempt: int) -> NDArray[np.int64]:
    """Round to whole packs and keep the running sum: 0.4, 0.4, 0.4 with an offset of 0.5 become 0, 1, 0.

    Each attempt has its own offset.
    """
    sums = np.floor(np.cumsum(packs) + attempt * GOLDEN % 1.0).astype(np.int64)
    return np.diff(sums, prepend=0)


def follow_templates(
    histogram: NDArray[np.int64],
    limit: int,
    templates: Patterns,
    counts: NDArray[np.int64],
    attempt: int = 0,
    *,
    strict: bool,
) -> tuple[Patterns, NDArray[np.int64]]:
    """Return packs that follow templates, and the histogram of the remaining segments."""
    turns, window = (1, STRICT) if strict else LOOSE[attempt % len(LOOSE)]
    extents = templates.extents.astype(np.int64)
    filled, left = follow(histogram, templates.offsets, extents, counts, limit, turns, window, nothing_filled())
    return to_patterns(*filled), left


def joined_patterns(first: Patterns, second: Patterns) -> Patterns:
    """Concatenate two sets of patterns."""
    return Patterns(
        offsets=np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        extents=np.concatenate([first.extents, second.extents]),
        counts=np.concatenate([first.counts, second.counts]),
    )


STRICT = -1
"""Window of strict packs: each place takes its length, or the next shorter one that is left."""

BORROWED = 4
"""A place may take up to 1 / BORROWED of the tokens of the places after it."""


@jit_if_large
def follow(
    histogram: NDArray[np.int64],
    offsets: NDArray[np.int64],
    extents: NDArray[np.int64],
    counts: NDArray[np.int64],
    limit: int,
    turns: int,
    window: int,
    out: Filled,
) -> tuple[Filled, NDArray[np.int64]]:
    """Fill `counts[i]` packs like template i. Returns the packs and the histogram of the remaining segments.

    out: table without packs. turns: each template fills its packs in this many turns, so all templates are affected
    when a length runs out. window: number of tokens by which the second-last place may deviate from its template to
    fill the pack exactly. With STRICT, no place exceeds its template.
    """
    capacity = len(histogram) - 1
    left = histogram.copy()
    below = np.arange(capacity + 1)
    above = np.arange(capacity + 2)
    found = np.zeros(capacity + 1, np.int64)
    for turn in range(turns):
        for template in range(len(counts)):
            places = extents[offsets[template] : offsets[template + 1]]
            wanted = counts[template] * (turn + 1) // turns - counts[template] * turn // turns
            while wanted > 0:
                size = _one_pack(places, limit, window, below, above, left, found)
                if size == 0:
                    break
                packs = min(wanted, packs_left(left, found, size))
                out = add_packs(out, found, size, packs, left)
                wanted -= packs
    return out, left


@jit_if_large
def _one_pack(
    places: NDArray[np.int64],
    limit: int,
    window: int,
    out_below: NDArray[np.int64],
    out_above: NDArray[np.int64],
    out_left: NDArray[np.int64],
    out_found: NDArray[np.int64],
) -> int:
    """Write one pack that follows a template, in descending order, to `out_found`; return its number of segments.

    Example: for [5, 4, 3], no 5 is left but a 4. With the saved token, the next place looks for 4 + 1 * 4 // 7 = 4, and
    the last place takes what fills the pack: [4, 4, 4].
    """
    room = len(out_left) - 1
    rest = places.sum()
    ahead = 0  # tokens by which the template exceeds the segments found so far
    size = 0
    for place in range(len(places) + limit):
        length = 0
        if window == STRICT:
            if place >= len(places):
                break
            length = next_left(out_below, out_left, places[place], -1)
        elif place >= len(places) - 1:
            # The last place, and any place beyond it that the limit allows.
            if size < limit:
                length = next_left(out_below, out_left, room, -1)
            if length == 0 and place >= len(places):
                break
        else:
            want = max(1, places[place] + ahead * places[place] // rest)
            rest -= places[place]
            most = min(room, room - rest + rest // BORROWED)
            length = _nearest(min(want, most), most, out_below, out_above, out_left)
            if place == len(places) - 2 and window > 0:
                exact = _beside_exact(want, window, room, out_left)
                length = exact if exact > 0 else length
            ahead += places[place] - length
        if length > 0:
            out_left[length] -= 1
            room -= length
            out_found[size] = length
            size += 1
    for place in range(size):
        out_left[out_found[place]] += 1
    _sort_descending(out_found, size)
    return size


@jit_if_large
def _nearest(
    want: int, most: int, out_below: NDArray[np.int64], out_above: NDArray[np.int64], left: NDArray[np.int64]
) -> int:
    """Return the length nearest to `want`, at most `most`, with a segment left; 0 if there is none."""
    if want <= 0:
        return 0
    shorter = next_left(out_below, left, want, -1)
    if most <= want or shorter == want:
        return shorter
    longer = next_left(out_above, left, want, 1)
    return longer if longer <= most and (shorter == 0 or longer - want <= want - shorter) else shorter


@jit_if_large
def _beside_exact(want: int, window: int, room: int, left: NDArray[np.int64]) -> int:
    """Return the length in the window, nearest to `want`, that another segment completes to `room`; 0 without one."""
    for away in range(window):
        for length in (want + away, want - away):
            if 0 < length < room and left[length] > 0:
                other = room - length
                if left[other] > (other == length):
                    return length
    return 0


@jit_if_large
def _sort_descending(out: NDArray[np.int64], size: int) -> None:
    """Sort out[:size] in descending order by insertion, as it is nearly sorted."""
    for i in range(1, size):
        length = out[i]
        place = i
        while place > 0 and out[place - 1] < length:
            out[place] = out[place - 1]
            place -= 1
        out[place] = length
