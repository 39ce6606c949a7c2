"""Keep groups apart: dissolve rows with two segments of a group, and pack their segments again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.plan.apart_kernels import find_runs, mark_clashes, spread_runs
from packer.plan.groups import NO_GROUP, apart_bound_of_extents, by_group, collected, groups_of_numbers
from packer.plan.segments import Segments
from packer.plan.whole_plan import Plan

EXTRA = 0.006
"""Extra rows to pack the segments of dissolved rows into, as a share of these rows."""

GROWTH = 1.5
"""Factor by which the number of dissolved rows grows while the largest group needs more rows."""

CLASS_RATIO, SHORTEST = 1.1, 256
"""Extents of a class differ at most by the factor CLASS_RATIO. Exceptions are the class of all extents above half a
row, and the class of all below 1 / SHORTEST of a row."""


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
    """Change a plan so that no row holds two segments of a group; pieces of one document are in one group.

    Rows that hold two segments of a group are dissolved, and as many others as the largest group needs. Their segments,
    the longest first, are spread over the same number of rows and a few extra ones: each goes to the emptiest row
    without its group, or to a new row. If this adds more than the share EXTRA to all rows, or the largest group needs
    all rows, every row is dissolved. The plan with the fewest rows is kept.

    Args:
        plan: plan made by `deal`; it is returned unchanged if no row holds two segments of a group.
        segments: segments of the plan.
        groups: (documents,) group of each document, 0 to groups - 1, or NO_GROUP for documents that may share any row.
        least: lower bound on the rows, from `apart_bound`.
        max_segments: largest number of segments in a row; None for no limit.
        rows_per_shard: largest number of rows of a shard.
        seed: seed of all permutations, 0 to 2**64 - 1.
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
        if needed <= (1 + EXTRA) * rows:
            found = repair.dissolve(rows, needed)
            break
        rows = math.ceil(GROWTH * rows)
    if found is None or found.packs > (1 + EXTRA) * plan.packs:
        repacked = repair.dissolve(plan.packs, least)
        found = repacked if found is None or repacked.packs < found.packs else found
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repair:
    """Plan with rows that hold two segments of a group."""

    plan: Plan

    extents: NDArray[np.int32]
    """Shape (segment numbers,): extent of each segment."""

    groups: NDArray[np.int32]
    """Shape (segment numbers,): group of each segment, -1 for none."""

    order: NDArray[np.int64]
    """Shape (packs,): rows with a clash, then the others, whose order is random."""

    max_len: int
    limit: int
    rows_per_shard: int
    seed: int

    def extents_in(self, rows: int) -> NDArray[np.int32]:
        """Return the extents of the segments in the first rows of `order`, by segment number; 0 for all others."""
        numbers = self.plan.slots[self._slots_of(rows)]
        chosen = np.zeros_like(self.extents)
        chosen[numbers] = self.extents[numbers]
        return chosen

    def dissolve(self, rows: int, least: int) -> Plan:
        """Pack the segments in the first rows of `order` again, into at least `least` rows, and keep the other rows.

        Segments are packed class of extents by class, the longest first, and within a class group by group, so that
        rows with a segment of the group are set aside once for all its segments.
        """
        grouped = by_group(self.extents_in(rows), self.groups, self.max_len, self.seed)
        begin = min(max(least, rows + int(EXTRA * rows)), len(grouped.numbers))
        classes = _classes(self.max_len)
        runs = np.empty_like(grouped.numbers)
        runs = runs[: find_runs(grouped, classes, runs)]
        new_rows = np.empty_like(grouped.numbers)
        packs = spread_runs(grouped, classes, runs, self.max_len, self.limit, begin, new_rows)
        # Rows that are kept get the numbers from `packs` on.
        kept = np.sort(self.order[rows:])
        depths = np.diff(self.plan.row_starts)[kept]
        kept_rows = np.repeat(np.arange(packs, packs + len(kept), dtype=new_rows.dtype), depths)
        return collected(
            np.concatenate([grouped.numbers, self.plan.slots[~self._slots_of(rows)]]),
            np.concatenate([new_rows, kept_rows]),
            packs + len(kept),
            rows_per_shard=self.rows_per_shard,
            seed=self.seed,
        )

    def _slots_of(self, rows: int) -> NDArray[np.bool_]:
        """Return which slots are in the first rows of `order`: bool, shape (segments,)."""
        is_chosen = np.zeros(self.plan.packs, np.bool_)
        is_chosen[self.order[:rows]] = True
        return np.repeat(is_chosen, np.diff(self.plan.row_starts))


def _classes(max_len: int) -> NDArray[np.int64]:
    """Return the class of each extent, shape (max_len + 1,): 0 above half a row, where no two can share a row."""
    steps = math.ceil(math.log(SHORTEST / 2, CLASS_RATIO))
    edges = max_len / 2 / CLASS_RATIO ** np.arange(steps + 1)
    return np.searchsorted(-edges, -np.arange(max_len + 1), side="left")
