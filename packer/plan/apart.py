"""Rows with no two segments of a group (`apart`): the repair of a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.plan.apart_kernels import LOOKED_AT, exchange_clashes, find_clashes, group_slots, swap_clashes
from packer.plan.apart_places import join_rows, place_apart, take_out
from packer.plan.deal import Plan, even_cuts
from packer.plan.groups import NO_GROUP
from packer.plan.permute import REPAIRED_ROWS, permute, stream_key
from packer.plan.segments import Segments
from packer.plan.threads import in_threads

LOOKS_PER_SEGMENT, SUMS_PER_SEGMENT = 2, 64
"""What is looked at to swap and to exchange, at most, as multiples of the segments; where most clash, it is no help."""

MANY = 0.25
"""The share of segments that clash from which on packing anew, with the groups in mind, is tried as well."""


def keep_apart(
    plan: Plan,
    segments: Segments,
    groups: NDArray[np.int32],
    *,
    max_segments: int | None,
    rows_per_shard: int,
    seed: int,
    threads: int = 1,
) -> Plan:
    """Repair a plan so that no row holds two segments of a group; pieces of one document are of one group.

    A segment that clashes is swapped with one of equal extent: of the same shard (or the pool), or else of any; or it
    and another of its row for two of another row that take as much. What is then left goes to rows that have room, or
    to new rows, which join the pool; that is all it costs in packs.

    Args:
        plan: as `deal` made it.
        segments: what it places.
        groups: (documents,) the group of each, 0..groups - 1, or NO_GROUP: free to stand anywhere.
        max_segments: the most in a row; None for no limit.
        rows_per_shard: the most rows of a shard.
        seed: 0..2^63-1.
        threads: shards worked on at a time; the plan is the same for any number.
    """
    count = int(groups.max(initial=NO_GROUP)) + 1
    clashes = find_clashes(plan.slots, plan.row_starts, groups, segments.head_documents, count)
    if not len(clashes):
        return plan
    limit = segments.max_len if max_segments is None else min(max_segments, segments.max_len)
    slots: NDArray[Any] = plan.slots.copy()
    left = _exchanged(plan, segments, groups, clashes, seed, threads, slots)
    repaired = _placed(plan, segments, groups, left, limit, rows_per_shard, seed, slots)
    if len(clashes) > MANY * len(slots):
        every = np.arange(len(slots))
        anew = _placed(plan, segments, groups, every, limit, rows_per_shard, seed, plan.slots.copy())
        if len(anew.row_starts) < len(repaired.row_starts):
            return anew
    return repaired


def _exchanged(
    plan: Plan,
    segments: Segments,
    groups: NDArray[np.int32],
    clashes: NDArray[np.int64],
    seed: int,
    threads: int,
    out_slots: NDArray[Any],
) -> Any:
    """Swap and exchange segments between rows; return the slots that still clash, ascending."""
    facts = groups, segments.head_documents, segments.tails, segments.head_lengths, segments.align

    def swapped(stream: int, first: int, last: int, clashes: NDArray[np.int64]) -> Any:
        by_extent, grouped = np.zeros(segments.max_len + 2, np.int64), np.empty(last - first, out_slots.dtype)
        group_slots(first, last, out_slots, *facts[2:], by_extent, grouped)
        most = max(LOOKS_PER_SEGMENT * (last - first), LOOKED_AT)
        return swap_clashes(
            clashes, by_extent, grouped, plan.row_starts, *facts, most, np.uint64(seed), stream, out_slots
        )

    # the pool is exchanged as a whole
    packs = len(plan.row_starts) - 1
    bounds = plan.row_starts[np.unique([*plan.shard_rows[plan.shard_rows <= packs - plan.pool_packs], packs])]
    parts = np.split(clashes, np.searchsorted(clashes, bounds[1:-1]))
    regions = [
        (shard, int(bounds[shard]), int(bounds[shard + 1]), part) for shard, part in enumerate(parts) if len(part)
    ]
    left = np.concatenate(in_threads(lambda region: swapped(*region), regions, threads))
    if len(left) and len(parts) > 1:
        left = swapped(len(parts), 0, len(out_slots), left)
    most = max(SUMS_PER_SEGMENT * len(out_slots), 1 << 20)
    return exchange_clashes(left, plan.row_starts, *facts, most, np.uint64(seed), out_slots)


def _placed(
    plan: Plan,
    segments: Segments,
    groups: NDArray[np.int32],
    clashes: NDArray[np.int64],
    limit: int,
    rows_per_shard: int,
    seed: int,
    slots: NDArray[Any],
) -> Plan:
    """Take out what clashes and place it anew, the longest first; `slots` is used up. All slots: pack all anew."""
    packs = len(plan.row_starts) - 1
    row_starts, numbers = plan.row_starts.copy(), np.empty(len(clashes), slots.dtype)
    take_out(clashes, row_starts, slots, numbers)
    first_of_pool = packs - plan.pool_packs
    if row_starts[-1] == 0:
        row_starts, first_of_pool = row_starts[:1], 0
    extents = segments.extents_of(segments.locate(numbers)[2])
    numbers = numbers[np.argsort(-extents, kind="stable")]
    rows = np.empty(len(numbers), np.int64)
    facts = groups, segments.head_documents, segments.tails, segments.head_lengths, segments.align
    count = int(groups.max(initial=NO_GROUP)) + 1
    repaired = place_apart(numbers, slots, row_starts, *facts, segments.max_len, limit, count, rows)
    order = np.arange(repaired)
    if repaired > len(row_starts) - 1:
        permute(order, first_of_pool, repaired, np.uint64(stream_key(np.uint64(seed), REPAIRED_ROWS, 0)))
    out_row_starts, out_slots = np.zeros(repaired + 1, np.int64), np.empty_like(slots)
    join_rows(order, slots, row_starts, numbers, rows, np.uint64(seed), out_row_starts, out_slots)
    own = plan.shard_rows[plan.shard_rows <= first_of_pool]
    pool_packs = repaired - first_of_pool
    return Plan(
        shard_rows=np.unique(np.array([*own, *even_cuts(first_of_pool, pool_packs, rows_per_shard)], np.int64)),
        row_starts=out_row_starts,
        slots=out_slots,
        pool_packs=pool_packs,
    )
