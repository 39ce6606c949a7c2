"""The restricted master problem: the fewest packs, as fractions, of the patterns known so far; solved by HiGHS."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
        self.iterations = 0
        """Simplex iterations so far."""
        self._infinity: float = highspy.kHighsInf
        self._optimal = highspy.HighsModelStatus.kOptimal
        new_solver: Any = highspy.Highs
        self._highs: Any = new_solver()
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
        down = np.arange(1, self.lengths, dtype=np.int32)
        rows_of_down = np.stack([down - 1, down], axis=1).ravel()
        entries = np.tile([1.0, -1.0], len(down))
        self._add(np.zeros(len(down)), 2 * np.arange(len(down)), rows_of_down, entries)

    def add(self, starts: NDArray[np.int64], rows: NDArray[np.int64], entries: NDArray[np.float64]) -> None:
        """Add patterns: the i-th gives entries[starts[i]:starts[i + 1]] places to the lengths of these rows."""
        self._add(np.ones(len(starts) - 1), starts[:-1], rows, entries)

    def solve(self, iterations: int, seconds: float) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
        """Solve the linear program.

        Returns:
            How often each pattern is used, shape (patterns,); what a place of each length is worth, shape (lengths,);
            and whether that is optimal, or the solver stopped after so many simplex iterations or seconds.
        """
        self._highs.setOptionValue("simplex_iteration_limit", iterations)
        if seconds < math.inf:
            # HiGHS counts the time of all its runs together
            self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(0.05, seconds))
        self._highs.run()
        self.iterations += max(0, int(self._highs.getInfo().simplex_iteration_count))
        exact = self._highs.getModelStatus() == self._optimal
        solution = self._highs.getSolution()
        packs = np.array(solution.col_value)[max(0, self.lengths - 1) :]
        return np.maximum(packs, 0.0), np.maximum(np.array(solution.row_dual), 0.0), exact

    def _add(
        self,
        costs: NDArray[np.float64],
        starts: NDArray[Any],
        rows: NDArray[Any],
        entries: NDArray[np.float64],
    ) -> None:
        columns = len(costs)
        if columns:
            upper = np.full(columns, self._infinity)
            starts, rows = starts.astype(np.int32), rows.astype(np.int32)
            self._highs.addCols(columns, costs, np.zeros(columns), upper, len(rows), starts, rows, entries)
