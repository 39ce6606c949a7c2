"""Column generation: a linear program over known patterns, and rounds that add patterns that improve it."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.optimal.master import Master
from packer.algorithms.optimal.pricing import certified_bound, patterns_with, price, pricing_work
from packer.algorithms.optimal.start import first_values
from packer.algorithms.patterns import Patterns

SCALE = 2**40
"""Integer value of a whole pack."""

TOLERANCE = 2**-26
"""Value beyond that of a pack that a pattern needs to become a column; HiGHS is exact to about 1e-7."""

CAUTION = 0.7
"""Weight of the values that gave the best bound, in the values at which patterns are priced."""

NEW_COLUMNS = 100
"""Most patterns that a round adds, the most valuable first."""


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
        """Start without patterns.

        Args:
            histogram: (max_len + 1,) the segments of every extent.
            limit: the most segments in a pack.
            knots: ascending indices of lengths, the first and the last among them; None makes all lengths knots.
            values: (lengths,) the values that gave a known bound; None for those of the simple bounds.
        """
        self.capacity = len(histogram) - 1
        self.limit = limit
        self.lengths = np.flatnonzero(histogram)
        self.demand = histogram[self.lengths]
        self.columns = 0
        self.packs = np.zeros(0)
        """How often the last solution uses each column."""
        self.bound = 0
        """The best certified bound so far."""
        self.values = first_values(histogram, limit) if values is None else values
        """The values (lengths,) that gave the best bound: no pattern is worth more than a pack."""
        self.exact = False
        """Whether the last solution is optimal for the columns it had."""
        self.finished = False
        """Whether the linear program is solved: no pattern is worth more than a pack."""
        knots = np.arange(len(self.lengths)) if knots is None else knots
        ahead = np.append(knots[1:], knots[-1])
        self._knot = np.searchsorted(knots, np.arange(len(self.lengths)), side="right") - 1
        span = np.maximum(self.lengths[ahead] - self.lengths[knots], 1)[self._knot]
        self._share = (self.lengths - self.lengths[knots[self._knot]]) / span
        self._knots = len(knots)
        # an iteration goes through the rows, and costs as much as a thousand of them anyway
        self._per_iteration = self._knots + 1000
        self._priced = 0
        self.pricing_work = pricing_work(self.lengths, self.capacity, limit)
        """Units of work to price the patterns once."""
        demand = np.zeros(len(knots) + 1)
        np.add.at(demand, self._knot, self.demand * (1 - self._share))
        np.add.at(demand, self._knot + 1, self.demand * self._share)
        self._proved = 0.0  # approximately the best bound of this program, before rounding up
        self._master = Master(demand[:-1])
        self._known: set[bytes] = set()
        self._sizes: list[NDArray[np.int64]] = []
        self._indices: list[NDArray[np.int64]] = []

    @property
    def objective(self) -> float:
        """Packs, in fractions, of the last solution."""
        return float(self.packs.sum())

    def templates(self) -> Patterns:
        """The columns that the last solution uses, with `packs[packs > 0]` packs; the counts are those rounded up."""
        used = self.packs > 0
        sizes = np.concatenate(self._sizes)[: len(used)]
        places = np.repeat(used, sizes)
        extents = self.lengths[np.concatenate(self._indices)[: len(places)]][places]
        offsets = np.concatenate([[0], np.cumsum(sizes[used])])
        counts = np.ceil(self.packs[used]).astype(np.int64)
        return Patterns(offsets=offsets, extents=extents.astype(np.int32), counts=counts)

    def add_patterns(self, patterns: Patterns) -> None:
        """Make patterns of the histogram's lengths columns."""
        self._add(patterns.offsets, np.searchsorted(self.lengths, patterns.extents))

    @property
    def work(self) -> int:
        """Work so far, simplex iterations and pricing, in units of about 40 nanoseconds."""
        return self._master.iterations * self._per_iteration + self._priced * self.pricing_work

    def step(self, work: int, seconds: float) -> None:
        """Solve the linear program, improve the bound, and add the patterns that are worth more than a pack.

        The solver stops early at these limits of work or seconds; its values still give a bound.
        """
        self.packs, duals, self.exact = self._master.solve(max(1, work // self._per_iteration), seconds)
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
        priced = price(self.lengths, scaled, self.capacity, self.limit)
        self._priced += 1
        self.bound = max(self.bound, certified_bound(self.demand, scaled, priced.best))
        proved = float(self.demand @ (scaled / max(1, priced.best)))
        if proved > self._proved:
            self._proved = proved
            self.values = scaled / priced.best
        offsets, indices = patterns_with(np.arange(len(self.lengths)), self.lengths, scaled, priced.table)
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
