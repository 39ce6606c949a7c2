"""Rows that look like the corpus: segments in random order, each row closed by segments that fill it exactly.

Solvers sort by length, so the segments of a row have similar lengths. Here, a row takes the next segments of a random
order until one does not fit. Then it is closed by up to three other segments that fill the gap exactly, found among the
next NEAR segments of the order. If there are none, up to MOST_REMOVED segments are put back, and the larger gap is
tried. Full rows waste nothing, so the remaining segments can be packed as tightly as all segments together, if their
lengths are varied enough. A random share of the segments is reserved for the solver: the smallest share that needs no
additional row.

Rows are closed mostly by short segments. If these came from anywhere in the order, short segments would run out, and
later rows would have only long ones. The next NEAR segments are replenished as rows are drawn, so all rows are alike.
If they cannot close a row, it is given up. With `far`, it may be closed by segments from anywhere: more rows are
exactly full, which may save a few rows, but rows are less mixed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.jit import jit_if_large
from packer.algorithms.optimal import SLACK, auto, joined_patterns
from packer.algorithms.patterns import Patterns, Rows

SHARES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Shares of the tokens reserved for the solver, tried in turn."""

PROBED = 1 / 32
"""Share of the tokens that is drawn to see whether drawn rows are worth as much as rows of the solver."""

WORK_OF_REST = 2_000_000
"""Work limit of the solver for the reserved segments, about 0.1 seconds; see `packer.algorithms.optimal.Limits`."""

NEAR = 2048
"""The segments that close a row are searched among this many upcoming segments of the order."""

CANDIDATES = 64
"""Number of upcoming segments that are tried as the first of two or three closing segments."""

PARTNERS = 8
"""Number of segments after the first that are tried as the second of three."""

MOST_REMOVED = 4
"""Maximum number of segments put back if nothing closes the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """Rows made from segments in random order: the first rows are drawn, the others follow patterns."""

    drawn: int
    """Number of drawn rows; 0 if all rows follow patterns."""

    far: bool
    """Whether segments from anywhere in the order may close a drawn row."""

    rest: Patterns
    """Patterns of all other rows."""

    share: float = 0.0
    """Value of SHARES that was used; 0 if all rows follow patterns."""

    lower_bound: int = 0
    """Lower bound on the number of rows that the solver proved; 0 if it did not run on all segments."""

    @property
    def packs(self) -> int:
        """Number of rows."""
        return self.drawn + self.rest.packs

    def patterns(self, order: NDArray[np.int32], max_len: int, max_segments: int | None) -> Patterns:
        """Return the extents of the rows, drawn rows first. `order` must be the array that `mix` was called with."""
        if not self.drawn:
            return self.rest
        drawn = draw_rows(order.copy(), max_len, max_segments, most=self.drawn, far=self.far)
        counts = np.ones(self.drawn, np.int64)
        return joined_patterns(Patterns(offsets=drawn.row_starts, extents=drawn.values, counts=counts), self.rest)


def mix(
    order: NDArray[np.int32],
    max_len: int,
    max_segments: int | None,
    *,
    always_draws: bool,
    work: int,
    first: Mix | None = None,
    start: Patterns | None = None,
    values: NDArray[np.float64] | None = None,
) -> Mix:
    """Choose how many rows to draw: the largest number that needs no more rows than the solver alone.

    order: extents in random order, int32, shape (segments,). work: work limit of the solver for all segments. The
    solver packs all segments only if no drawing reaches the lower bound. With `always_draws` it never does, and the
    drawing that needs the fewest rows is used. first: rows of another partition of the same documents, which are tried
    first; only a larger share may be reserved. start: patterns with which the solver begins. values: values of extents,
    see `Patterns.values`. If drawn rows are worth less than rows of the solver, no rows are drawn.
    """
    histogram = np.bincount(order, minlength=max_len + 1)
    if values is not None and not always_draws:
        most = int(PROBED * (histogram @ np.arange(max_len + 1))) // max_len
        few = draw_rows(order.copy(), max_len, max_segments, most=most)
        if len(few) - values[few.values].sum() > 1:
            return _solved(histogram, max_segments, work, start)
    least = lower_bound(histogram, max_segments)
    best: Mix | None = None
    most = len(order)  # drawings that need more rows are skipped
    is_hopeless = False
    fars = (False,) if len(order) <= NEAR else (False, True) if first is None else (first.far,)
    shares = [share for share in SHARES if first is None or share >= first.share]
    for far in fars:
        ways = () if is_hopeless else _ways_to_draw(order, max_len, max_segments, shares, far=far)
        for share, drawn in ways:
            left = histogram - np.bincount(drawn.values, minlength=max_len + 1)
            needed = lower_bound(left, max_segments)
            if best is not None and best.rest.values is not None:
                needed = max(needed, math.ceil(best.rest.values @ left - SLACK))
            is_hopeless = len(drawn) + needed > most
            if is_hopeless:
                continue
            enough = (least if best is None else most) - len(drawn)
            rest = auto(left, max_segments, work=WORK_OF_REST, enough=enough)
            proved = 0 if best is None else best.lower_bound
            found = Mix(drawn=len(drawn), far=far, rest=rest, share=share, lower_bound=proved)
            if found.packs == least:
                return found
            if best is None and not always_draws:
                best = _solved(histogram, max_segments, work, start)
                found, most = replace(found, lower_bound=best.lower_bound), best.packs
            if found.packs <= most:
                if not always_draws:
                    return found
                best, most = found, found.packs - 1
    return best or _solved(histogram, max_segments, work, start)


def _solved(histogram: NDArray[np.int64], max_segments: int | None, work: int, start: Patterns | None) -> Mix:
    """Pack all segments with the solver."""
    rest = auto(histogram, max_segments, start, work=work)
    return Mix(drawn=0, far=False, rest=rest, lower_bound=rest.lower_bound)


def _ways_to_draw(
    order: NDArray[np.int32], max_len: int, max_segments: int | None, shares: Sequence[float], *, far: bool
) -> Iterator[tuple[float, Rows]]:
    """Yield each share and the rows drawn from the other tokens."""
    total = int(order.sum(dtype=np.int64))
    drawn = draw_rows(order.copy(), max_len, max_segments, reserve=int(SHARES[0] * total), far=far)
    before = None
    for share in shares:
        count = min(len(drawn), int((1 - share) * total / max_len))
        if count and count != before:
            yield share, drawn.part(0, count)
        before = count


LEFT, NEARBY, TAKEN_FAR, SKIPPED = range(4)
"""Rows of the counts of segments that are not drawn yet, by extent.

