"""Column generation: a linear program over known patterns, and rounds that add better patterns."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Patterns

SCALE = 2**40
"""Integer that represents the value 1 of a whole pack."""

TOLERANCE = 2**-26
"""A pattern is added as a column if its value exceeds 1 by more than this; HiGHS is exact to about 1e-7."""

CAUTION = 0.7
"""Weight of the values with the best bound in their average with the current values, at which patterns are priced."""

NEW_COLUMNS = 100
"""Maximum number of patterns that a round adds, the most valuable first."""


class UnsolvedError(Exception):
    """Raised if HiGHS neither solves a linear program nor reaches its limit of iterations; its solution is zeros."""


class ColumnGeneration:
    """A linear program over the patterns of a histogram. Each `step` solves it and adds patterns.

    With `knots`, the program is coarse: only lengths that are knots have a row. A length between two knots counts
    partly for each: 14 between 10 and 20 is 0.6 of a 10 and 0.4 of a 20. Values are therefore linear between knots. The
    certified bound still holds, but the packs of a solution have a place for every segment only approximately.
    """

    def __init__(
        self,
        histogram: NDArray[np.int64],
        limit: int,
        *,
        knots: NDArray[np.int64] | None = None,
        values: NDArray[np.float64] | None = None,
    ) -> None:
        """Start without patterns.

        histogram: shape (max_len + 1,). limit: maximum number of segments in a pack. knots: ascending indices of
        lengths, including the first and the last; None makes all lengths knots. values: values of the lengths that gave
        a known bound, shape (lengths,); None uses the values of the simple bounds.
        """
        self.capacity = len(histogram) - 1
        self.limit = limit
        self.lengths = np.flatnonzero(histogram)
        self.demand = histogram[self.lengths]
        self.columns = 0
        self.packs = np.zeros(0)  # packs of each column in the last solution
        self.bound = 0  # best certified bound so far
        self.values = first_values(histogram, limit) if values is None else values
        """Values (lengths,) that gave the best bound. No pattern is worth more than a pack at these values."""
        self.exact = False  # whether the last solution is optimal for its columns
        self.finished = False  # whether the linear program is solved: no pattern is worth more than a pack
        knots = np.arange(len(self.lengths)) if knots is None else knots
        ahead = np.append(knots[1:], knots[-1])
        self._knot = np.searchsorted(knots, np.arange(len(self.lengths)), side="right") - 1
        span = np.maximum(self.lengths[ahead] - self.lengths[knots], 1)[self._knot]
        self._share = (self.lengths - self.lengths[knots[self._knot]]) / span
        self._knots = len(knots)
        # The cost of a simplex iteration: it visits all rows, and has a fixed cost of about 1,000 rows.
        self._per_iteration = self._knots + 1000
        self._priced = 0
        self.pricing_work = pricing_work(self.lengths, self.capacity, limit)  # work units to price all patterns once
        demand = np.zeros(len(knots) + 1)
        np.add.at(demand, self._knot, self.demand * (1 - self._share))
        np.add.at(demand, self._knot + 1, self.demand * self._share)
        self._proved = 0.0  # approximately the best bound of this program, before it is rounded up
        self._master = Master(demand[:-1])
        self._known: set[bytes] = set()
        self._sizes: list[NDArray[np.int64]] = []
        self._indices: list[NDArray[np.int64]] = []

    def solution(self) -> tuple[Patterns, NDArray[np.float64]]:
        """Return the columns that the last solution uses, and the packs of each. The counts are rounded up."""
        used = self.packs > 0
        sizes = np.concatenate(self._sizes)[: len(used)]
        places = np.repeat(used, sizes)
        extents = self.lengths[np.concatenate(self._indices)[: len(places)]][places]
        offsets = np.concatenate([[0], np.cumsum(sizes[used])])
        packs = self.packs[used]
        counts = np.ceil(packs).astype(np.int64)
        return Patterns(offsets=offsets, extents=extents.astype(np.int32), counts=counts), packs

    def add_patterns(self, patterns: Patterns) -> None:
        """Add patterns as columns. Lengths that the histogram lacks become the next shorter ones that it has."""
        indices = np.searchsorted(self.lengths, patterns.extents, side="right") - 1
        ends = np.append(0, np.cumsum(indices >= 0))
        self._add(ends[patterns.offsets], indices[indices >= 0])

    @property
    def work(self) -> int:
        """Work of simplex iterations and pricing so far, in units of about 40 nanoseconds."""
        return self._master.iterations * self._per_iteration + self._priced * self.pricing_work

    def step(self, work: int) -> None:
        """Solve the linear program, improve the bound, and add patterns that are worth more than a pack.

        work: limit at which the solver stops early. Its values then still give a bound.
        """
        self.packs, duals, self.exact = self._master.solve(max(1, work // self._per_iteration))
        ahead = np.append(duals[1:], 0.0)
        duals = np.clip(duals[self._knot] * (1 - self._share) + ahead[self._knot] * self._share, 0, 1)
        before = self.columns
        # Values close to those with the best bound give a better bound and more stable patterns. If no pattern is added
        # at them, use the linear program's own values.
        for weight in (CAUTION, 0.0):
            self._price(weight * self.values + (1 - weight) * duals, duals)
            if self.columns > before:
                break
        self.finished = self.exact and self.columns == before

    def _price(self, values: NDArray[np.float64], duals: NDArray[np.float64]) -> None:
        """Improve the bound with `values`, and add the best patterns at these values that exceed 1 at `duals`.

        A length that is in an added pattern gets no pattern of its own, so that the added patterns differ.
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
        """Add the patterns that are not columns yet."""
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
        """Return columns as starts (patterns + 1,), rows and entries: two segments of a length are one entry of 2."""
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
    """Minimize the number of packs of known patterns, with enough places for the segments of every length.

    A segment fits into a place of a greater length, so places may be passed down from length i to i - 1. Rows are the
    lengths in ascending order. The first columns pass places down; the other columns are patterns.
    """

    def __init__(self, demand: NDArray[np.float64]) -> None:
        """Start without patterns. demand[i]: number of segments of the i-th length."""
        # Imported here, because most histograms never need it.
        import highspy

        self.lengths = len(demand)
        self.iterations = 0  # simplex iterations so far
        self._infinity: float = highspy.kHighsInf
        self._error, self._status = highspy.HighsStatus.kError, highspy.HighsModelStatus
        # Subtle: HiGHS 1.16 prints its version when callbacks are enabled, before `output_flag` can be set.
        solver: type[highspy.Highs] = type("Solver", (highspy.Highs,), {"enableCallbacks": lambda self: None})
        self._highs = solver()
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("parallel", "off"),
            ("random_seed", 0),
            ("presolve", "off"),
            ("solver", "simplex"),
            ("simplex_strategy", 4),  # primal: the basis stays feasible after new columns
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
        """Add patterns: pattern i gives entries[starts[i]:starts[i + 1]] places to the lengths rows[same slice]."""
        count = len(starts) - 1
        if count > 0:
            costs, lower, upper = np.full(count, cost), np.zeros(count), np.full(count, self._infinity)
            starts, rows = starts[:-1].astype(np.int32), rows.astype(np.int32)
            self._highs.addCols(count, costs, lower, upper, len(rows), starts, rows, entries)

    def solve(self, iterations: int) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
        """Solve the linear program, or stop after `iterations` simplex iterations.

        Returns (packs, values, exact): the packs of each pattern, shape (patterns,); the value of a place of each
        length, shape (lengths,); and whether the solution is optimal. Raises an UnsolvedError if HiGHS ends in any
        other way.
        """
        self._highs.setOptionValue("simplex_iteration_limit", iterations)
        ended = self._highs.run()
        if ended == self._error:
            # Subtle: HiGHS refuses a number of threads that differs from the first one in the process, which other code
            # may have set. 0 accepts that number, and the simplex method uses one thread in any case.
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
    """Return values (lengths,) at which no pattern is worth more than a pack, for the better of two simple bounds.

    Either each length is worth its share of the capacity, or each length of at least t is worth an equal share of the
    places in a pack; see `token_bound` and `segments_bound` in `packer.algorithms.bounds`.
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
    """Return a lower bound: the value of all segments divided by the value of the best pattern, rounded up.

    Python's integers make it exact. Example: 3 segments worth 2 each, with no pack worth more than 4, need at least 2
    packs.
    """
    if best == 0:
        return 0
    worth: int = sum(count * value for count, value in zip(demand.tolist(), values.tolist(), strict=True))
    return -(-worth // best)


def pricing_work(lengths: NDArray[np.int64], capacity: int, limit: int) -> int:
    """Return the work to price all patterns once, in units of about 40 nanoseconds."""
    layers = min(limit, capacity // int(lengths[0]))
    return layers * int((capacity - lengths).sum()) // 256


def price(
    lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int, limit: int
) -> tuple[int, NDArray[np.int64]]:
    """Price all patterns of `lengths`, which ascend, at `values`. The values of any pattern must sum to at most int64.

    Returns the value of the best pattern, and a table for `patterns_with`. The table has the best value of a pattern's
    other segments, by their number and their room. A pattern may have more segments of a length than exist.
    """
    if limit >= capacity // lengths[0]:
        table = _unlimited(lengths, values, capacity).reshape(1, -1)
    else:
        table = _limited(lengths, values, capacity, limit - 1)
    return int((values + table[-1, capacity - lengths]).max(initial=0)), table


@jit_if_large  # compiling takes longer than pricing the lengths of a few hundred documents
def _unlimited(lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Return the best value for each room from 0 to capacity, with any number of segments."""
    best = np.zeros(capacity + 1, np.int64)
    for i in range(len(lengths)):
        length = lengths[i]
        value = values[i]
        for room in range(length, capacity + 1):
            best[room] = max(best[room], best[room - length] + value)
    return best


