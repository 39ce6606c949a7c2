"""Rows with no two segments of a group (`apart`): a plan repaired, or packed anew where groups decide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.plan.apart_kernels import LOOKED_AT, exchange_clashes, find_clashes, group_slots, swap_clashes
from packer.plan.apart_places import join_rows, place_apart, take_out
from packer.plan.apart_spread import find_runs, spread_runs
from packer.plan.deal import Plan, even_cuts
from packer.plan.group_kernels import collect_rows, permuted_ranks
from packer.plan.groups import NO_GROUP, by_group, groups_of_numbers
from packer.plan.permute import REPAIRED_ROWS, permute, stream_key
from packer.plan.segments import Segments
from packer.plan.threads import in_threads

LOOKS_PER_SEGMENT, SUMS_PER_SEGMENT = 2, 64
"""What is looked at to swap and to exchange, at most, as multiples of the segments; where most clash, it is no help."""

STUCK = 0.01
"""Segments per row that swaps leave in clash from which on packing anew is tried."""

SPARES = 0.006, 0.02
"""Rows beyond those of the plain packing with which packing anew begins, as shares of them: full rows leave no choice.
The second is tried where the first ends above it."""

FINE, COARSE, SHORTEST = 1.2, 2.0, 256
"""Extents of a class differ by the factor FINE at most, those above half a row and below a SHORTEST-th of it aside;
by COARSE, which is faster, where rows have room to spare."""

ROOMY = 1.25
"""The ratio of rows to those of the plain packing from which on they have."""


def keep_apart(
    plan: Plan,
    segments: Segments,
    groups: NDArray[np.int32],
    *,
    least: int,
    max_segments: int | None,
    rows_per_shard: int,
    seed: int,
    threads: int = 1,
) -> Plan:
    """Make a plan in which no row holds two segments of a group; pieces of one document are of one group.

    A segment that clashes is swapped with one of equal extent: of the same shard (or the pool), or else of any; or it
    and another of its row for two of another row that take as much. What is then left goes to rows that have room, or
    to new rows, which join the pool; that is all it costs in packs. Where `least` demands more rows than the plan has,
    or swaps leave many that clash, all is packed anew instead, if that takes fewer: then every row is of the pool.

    Args:
        plan: as `deal` made it.
        segments: what it places.
        groups: (documents,) the group of each, 0..groups - 1, or NO_GROUP: free to stand anywhere.
        least: packs that groups demand, as of `apart_bound`.
        max_segments: the most in a row; None for no limit.
        rows_per_shard: the most rows of a shard.
        seed: 0..2^63-1.
        threads: shards worked on at a time; the plan is the same for any number.
    """
    count = int(groups.max(initial=NO_GROUP)) + 1
    of_numbers, extents = groups_of_numbers(segments, groups), segments.extents_of_numbers()
    clashes = find_clashes(plan.slots, plan.row_starts, of_numbers, count)
    if not len(clashes):
        return plan
    limit = segments.max_len if max_segments is None else min(max_segments, segments.max_len)
    packs = len(plan.row_starts) - 1

    slots: NDArray[Any] = plan.slots.copy()
    left = clashes
    if least <= packs:
        left = _swapped(plan, segments, of_numbers, extents, clashes, seed, threads, slots)
    anew = None
    if least > packs or len(left) > STUCK * packs:
        anew = _anew(segments, of_numbers, extents, count, packs, least, limit, rows_per_shard, seed)
        if len(anew.row_starts) - 1 <= min((1 + SPARES[-1]) * max(least, packs), packs + len(left)):
            return anew
    most = max(SUMS_PER_SEGMENT * len(slots), 1 << 20)
    left = exchange_clashes(left, plan.row_starts, of_numbers, extents, most, np.uint64(seed), slots)
    repaired = _placed(plan, segments, of_numbers, extents, count, left, limit, rows_per_shard, seed, slots)
    return repaired if anew is None or len(repaired.row_starts) <= len(anew.row_starts) else anew


def _swapped(
    plan: Plan,
    segments: Segments,
    of_numbers: NDArray[np.int32],
    extents: NDArray[np.int32],
    clashes: NDArray[np.int64],
    seed: int,
    threads: int,
    out_slots: NDArray[Any],
) -> Any:
    """Swap segments between rows; return the slots that still clash, ascending."""

    def swapped(stream: int, first: int, last: int, clashes: NDArray[np.int64]) -> Any:
        by_extent, grouped = np.zeros(segments.max_len + 2, np.int64), np.empty(last - first, out_slots.dtype)
        group_slots(first, last, out_slots, extents, by_extent, grouped)
        most = max(LOOKS_PER_SEGMENT * (last - first), LOOKED_AT)
        return swap_clashes(
            clashes, by_extent, grouped, plan.row_starts, of_numbers, extents, most, np.uint64(seed), stream, out_slots
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
    return left


def _placed(
    plan: Plan,
    segments: Segments,
    of_numbers: NDArray[np.int32],
    extents: NDArray[np.int32],
    count: int,
    clashes: NDArray[np.int64],
    limit: int,
    rows_per_shard: int,
    seed: int,
    slots: NDArray[Any],
) -> Plan:
    """Take out what clashes and place it anew, the longest first; `slots` is used up."""
    packs = len(plan.row_starts) - 1
    row_starts, numbers = plan.row_starts.copy(), np.empty(len(clashes), slots.dtype)
    take_out(clashes, row_starts, slots, numbers)
    first_of_pool = packs - plan.pool_packs
    numbers = numbers[np.argsort(-extents[numbers], kind="stable")]
    rows = np.empty(len(numbers), np.int64)
    repaired = place_apart(numbers, slots, row_starts, of_numbers, extents, segments.max_len, limit, count, rows)
    order = np.arange(repaired)
    if repaired > packs:
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


def _anew(
    segments: Segments,
    of_numbers: NDArray[np.int32],
    extents: NDArray[np.int32],
    count: int,
    packs: int,
    least: int,
    limit: int,
    rows_per_shard: int,
    seed: int,
) -> Plan:
    """Pack all segments anew, with as many rows to begin with as does best; `packs` are those of the plain packing."""
    found = []
    for spare in SPARES:
        rows = max(least, packs + int(spare * packs))
        ratio = COARSE if rows >= ROOMY * packs else FINE
        found.append(_spread(segments, of_numbers, extents, count, rows, limit, ratio, rows_per_shard, seed))
        if len(found[-1].row_starts) - 1 <= (1 + SPARES[-1]) * max(least, packs):
            break
    return min(found, key=lambda plan: len(plan.row_starts))


def _spread(
    segments: Segments,
    of_numbers: NDArray[np.int32],
    extents: NDArray[np.int32],
    count: int,
    least: int,
    limit: int,
    ratio: float,
    rows_per_shard: int,
    seed: int,
) -> Plan:
    """Pack all segments anew: `least` rows, and more where these have no room.

    Segments go class of extents by class, the longest first, and in a class group by group: a row that took one of
    the group need not be asked again.
    """
    starts, numbers = by_group(segments, of_numbers, count, seed)
    classes = _classes(segments.max_len, ratio)
    runs = np.empty_like(numbers)
    runs = runs[: find_runs(numbers, starts, classes, extents, runs)]
    rows = np.empty_like(numbers)
    least = min(least, len(numbers))
    packs = spread_runs(runs, numbers, starts, of_numbers, classes, extents, segments.max_len, limit, least, rows)
    del runs
    row_starts, slots = np.zeros(packs + 1, np.int64), np.empty_like(numbers)
    ranks = permuted_ranks(np.empty(packs, numbers.dtype), np.uint64(seed))
    collect_rows(numbers, rows, ranks, np.uint64(seed), row_starts, slots)
    return Plan(
        shard_rows=np.array(even_cuts(0, packs, rows_per_shard), np.int64),
        row_starts=row_starts,
        slots=slots,
        pool_packs=packs,
    )


def _classes(max_len: int, ratio: float) -> NDArray[np.int64]:
    """The class of each extent, (max_len + 1,): 0 above half a row, where no two share one."""
    steps = math.ceil(math.log(SHORTEST / 2, ratio))
    edges = max_len / 2 / ratio ** np.arange(steps + 1)
    return np.searchsorted(-edges, -np.arange(max_len + 1), side="left")