LEFT: all of them. NEARBY: those among the next `ahead` positions of the order. TAKEN_FAR: segments beyond these
positions that already closed a row. SKIPPED: segments of the order that closed a row, so the order skips them.
"""


def draw_rows(
    order: NDArray[np.int32],
    max_len: int,
    max_segments: int | None = None,
    *,
    reserve: int = 0,
    most: int | None = None,
    ahead: int = NEAR,
    far: bool = False,
) -> Rows:
    """Draw rows that are exactly full.

    Extents [5, 3, 2, 4, 5, 6] at max_len 10, in this order, give rows [5, 3, 2] and [4, 6]. The second 5 is left over:
    it did not fit after 4, so 6 closed the row.

    order: extents in random order, int32, shape (segments,); used as scratch space. reserve: least number of tokens
    left over. most: maximum number of rows. A larger reserve, or fewer rows, give the first of the same rows. ahead:
    number of upcoming segments that may close a row. far: whether segments from anywhere may close a row if the
    upcoming ones cannot.
    """
    assert order.dtype == np.int32
    limit = max_len if max_segments is None else min(max_segments, max_len)
    total = int(order.sum(dtype=np.int64))
    counts = np.zeros((4, max_len + 1), np.int64)
    counts[LEFT] = np.bincount(order, minlength=max_len + 1)
    row, row_extents = np.empty(limit, np.int32), np.empty(len(order), np.int32)
    row_starts = np.zeros(min(total // max_len, total if most is None else most) + 1, np.int64)
    rows = _draw(order, counts, total - reserve, ahead, far, row, row_extents, row_starts)
    row_starts = row_starts[: rows + 1].copy()
    return Rows(values=row_extents[: row_starts[-1]], row_starts=row_starts)


# Subtle: the arrays are arguments of the kernels, not fields of a named tuple. Numba counts references to an array that
# it takes from a tuple, which would take as long as the search itself.


@jit_if_large
def _draw(
    out_order: NDArray[np.int32],
    out_counts: NDArray[np.int64],
    places: int,
    ahead: int,
    far: bool,
    out_row: NDArray[np.int32],
    out_row_extents: NDArray[np.int32],
    out_row_starts: NDArray[np.int64],
) -> int:
    """Draw rows until they cover `places` tokens, including the padding of rows that were given up, or the order ends.

    Writes the extents of full rows, row by row, and the start of each row, as many as fit into `out_row_starts`.
    out_row: scratch space, shape (maximum number of segments in a row,). Returns the number of full rows.
    """
    order, counts = out_order, out_counts
    rows, size, position, end = 0, 0, 0, 0
    while places > 0 and position < len(order) and rows < len(out_row_starts) - 1:
        # Take the next segments until the row is full or one does not fit.
        taken = 0
        room = counts.shape[1] - 1
        while room > 0:
            while position < len(order) and counts[SKIPPED, order[position]] > 0:
                counts[SKIPPED, order[position]] -= 1
                position += 1
            while end < min(position + ahead, len(order)):
                is_taken = counts[TAKEN_FAR, order[end]] > 0
                counts[TAKEN_FAR, order[end]] -= is_taken
                counts[NEARBY, order[end]] += not is_taken
                end += 1
            if position == len(order) or taken == len(out_row) or order[position] > room:
                break
            extent = order[position]
            position += 1
            out_row[taken] = extent
            taken += 1
            room -= extent
            counts[LEFT, extent] -= 1
            counts[NEARBY, extent] -= 1
        if room > 0:
            position, taken, room = _close(order, counts, NEARBY, position, out_row, taken, room)
        if room > 0 and far and end < len(order):
            position, taken, room = _close(order, counts, LEFT, position, out_row, taken, room)
        places -= counts.shape[1] - 1 - room
        if room > 0:
            continue
        for i in range(taken):
            out_row_extents[size] = out_row[i]
            size += 1
        rows += 1
        out_row_starts[rows] = size
    return rows


@jit_if_large
def _close(
    out_order: NDArray[np.int32],
    out_counts: NDArray[np.int64],
    which: int,
    position: int,
    out_row: NDArray[np.int32],
    taken: int,
    room: int,
) -> tuple[int, int, int]:
    """Fill a row exactly, and put back as few segments as necessary. Returns (position, taken, room).

    which: segments that may fill the row, NEARBY or LEFT. Segments that are put back come next in the order. If nothing
    fills the row, it is unchanged and has room left.
    """
    order, counts = out_order, out_counts
    gap = room
    for removed in range(min(taken, MOST_REMOVED) + 1):
        last = taken - removed
        if removed > 0:
            gap += out_row[last]
        found, closers = _find_closers(order, counts, which, position, gap, len(out_row) - last)
        if found == 0 or (found == 1 and removed == 1 and closers[0] == out_row[last]):
            continue
        for i in range(taken - 1, last - 1, -1):
            position -= 1
            order[position] = out_row[i]
            counts[LEFT, out_row[i]] += 1
            counts[NEARBY, out_row[i]] += 1
        for i in range(found):
            extent = closers[i]
            out_row[last + i] = extent
            is_near = counts[NEARBY, extent] > 0
            counts[NEARBY, extent] -= is_near
            counts[TAKEN_FAR, extent] += not is_near
            counts[LEFT, extent] -= 1
            counts[SKIPPED, extent] += 1
        return position, last + found, 0
    return position, taken, room


@jit_if_large
def _find_closers(
    order: NDArray[np.int32], counts: NDArray[np.int64], which: int, position: int, gap: int, most: int
) -> tuple[int, tuple[int, int, int]]:
    """Return the number and the extents of up to three segments that fill a gap exactly; the number 0 if none do.

    Two segments are preferred. A single segment would have to be as long as the gap, and three would have to be
    unusually short; both would skew the remaining lengths. The order determines the first segment, and the gap
    determines the last.
    """
    end = min(position + CANDIDATES, len(order))
    if most >= 2:
        for place in range(position, end):
            one = np.int64(order[place])
            other = gap - one
            if other > 0 and counts[which, one] > 0 and counts[which, other] > (one == other):
                return 2, (one, other, 0)
    if most >= 1 and gap < counts.shape[1] and counts[which, gap] > 0:
        return 1, (gap, 0, 0)
    if most >= 3:
        for place in range(position, end):
            one = np.int64(order[place])
            if one >= gap or counts[which, one] <= 0:
                continue
            counts[which, one] -= 1
            for second in range(place + 1, min(place + 1 + PARTNERS, len(order))):
                two = np.int64(order[second])
                three = gap - one - two
                if three > 0 and counts[which, two] > 0 and counts[which, three] > (two == three):
                    counts[which, one] += 1
                    return 3, (one, two, three)
            counts[which, one] += 1
    return 0, (0, 0, 0)