@jit_if_large
def _limited(lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int, limit: int) -> NDArray[np.int64]:
    """Return the best value for each maximum number of segments and each room, shape (limit + 1, capacity + 1)."""
    best = np.zeros((limit + 1, capacity + 1), np.int64)
    for segments in range(1, limit + 1):
        before = best[segments - 1]
        after = best[segments]
        most = 0
        for i in range(len(lengths)):
            # Skip a length that is worth no more than a shorter one: the shorter one is in a best pattern as well.
            if values[i] > most:
                most = values[i]
                _allow(before, lengths[i], most, after)
    return best


@jit_if_large
def _allow(before: NDArray[np.int64], length: int, value: int, out_after: NDArray[np.int64]) -> None:
    """Raise the best values in `out_after` to those with one more segment of this length and value."""
    # Two slices that begin at index 0: as no index can be negative, the compiler vectorizes the loop (seven times as
    # fast).
    rooms = before[: len(before) - length]
    filled = out_after[length:]
    for room in range(len(rooms)):
        filled[room] = max(filled[room], rooms[room] + value)


@jit_if_large
def patterns_with(
    chosen: NDArray[np.int64], lengths: NDArray[np.int64], values: NDArray[np.int64], table: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the best pattern with each chosen length, as offsets (chosen + 1,) and indices of lengths, descending."""
    capacity = table.shape[1] - 1
    offsets = np.zeros(len(chosen) + 1, np.int64)
    indices = np.empty(16 * len(chosen) + 16, np.int64)
    step = 1 if len(table) > 1 else 0
    for pattern in range(len(chosen)):
        start = offsets[pattern]
        # No pattern is longer than this.
        if start + capacity // lengths[0] + 1 > len(indices):
            indices = _longer(indices, start, 2 * start + capacity // lengths[0] + 1)
        indices[start] = chosen[pattern]
        end = start + 1
        room = capacity - lengths[chosen[pattern]]
        row = len(table) - 1
        i = len(lengths) - 1
        while table[row, room] > 0:
            # Find the longest length in a best pattern. A shorter length never comes before a longer one.
            while lengths[i] > room or values[i] + table[row - step, room - lengths[i]] != table[row, room]:
                i -= 1
            indices[end] = i
            end += 1
            room -= lengths[i]
            row -= step
        # Move the chosen length to its place in the order.
        place = start
        while place + 1 < end and indices[place + 1] > indices[place]:
            indices[place], indices[place + 1] = indices[place + 1], indices[place]
            place += 1
        offsets[pattern + 1] = end
    return offsets, indices[: offsets[-1]]


@jit_if_large
def _longer(indices: NDArray[np.int64], used: int, size: int) -> NDArray[np.int64]:
    """Return a copy with space for `size` indices."""
    longer = np.empty(size, np.int64)
    for i in range(used):
        longer[i] = indices[i]
    return longer
