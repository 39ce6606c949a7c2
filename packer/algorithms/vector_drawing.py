"""Vector packing by drawing: rows of items with several demands, in random order, each full in the first resource.

Items have a demand for each resource, such as tokens and images, and a row has a capacity of each (Christensen et al.,
"Approximation and online algorithms for multidimensional bin packing", 2017, is a survey of vector packing). As in
`packer.algorithms.mixed`, a row takes the next items of a random order until one does not fit. Then one, two or three
others that fill it exactly in the primary resource, and fit in all, close it. Of the pairs that do, one is chosen that
brings the row close to the ratio of resources that all items have together, so that what is left can be packed as
tightly. Up to MOST_REMOVED items are put back where nothing closes a row.
`packer.plan.vector_packing` packs the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import sorted_indices
from packer.algorithms.jit import jit_if_large

FINEST = 1 << 17
"""Largest capacity of the primary resource for drawing; demands of a larger one are counted in coarser units."""

CANDIDATES = 64
"""Items, next in the order, that are tried as the first of two or three that close a row."""

PARTNERS = 8
"""Items after it that are tried as the second of three."""

LOOKED_AT = 4
"""Items of one primary demand that are tried as the last."""

MOST_REMOVED = 4
"""Most items that are put back if nothing closes the row."""

IMPATIENCE = 0.01
"""Distance from the aim, in capacities, that is accepted more with every pair that is tried."""

ANY = 1e300
"""Impatience with which the first pair is taken."""

SCARCE = 0.7
"""Share of a capacity that full rows use on average above which rows aim at that average."""

GAIN = 0.25
"""Share of what rows so far used too little that the next row aims to use in addition."""

_FREE, _HELD, _PLACED = 0, 1, 2


class _Items(NamedTuple):
    """Items, which of them are in a row, and an index of them by primary demand."""

    demands: NDArray[np.int32]  # (items, resources) demands in random order of the items; column 0 is the primary one
    states: NDArray[np.int8]  # (items,) _FREE, _HELD by the row that is drawn, or _PLACED (or given up, or not to draw)
    jumps: NDArray[Any]  # (items,) of each position that is placed, a later one, with none before it that is free
    members: NDArray[Any]  # (items,) positions by primary demand, ascending within one; uint32 or int64
    # Where the members of each primary demand begin and end (without those found to be placed), and where the next
    # search begins, so that it does not meet those that did not fit again. Shape (capacity + 1,).
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    cursors: NDArray[np.int64]


class _Aim(NamedTuple):
    """Target use of each other resource."""

    use: NDArray[np.float64]  # (resources,) what a full row uses on average
    weights: NDArray[np.float64]  # (resources,) what a unit too much or too little counts; 0 if it is not scarce


def draw_full_rows(demands: NDArray[np.int32], capacities: NDArray[np.int64]) -> NDArray[Any]:
    """Draw rows that are full in the first resource until the items end.

    Demands, (items, resources), are in random order of the items, and none is above its capacity; capacities,
    (resources,), are at least 1. Returns the row of each item, numbered in the order in which they were drawn, and -1
    for those without: shape (items,), int32, or int64 if there are more items than that counts.
    """
    primary, capacity = coarsen(demands[:, 0], int(capacities[0]))
    counted = demands if capacity == capacities[0] else np.column_stack([primary, demands[:, 1:]])
    limits = np.concatenate([[capacity], capacities[1:]]).astype(np.int64)
    number = np.int32 if len(demands) < 2**31 else np.int64
    row_of = np.full(len(demands), -1, number)
    starts, members = sorted_indices(primary, capacity + 1)
    starts, ends = starts[:-1].copy(), starts[1:].copy()
    aim = _aim(counted, limits)
    # Items without primary demand are drawn like others, unless they are needed to fill rows up in a scarce resource.
    states = np.where((primary == 0) & aim.weights.any(), _PLACED, _FREE).astype(np.int8)
    jumps = np.arange(1, len(demands) + 1, dtype=number)
    drawing = _Items(counted, states, jumps, members, starts, ends, starts.copy())
    _draw(drawing, limits, aim, row_of)
    return row_of


def coarsen(demands: NDArray[np.int32], capacity: int) -> tuple[NDArray[np.int32], int]:
    """Return demands and a capacity of at most FINEST, in coarser units, such that whatever fits in these units fits.

    Demands are rounded up and the capacity down: 5, 6 and 10 of 10 in units of 3 are 2, 2 and 3 of 3. A demand is never
    above the capacity: one that takes all of it is alone in its row.
    """
    unit = -(-capacity // FINEST)
    return np.minimum(-(-demands // unit), capacity // unit).astype(np.int32), capacity // unit


def _aim(demands: NDArray[np.int32], capacities: NDArray[np.int64]) -> _Aim:
    totals = demands.sum(axis=0, dtype=np.int64) * 1.0
    use = totals / max(totals[0], 1) * capacities[0]
    weights = (use > SCARCE * capacities) / capacities
    weights[0] = 0
    return _Aim(use, weights)


@jit_if_large
def _draw(drawing: _Items, capacities: NDArray[np.int64], aim: _Aim, out_row_of: NDArray[Any]) -> int:
    """Draw rows until the order ends and write the row of each item that is in one; returns how many."""
    items, resources = drawing.demands.shape
    states = drawing.states
    rooms = np.empty(resources, np.int64)
    wanted = np.empty(resources, np.float64)
    behind = np.zeros(resources, np.float64)
    row = np.empty(min(items, capacities.sum()), np.int64)
    rows, position = 0, 0
    while True:
        for resource in range(resources):
            rooms[resource] = capacities[resource]
            use = aim.use[resource] + GAIN * behind[resource]
            wanted[resource] = capacities[resource] - min(max(use, 0.0), capacities[resource])
        # Items come in their order until one does not fit.
        position = _next_free(drawing, position)
        if position == items:
            return rows
        taken = 0
        while position < items and _fits(drawing.demands, position, rooms):
            _hold(drawing, position, rooms)
            row[taken] = position
            taken += 1
            position = _next_free(drawing, position)
        if rooms[0] > 0:
            position, taken = _close(drawing, position, row, taken, rooms, _Aim(wanted, aim.weights))
        for i in range(taken):
            states[row[i]] = _PLACED
            if rooms[0] == 0:
                out_row_of[row[i]] = rows
        if rooms[0] == 0:
            rows += 1
            for resource in range(resources):
                behind[resource] += aim.use[resource] - (capacities[resource] - rooms[resource])


@jit_if_large
def _next_free(drawing: _Items, position: int) -> int:
    """Return the first free position from here on; the number of items where there is none."""
    states, jumps = drawing.states, drawing.jumps
    while position < len(states) and states[position] != _FREE:
        ahead = jumps[position] if states[position] == _PLACED else position + 1
        if states[position] == _PLACED and ahead < len(states) and states[ahead] == _PLACED:
            jumps[position] = jumps[ahead]
        position = ahead
    return position


@jit_if_large
def _fits(demands: NDArray[np.int32], position: int, rooms: NDArray[np.int64]) -> bool:
    """Whether the rooms are enough for an item."""
    for resource in range(len(rooms)):  # noqa: SIM110 - plain loops compile faster
        if demands[position, resource] > rooms[resource]:
            return False
    return True


@jit_if_large
def _hold(drawing: _Items, position: int, out_rooms: NDArray[np.int64]) -> None:
    """Put an item into the row that is drawn."""
    drawing.states[position] = _HELD
    for resource in range(len(out_rooms)):
        out_rooms[resource] -= drawing.demands[position, resource]


@jit_if_large
def _put_back(drawing: _Items, position: int, out_rooms: NDArray[np.int64]) -> None:
    """Take an item out of the row that is drawn."""
    drawing.states[position] = _FREE
    for resource in range(len(out_rooms)):
        out_rooms[resource] += drawing.demands[position, resource]


@jit_if_large
def _close(
    drawing: _Items, position: int, out_row: NDArray[np.int64], taken: int, out_rooms: NDArray[np.int64], aim: _Aim
) -> tuple[int, int]:
    """Fill a row exactly in the primary resource, putting back as few items as that takes; returns (position, taken).

    Items that are put back come next in the order; the first of a row stays. If nothing fills the row, it stays as it
    is, with room left.
    """
    closers = np.empty(3, np.int64)
    for removed in range(min(taken - 1, MOST_REMOVED) + 1):
        if removed > 0:
            _put_back(drawing, out_row[taken - removed], out_rooms)
            position = out_row[taken - removed]
        found = _find_closers(drawing, position, out_rooms, aim, closers)
        if found > 0:
            for i in range(found):
                out_row[taken - removed + i] = closers[i]
                _hold(drawing, closers[i], out_rooms)
            return position, taken - removed + found
    for i in range(taken):
        if drawing.states[out_row[i]] == _FREE:
            _hold(drawing, out_row[i], out_rooms)
    return position, taken


@jit_if_large
def _find_closers(drawing: _Items, position: int, rooms: NDArray[np.int64], aim: _Aim, out: NDArray[np.int64]) -> int:
    """Write the positions of up to three items that close a row to `out`; returns how many, 0 for none.

    Two are preferred, as in `packer.algorithms.mixed`. One or three are taken as they are found.
    """
    first, last = _find_pair(drawing, position, rooms, aim, CANDIDATES, IMPATIENCE)
    if first >= 0:
        out[0], out[1] = first, last
        return 2
    last, _ = _find_last(drawing, rooms, aim)
    if last >= 0:
        out[0] = last
        return 1
    items = len(drawing.demands)
    place = _next_free(drawing, position)
    for _ in range(CANDIDATES):
        if place == items:
            break
        if drawing.demands[place, 0] < rooms[0] and _fits(drawing.demands, place, rooms):
            _hold(drawing, place, rooms)
            first, last = _find_pair(drawing, place + 1, rooms, aim, PARTNERS, ANY)
            _put_back(drawing, place, rooms)
            if first >= 0:
                out[0], out[1], out[2] = place, first, last
                return 3
        place = _next_free(drawing, place + 1)
    return 0


@jit_if_large
def _find_pair(
    drawing: _Items, position: int, rooms: NDArray[np.int64], aim: _Aim, candidates: int, impatience: float
) -> tuple[int, int]:
    """Return the positions of two items that close a row, the first of so many candidates; (-1, -1) for none.

    Of the pairs so far, the nearest to the aim is taken as soon as it is near enough.
    """
    demands = drawing.demands
    first, second, least = np.int64(-1), np.int64(-1), np.inf
    place = _next_free(drawing, position)
    for tries in range(candidates):
        if place == len(demands) or least <= impatience * tries:
            break
        if demands[place, 0] < rooms[0] and _fits(demands, place, rooms):
            _hold(drawing, place, rooms)
            last, distance = _find_last(drawing, rooms, aim)
            _put_back(drawing, place, rooms)
            if distance < least:
                first, second, least = np.int64(place), np.int64(last), distance
        place = _next_free(drawing, place + 1)
    return first, second


@jit_if_large
def _find_last(drawing: _Items, rooms: NDArray[np.int64], aim: _Aim) -> tuple[int, float]:
    """Return (position, distance from the aim) of an item that fills a row exactly; (-1, infinity) if there is none."""
    demands, states, _, members, starts, ends, cursors = drawing
    gap = rooms[0]
    found, least = -1, np.inf
    index = cursors[gap]
    for _ in range(min(LOOKED_AT, ends[gap] - starts[gap])):
        # Members that are in a row are overwritten by the last one, so that each is met once.
        position = np.int64(-1)
        while position < 0 and starts[gap] < ends[gap]:
            if index >= ends[gap]:
                index = starts[gap]
            position = np.int64(members[index])
            if states[position] == _PLACED:
                ends[gap] -= 1
                members[index] = members[ends[gap]]
                position = np.int64(-1)
        if position < 0:
            break
        index += 1
        if states[position] == _FREE and _fits(demands, position, rooms):
            distance = 0.0
            for resource in range(1, len(rooms)):
                left = rooms[resource] - demands[position, resource]
                distance += abs(left - aim.use[resource]) * aim.weights[resource]
            if distance < least:
                found, least = position, distance
                if least == 0:
                    break
    cursors[gap] = index
    return found, least
