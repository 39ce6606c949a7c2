"""Rows with no two segments of a group (`apart`): rows with a clash are dissolved and their segments packed anew."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.plan.apart_kernels import find_runs, mark_clashes, spread_runs
from packer.plan.groups import NO_GROUP, apart_bound_of_extents, by_group, collected, groups_of_numbers
from packer.plan.segments import Segments
from packer.plan.whole_plan import Plan

SPARE = 0.006
"""Rows to spare with which packing anew begins, as a share of the rows dissolved: full rows leave no choice."""

GROWTH = 1.5
"""Factor by which more rows are dissolved while the largest group needs more rows than there are."""

CLASS_RATIO, SHORTEST = 1.1, 256
"""Extents of a class differ by a factor of CLASS_RATIO at most, except that all above half a row are one class, and all
below a SHORTEST-th of a row are another."""


def keep_apart(
    plan: Plan,
    segments: Segments,
    groups: NDArray[np.int32],
    *,
    least: int,
    max_segments: int | None,
    rows_per_shard: int,
    seed: int,
) -> Plan:
    """Make a plan in which no row holds two segments of a group; pieces of one document are of one group.

    Rows that hold two segments of a group are dissolved, and with them so many other rows that the largest group has
    room. Their segments are spread over as many rows and a few to spare, the longest first, each in the emptiest row
    that holds nothing of its group; what finds no room opens a new row. Where that makes all rows more by SPARE, or
    where no part of them suffices, all rows are dissolved, and the plan with the fewest rows is kept.

    Args:
        plan: as `deal` made it; returned as it is where no row holds two segments of a group.
        segments: what it places.
        groups: (documents,) the group of each, 0 to groups - 1, or NO_GROUP: free to stand anywhere.
        least: packs that groups demand, as of `apart_bound`.
        max_segments: the most in a row; None for no limit.
        rows_per_shard: the most rows of a shard.
        seed: 0 to 2**64 - 1.
    """
    of_numbers = groups_of_numbers(segments, groups)
    is_clash = np.zeros(plan.packs, np.bool_)
    mark_clashes(plan.slots, plan.row_starts, of_numbers, int(groups.max(initial=NO_GROUP)) + 1, is_clash)
    clashes = int(np.count_nonzero(is_clash))
    if not clashes:
        return plan
    repair = _Repair(
        plan=plan,
        extents=segments.extents_of_numbers(),
        groups=of_numbers,
        order=np.argsort(~is_clash, kind="stable"),
        max_len=segments.max_len,
        limit=segments.max_len if max_segments is None else min(max_segments, segments.max_len),
        rows_per_shard=rows_per_shard,
        seed=seed,
    )
    rows, found = clashes, None
    while rows < plan.packs:
        needed = apart_bound_of_extents(repair.extents_in(rows), of_numbers, segments.max_len)
        if needed <= (1 + SPARE) * rows:
            found = repair.dissolve(rows, needed)
            break
        rows = math.ceil(GROWTH * rows)
    if found is None or found.packs > (1 + SPARE) * plan.packs:
        anew = repair.dissolve(plan.packs, least)
        found = anew if found is None or anew.packs < found.packs else found
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repair:
    """A plan of which some rows hold two segments of a group."""

    plan: Plan

    extents: NDArray[np.int32]
    """Shape (segment numbers,): the extent of each."""

    groups: NDArray[np.int32]
    """Shape (segment numbers,): the group of each, -1 for none."""

    order: NDArray[np.int64]
    """Shape (packs,): the rows with a clash, then the others, whose order is random."""

    max_len: int
    limit: int
    rows_per_shard: int
    seed: int

    def extents_in(self, rows: int) -> NDArray[np.int32]:
        """The extents of the segments in the first rows of `order`, by segment number; 0 for all others."""
        numbers = self.plan.slots[self._slots_of(rows)]
        chosen = np.zeros_like(self.extents)
        chosen[numbers] = self.extents[numbers]
        return chosen

    def dissolve(self, rows: int, least: int) -> Plan:
        """Pack the segments in the first rows of `order` anew, in `least` rows or more, and keep the other rows.

        Segments go class of extents by class, the longest first, and in a class group by group: a row that took one
        of the group need not be asked again.
        """
        grouped = by_group(self.extents_in(rows), self.groups, self.max_len, self.seed)
        begin = min(max(least, rows + int(SPARE * rows)), len(grouped.numbers))
        classes = _classes(self.max_len)
        runs = np.empty_like(grouped.numbers)
        runs = runs[: find_runs(grouped, classes, runs)]
        anew = np.empty_like(grouped.numbers)
        packs = spread_runs(grouped, classes, runs, self.max_len, self.limit, begin, anew)
        # the rows that stay are numbered from `packs` on
        kept = np.sort(self.order[rows:])
        depths = np.diff(self.plan.row_starts)[kept]
        stay = np.repeat(np.arange(packs, packs + len(kept), dtype=anew.dtype), depths)
        return collected(
            np.concatenate([grouped.numbers, self.plan.slots[~self._slots_of(rows)]]),
            np.concatenate([anew, stay]),
            packs + len(kept),
            rows_per_shard=self.rows_per_shard,
            seed=self.seed,
        )

    def _slots_of(self, rows: int) -> NDArray[np.bool_]:
        """Which slots are in the first rows of `order`: bool, shape (segments,)."""
        is_chosen = np.zeros(self.plan.packs, np.bool_)
        is_chosen[self.order[:rows]] = True
        return np.repeat(is_chosen, np.diff(self.plan.row_starts))


def _classes(max_len: int) -> NDArray[np.int64]:
    """The class of each extent, (max_len + 1,): 0 above half a row, where no two share one."""
    steps = math.ceil(math.log(SHORTEST / 2, CLASS_RATIO))
    edges = max_len / 2 / CLASS_RATIO ** np.arange(steps + 1)
    return np.searchsorted(-edges, -np.arange(max_len + 1), side="left")
