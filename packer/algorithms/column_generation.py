"""Column generation: a linear program over known patterns, and rounds that add patterns that improve it."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Patterns

SCALE = 2**40
"""Integer value of a whole pack."""

TOLERANCE = 2**-26
"""Value beyond that of a pack that a pattern needs to become a column; HiGHS is exact to about 1e-7."""

CAUTION = 0.7
"""Weight of the values that gave the best bound, in the values at which patterns are priced."""

NEW_COLUMNS = 100
"""Most patterns that a round adds, the most valuable first."""


class UnsolvedError(Exception):
    """Raised if HiGHS neither solves a linear program nor stops at its limit of iterations; its solution is zeros."""


class ColumnGeneration:
    """A linear program over the patterns of a histogram; every `step` solves it and adds patterns.

    With `knots` the program is coarse: only lengths that are knots have a row, and a length between two knots counts
    partly for each: 14 between 10 and 20 is 0.6 of a 10 and 0.4 of a 20. So values are linear between knots. The
    certified bound still holds, but the packs of a solution only nearly provide a place for every segment.
    """

    def __init__(
        self,
        histogram: NDArray[np.int64],
        limit: int,
        *,
        knots: NDArray[np.int64] | None = None,
        values: NDArray[np.float64] | None = None,
    ) -> None:
        """Start without patterns, for packs of at most `limit` segments of a histogram of shape (max_len + 1,).

        Knots are ascending indices of lengths, the first and the last among them; None makes all lengths knots. Values,
        shape (lengths,), are those that gave a known bound; None for those of the simple bounds.
        """
        self.capacity = len(histogram) - 1
        self.limit = limit
        self.lengths = np.flatnonzero(histogram)
        self.demand = histogram[self.lengths]
        self.columns = 0
        self.packs = np.zeros(0)  # how often the last solution uses each column
        self.bound = 0  # the best certified bound so far
        self.values = first_values(histogram, limit) if values is None else values
        """The values (lengths,) that gave the best bound: no pattern is worth more than a pack."""
        self.exact = False  # whether the last solution is optimal for the columns it had
        self.finished = False  # whether the linear program is solved: no pattern is worth more than a pack
        knots = np.arange(len(self.lengths)) if knots is None else knots
        ahead = np.append(knots[1:], knots[-1])
        self._knot = np.searchsorted(knots, np.arange(len(self.lengths)), side="right") - 1
        span = np.maximum(self.lengths[ahead] - self.lengths[knots], 1)[self._knot]
        self._share = (self.lengths - self.lengths[knots[self._knot]]) / span
        self._knots = len(knots)
        # an iteration goes through the rows, and costs as much as a thousand of them anyway
        self._per_iteration = self._knots + 1000
        self._priced = 0
        self.pricing_work = pricing_work(self.lengths, self.capacity, limit)  # units of work to price the patterns once
        demand = np.zeros(len(knots) + 1)
        np.add.at(demand, self._knot, self.demand * (1 - self._share))
        np.add.at(demand, self._knot + 1, self.demand * self._share)
        self._proved = 0.0  # approximately the best bound of this program, before rounding up
        self._master = Master(demand[:-1])
        self._known: set[bytes] = set()
        self._sizes: list[NDArray[np.int64]] = []
        self._indices: list[NDArray[np.int64]] = []

    def solution(self) -> tuple[Patterns, NDArray[np.float64]]:
        """The columns that the last solution uses, and the packs of each; the counts are these rounded up."""
        used = self.packs > 0
        sizes = np.concatenate(self._sizes)[: len(used)]
        places = np.repeat(used, sizes)
        extents = self.lengths[np.concatenate(self._indices)[: len(places)]][places]
        offsets = np.concatenate([[0], np.cumsum(sizes[used])])
        packs = self.packs[used]
        counts = np.ceil(packs).astype(np.int64)
        return Patterns(offsets=offsets, extents=extents.astype(np.int32), counts=counts), packs

    def add_patterns(self, patterns: Patterns) -> None:
        """Make patterns of the histogram's lengths columns."""
        self._add(patterns.offsets, np.searchsorted(self.lengths, patterns.extents))

    @property
    def work(self) -> int:
        """Work so far, simplex iterations and pricing, in units of about 40 nanoseconds."""
        return self._master.iterations * self._per_iteration + self._priced * self.pricing_work

    def step(self, work: int) -> None:
        """Solve the linear program, improve the bound, and add the patterns that are worth more than a pack.

        The solver stops early at this limit of work; its values still give a bound.
        """
        self.packs, duals, self.exact = self._master.solve(max(1, work // self._per_iteration))
        ahead = np.append(duals[1:], 0.0)
        duals = np.clip(duals[self._knot] * (1 - self._share) + ahead[self._knot] * self._share, 0, 1)
        before = self.columns
        # values close to those behind the best bound give a better one, and steadier patterns; where the linear program
        # wants none of these, its own values do
        for weight in (CAUTION, 0.0):
            self._price(weight * self.values + (1 - weight) * duals, duals)
            if self.columns > before:
                break
        self.finished = self.exact and self.columns == before

    def _price(self, values: NDArray[np.float64], duals: NDArray[np.float64]) -> None:
        """Improve the bound with `values`; add the best patterns at these that are worth more than a pack at `duals`.

        Lengths that are in an added pattern get no pattern of their own, so that the patterns differ.
        """
        scaled = (values * SCALE).astype(np.int64)
        best, table = price(self.lengths, scaled, self.capacity, self.limit)
        self._priced += 1
        self.bound = max(self.bound, certified_bound(self.demand, scaled, best))
        proved = float(self.demand @ (scaled / max(1, best)))
        if proved > self._proved:
            self._proved = proved
            self.values = scaled / best
        offsets, indices = patterns_with(np.arange(len(self.lengths)), self.lengths, scaled, table)
        worth = np.add.reduceat(duals[indices], offsets[:-1])
        covered = np.zeros(len(self.lengths), bool)
        chosen: list[NDArray[np.int64]] = []
        for i in np.argsort(-worth, kind="stable")[: np.count_nonzero(worth > 1 + TOLERANCE)].tolist():
            if not covered[i] and len(chosen) < NEW_COLUMNS:
                chosen.append(indices[offsets[i] : offsets[i + 1]])
                covered[chosen[-1]] = True
        if chosen:
            self._add(np.cumsum([0, *map(len, chosen)]), np.concatenate(chosen))

    def _add(self, offsets: NDArray[np.int64], indices: NDArray[np.int64]) -> None:
        """Add the patterns that are not known yet."""
        new = []
        for i, (start, end) in enumerate(pairwise(offsets)):
            key = indices[start:end].tobytes()
            if key not in self._known:
                self._known.add(key)
                new.append(i)
        sizes = np.diff(offsets)
        is_new = np.zeros(len(sizes), bool)
        is_new[new] = True
        indices = indices[np.repeat(is_new, sizes)]
        sizes = sizes[is_new]
        self._sizes.append(sizes)
        self._indices.append(indices)
        self.columns += len(sizes)
        self._master.add(*self._entries(sizes, indices))

    def _entries(
        self, sizes: NDArray[np.int64], indices: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """The columns of patterns as starts (patterns + 1,), rows and entries: two of a length are one entry of 2."""
        pattern = np.repeat(np.arange(len(sizes)), sizes)
        places = pattern * (self._knots + 1) + self._knot[indices]
        share = self._share[indices]
        unique, inverse = np.unique(np.concatenate([places, places + 1]), return_inverse=True)
        entries = np.zeros(len(unique))
        np.add.at(entries, inverse, np.concatenate([1 - share, share]))
        unique, entries = unique[entries > 0], entries[entries > 0]
        starts = np.searchsorted(unique, np.arange(len(sizes) + 1) * (self._knots + 1)).astype(np.int64)
        return starts, (unique % (self._knots + 1)).astype(np.int64), entries


class Master:
    """Minimise the packs of known patterns such that every length has enough places.

    A place serves its length or the next shorter one, so one more place of length i may be passed down to i - 1. The
    rows are the lengths in ascending order; the first columns pass places down, the others are the patterns.
    """

    def __init__(self, demand: NDArray[np.float64]) -> None:
        """Start without patterns; demand[i] segments of the i-th length need a place."""
        # imported here: most histograms never need it
        import highspy

        self.lengths = len(demand)
        self.iterations = 0  # simplex iterations so far
        self._infinity: float = highspy.kHighsInf
        self._error, self._status = highspy.HighsStatus.kError, highspy.HighsModelStatus
        # subtle: HiGHS 1.16 prints its version when callbacks are enabled, before `output_flag` can be set
        solver: type[highspy.Highs] = type("Solver", (highspy.Highs,), {"enableCallbacks": lambda self: None})
        self._highs = solver()
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("parallel", "off"),
            ("random_seed", 0),
            ("presolve", "off"),
            ("solver", "simplex"),
            ("simplex_strategy", 4),  # primal: after new columns the basis stays feasible
        ):
            self._highs.setOptionValue(option, value)
        nothing = np.array([], np.int32)
        rows = np.full(self.lengths, self._infinity)
        starts = np.zeros(self.lengths, np.int32)
        self._highs.addRows(self.lengths, demand, rows, 0, starts, nothing, np.array([]))
        down = np.arange(1, self.lengths)
        passed = np.stack([down - 1, down], axis=1).ravel()
        self.add(2 * np.arange(self.lengths), passed, np.tile([1.0, -1.0], len(down)), cost=0.0)

    def add(
        self, starts: NDArray[np.int64], rows: NDArray[np.int64], entries: NDArray[np.float64], *, cost: float = 1.0
    ) -> None:
        """Add patterns: the i-th gives entries[starts[i]:starts[i + 1]] places to the lengths of these rows."""
        count = len(starts) - 1
        if count > 0:
            costs, lower, upper = np.full(count, cost), np.zeros(count), np.full(count, self._infinity)
            starts, rows = starts[:-1].astype(np.int32), rows.astype(np.int32)
            self._highs.addCols(count, costs, lower, upper, len(rows), starts, rows, entries)

    def solve(self, iterations: int) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
        """Solve the linear program, or stop after so many simplex iterations.

        Returns how often each pattern is used, shape (patterns,); what a place of each length is worth, shape
        (lengths,); and whether that is optimal. Raises an UnsolvedError if HiGHS ends in any other way.
        """
        self._highs.setOptionValue("simplex_iteration_limit", iterations)
        ended = self._highs.run()
        if ended == self._error:
            # subtle: HiGHS refuses another number of threads than the first one in the process, where other code may
            # have run it; 0 takes what there is, and the simplex method uses one in any case
            self._highs.setOptionValue("threads", 0)
            ended = self._highs.run()
        self.iterations += max(0, int(self._highs.getInfo().simplex_iteration_count))
        status = self._highs.getModelStatus()
        exact = status == self._status.kOptimal
        if ended == self._error or not (exact or status == self._status.kIterationLimit):
            raise UnsolvedError(f"{ended.name}, {status.name}")
        solution = self._highs.getSolution()
        packs = np.array(solution.col_value)[max(0, self.lengths - 1) :]
        return np.maximum(packs, 0.0), np.maximum(np.array(solution.row_dual), 0.0), exact


def first_values(histogram: NDArray[np.int64], limit: int) -> NDArray[np.float64]:
    """Return values (lengths,) at which no pattern is worth more than a pack: those that give the better of two bounds.

    Either a length is worth its share of the capacity, or it is worth one of the places beside lengths of at least t;
    see `token_bound` and `segments_bound` in `packer.algorithms.bounds`.
    """
    capacity = len(histogram) - 1
    lengths = np.flatnonzero(histogram)
    by_tokens = lengths / capacity
    below = np.concatenate([[0], np.cumsum(histogram)])
    t = np.arange(1, max(1, capacity // 2) + 1)
    places = np.minimum(capacity // t, limit)
    packs = below[-1] - below[capacity - t + 1] + (below[capacity - t + 1] - below[t]) / places
    best = int(np.argmax(packs))
    if packs[best] <= by_tokens @ histogram[lengths]:
        return by_tokens
    by_places = np.where(lengths >= t[best], 1 / places[best], 0.0)
    return np.where(lengths > capacity - t[best], 1.0, by_places)


def certified_bound(demand: NDArray[np.int64], values: NDArray[np.int64], best: int) -> int:
    """Return a lower bound: the value of all segments over the value of the best pattern, rounded up.

    Python's integers make it a proof: with 3 segments worth 2 each, and no pack worth more than 4, it is 2.
    """
    if best == 0:
        return 0
    worth: int = sum(count * value for count, value in zip(demand.tolist(), values.tolist(), strict=True))
    return -(-worth // best)


def pricing_work(lengths: NDArray[np.int64], capacity: int, limit: int) -> int:
    """Return the work of pricing the patterns once, in units of about 40 nanoseconds."""
    layers = min(limit, capacity // int(lengths[0]))
    return layers * int((capacity - lengths).sum()) // 256


def price(
    lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int, limit: int
) -> tuple[int, NDArray[np.int64]]:
    """Price all patterns of these lengths, ascending, at these values; no sum of values of a pattern may pass int64.

    Returns the value of the best pattern, and a table for `patterns_with`: the best values of the other segments of a
    pattern, by their number and their room. A pattern may hold a length more often than there are segments of it.
    """
    if limit >= capacity // lengths[0]:
        table = _unlimited(lengths, values, capacity).reshape(1, -1)
    else:
        table = _limited(lengths, values, capacity, limit - 1)
    return int((values + table[-1, capacity - lengths]).max(initial=0)), table


@jit_if_large  # compiling takes longer than to price the lengths of a few hundred documents
def _unlimited(lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """The best value in each room from 0 to capacity, with any number of segments."""
    best = np.zeros(capacity + 1, np.int64)
    for i in range(len(lengths)):
        length = lengths[i]
        value = values[i]
        for room in range(length, capacity + 1):
            best[room] = max(best[room], best[room - length] + value)
    return best


@jit_if_large
def _limited(lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int, limit: int) -> NDArray[np.int64]:
    """The best value (limit + 1, capacity + 1) for each number of segments and each room, as upper limits."""
    best = np.zeros((limit + 1, capacity + 1), np.int64)
    for segments in range(1, limit + 1):
        before = best[segments - 1]
        after = best[segments]
        most = 0
        for i in range(len(lengths)):
            # a shorter one of the same value is in a best pattern, too
            if values[i] > most:
                most = values[i]
                _allow(before, lengths[i], most, after)
    return best


@jit_if_large
def _allow(before: NDArray[np.int64], length: int, value: int, out_after: NDArray[np.int64]) -> None:
    """Raise the best values to those that a last segment of this length and value allows."""
    # two windows that begin at index 0: with no index that could be negative the loop becomes vector instructions,
    # seven times as fast
    rooms = before[: len(before) - length]
    filled = out_after[length:]
    for room in range(len(rooms)):
        filled[room] = max(filled[room], rooms[room] + value)


@jit_if_large
def patterns_with(
    chosen: NDArray[np.int64], lengths: NDArray[np.int64], values: NDArray[np.int64], table: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The best pattern with each chosen length in it, as offsets (chosen + 1,) and indices of lengths, descending."""
    capacity = table.shape[1] - 1
    offsets = np.zeros(len(chosen) + 1, np.int64)
    indices = np.empty(16 * len(chosen) + 16, np.int64)
    step = 1 if len(table) > 1 else 0
    for pattern in range(len(chosen)):
        start = offsets[pattern]
        # no pattern is longer than this
        if start + capacity // lengths[0] + 1 > len(indices):
            indices = _longer(indices, start, 2 * start + capacity // lengths[0] + 1)
        indices[start] = chosen[pattern]
        end = start + 1
        room = capacity - lengths[chosen[pattern]]
        row = len(table) - 1
        i = len(lengths) - 1
        while table[row, room] > 0:
            # the longest in a best pattern; a shorter one never comes before a longer one
            while lengths[i] > room or values[i] + table[row - step, room - lengths[i]] != table[row, room]:
                i -= 1
            indices[end] = i
            end += 1
            room -= lengths[i]
            row -= step
        # the chosen one to its place
        place = start
        while place + 1 < end and indices[place + 1] > indices[place]:
            indices[place], indices[place + 1] = indices[place + 1], indices[place]
            place += 1
        offsets[pattern + 1] = end
    return offsets, indices[: offsets[-1]]


@jit_if_large
def _longer(indices: NDArray[np.int64], used: int, size: int) -> NDArray[np.int64]:
    """The used ones in an array of this size."""
    longer = np.empty(size, np.int64)
    for i in range(used):
        longer[i] = indices[i]
    return longer
