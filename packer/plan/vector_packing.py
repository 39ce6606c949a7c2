"""Vector packing: rows of items with several demands, within the capacity of every resource; for `pack --limit`.

Items have a demand for each resource, such as tokens and images, and a row has a capacity of each (Christensen et al.,
"Approximation and online algorithms for multidimensional bin packing", 2017, is a survey of vector packing).

Most rows are drawn, each full in the first resource. As in `packer.algorithms.mixed`, a row takes the next items of a
random order until one does not fit. Then one, two or three others that fill it exactly in the primary resource, and fit
in all, close it. Of the pairs that do, one is chosen that brings the row close to the ratio of resources that all items
have together, so that what is left can be packed as tightly. Up to MOST_REMOVED items are put back where nothing closes
a row.

What drawn rows leave goes by first fit into rows that have room for it, found in a tree over the rows. A node of the
tree knows the largest room of each resource among the rows below it. These may be the rooms of different rows, so a
search takes long where it is misled: rows are full in one resource or another, and few have room in all. Therefore,
rows are sorted by their rooms whenever searches took long, so that rows below a node have like rooms, and rows that no
further item fits into are left out. To mislead searches less, a node also knows the largest room among its rows that
each has of every resource, as a share: rows with rooms [0.5, 0.1] and [0, 0.4] have rooms [0.5, 0.4], of both 0.1. A
search that takes too long nevertheless is given up, and one begins that comes from the other end, where the rows with
the most room are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import vector_bounds
from packer.algorithms.index_arrays import sorted_indices
from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Rows
from packer.algorithms.permute import DRAWING, key_of, permute_all
from packer.plan.rows import collected_rows

RESERVES = (0.02, 0.1, 0.2)
"""Shares of the rows to be drawn that are packed by first fit decreasing instead, tried one after the other."""

GOOD_ENOUGH = 0.0005
"""Rows above the lower bound, as a share of it, at which nothing else is tried."""

WORTH_SORTING = 0.005
"""Share of the rows that first fit decreasing alone must save; its rows are not mixed like the corpus."""

SCARCE = 0.9
"""Bound of a resource, as a share of the largest, from which on rows may be drawn full in it."""

VISITS = 256
"""Nodes of the tree that are visited for an item on average, at most, from either end."""

FIRST_VISITS = 1 << 16
"""Nodes that may be visited in addition for the items of a batch."""

BATCHES, LEAST_BATCH = 16, 1 << 12
"""Number of batches of items, and the fewest items of one; rows are sorted between batches."""

MANY_VISITS = 64
"""Visits for an item on average after which rows are sorted."""

_WHOLE = 1 << 40  # a capacity, as a share
_BITS = 10  # of each room that rows are sorted by


def pack_vectors(
    demands: NDArray[np.int32], capacities: NDArray[np.int64], *, max_segments: int | None = None, seed: int
) -> Rows:
    """Pack items into rows so that the demands in a row are within the capacity of every resource.

    Rows are drawn at random, full in one resource (`packer.plan.vector_packing`). What they leave, and a
    reserve, is packed by first fit in decreasing order of the largest share. The best of several reserves is kept.
    `demands`, shape (resources, items), are not above `capacities`, shape (resources,), which are at least 1.
    """
    if max_segments is not None:
        demands = np.concatenate([demands, np.ones((1, demands.shape[1]), np.int32)])
        capacities = np.append(capacities, max_segments)
    bounds = vector_bounds(demands, capacities)
    order = np.arange(demands.shape[1])
    permute_all(order, key_of(seed, DRAWING, 0))
    primary_first = np.argsort(np.arange(len(bounds)) != _primary(demands, capacities, bounds), kind="stable")
    demands, capacities = np.ascontiguousarray(demands[primary_first].T[order]), capacities[primary_first]
    row_of, rows = _best_rows(demands, capacities, int(bounds.max(initial=0)))
    return collected_rows(order, row_of, rows, seed=seed)


def _primary(demands: NDArray[np.int32], capacities: NDArray[np.int64], bounds: NDArray[np.int64]) -> int:
    """Choose the resource in which drawn rows are full: one whose bound is close to the largest.

    The one with the smallest capacity is best. Many items have the same demand of it, such as three images, so one can
    be chosen that suits the other resources. A resource of which all demands are equal, such as `max_segments`, comes
    last, because it leaves no choice.
    """
    scarce = np.flatnonzero(bounds >= SCARCE * bounds.max(initial=0))
    alike = [demands.shape[1] > 0 and demands[resource].min() == demands[resource].max() for resource in scarce]
    return int(scarce[np.lexsort((capacities[scarce], alike))[0]])


def _best_rows(demands: NDArray[np.int32], capacities: NDArray[np.int64], bound: int) -> tuple[NDArray[Any], int]:
    """Return the row of each item, shape (items,), and the number of rows."""
    drawn = draw_full_rows(demands, capacities)
    drawn_rows = int(drawn.max(initial=-1)) + 1
    shares = np.zeros(len(demands), np.uint16)  # largest share of a capacity that each item takes, in 1 / 65535
    for resource, capacity in enumerate(capacities.tolist()):
        np.maximum(shares, (demands[:, resource] * (65535 / capacity)).astype(np.uint16), out=shares)
    best, fewest = drawn, len(demands) + 1
    for reserve in (*RESERVES, 1):
        row_of, rows = _fit_others(demands, capacities, shares, drawn, int(drawn_rows * (1 - reserve)))
        if rows < fewest * (1 - WORTH_SORTING if reserve == 1 else 1):
            best, fewest = row_of, rows
        if fewest <= bound * (1 + (WORTH_SORTING if reserve == RESERVES[-1] else GOOD_ENOUGH)):
            break
    return best, fewest


def _fit_others(
    demands: NDArray[np.int32],
    capacities: NDArray[np.int64],
    shares: NDArray[np.uint16],
    drawn: NDArray[Any],
    kept: int,
) -> tuple[NDArray[Any], int]:
    """Keep the first `kept` of the drawn rows and fit all other items; returns what `_best_rows` does."""
    in_row = (drawn >= 0) & (drawn < kept)
    rooms = np.empty((kept, len(capacities)), np.int64)
    for resource, capacity in enumerate(capacities.tolist()):
        used = np.bincount(drawn[in_row], weights=demands[in_row, resource], minlength=kept)
        rooms[:, resource] = capacity - used.astype(np.int64)
    others = np.flatnonzero(~in_row)
    others = others[np.argsort(~shares[others], kind="stable")]
    row_of = drawn.copy()
    return row_of, vector_first_fit(demands, capacities, others, rooms, row_of)


def vector_first_fit(
    demands: NDArray[np.int32],
    capacities: NDArray[np.int64],
    order: NDArray[np.int64],
    rooms: NDArray[np.int64],
    out_row_of: NDArray[Any],
) -> int:
    """Put items, in a given order, each into the first row that has room for it; returns the number of rows.

    Rows that there are, which have `rooms` left, (rows, resources), come first, those with the least room in front, and
    then new ones. Items in decreasing order of their largest share of a capacity: first fit decreasing. No demand,
    (items, resources), is above its capacity. Writes the rows of the items in `order`, which has their numbers.
    """
    shares, resources, rows = _WHOLE // capacities, len(capacities), len(rooms)
    size = max(-(-len(order) // BATCHES), LEAST_BATCH)
    batches = [order[first : first + size] for first in range(0, len(order), size)]
    least = [demands[batch].min(axis=0) for batch in batches]
    numbers, tree, sort = np.arange(rows), np.empty((0, resources + 1), np.int64), True
    for at, batch in enumerate(batches):
        if sort or len(tree) // 2 - len(numbers) < len(batch):
            is_open = (rooms >= np.min(least[at:], axis=0)).all(axis=1)
            by_room = np.flatnonzero(is_open)[np.argsort(_room_codes(rooms[is_open], capacities), kind="stable")]
            numbers, tree = numbers[by_room], _tree_of(rooms[by_room], len(batch), shares)
        wanted = np.empty((len(batch), resources + 1), np.int64)
        wanted[:, :resources] = demands[batch]
        wanted[:, resources] = (wanted[:, :resources] * shares).min(axis=1)
        found = np.empty(len(batch), np.int64)
        used, visits = _fit(wanted, capacities, shares, tree, len(numbers), found)
        sort = visits > MANY_VISITS * len(batch)
        new = used - len(numbers)
        numbers = np.concatenate([numbers, np.arange(rows, rows + new)])
        rows += new
        out_row_of[batch] = numbers[found]
        rooms = tree[len(tree) // 2 :][: len(numbers), :resources]
    return rows


def _room_codes(rooms: NDArray[np.int64], capacities: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers to sort rows by, so that rows that come together have like rooms, shape (rows,).

    The bits of all rooms take turns (Z-order): rooms 0b10 and 0b01 of 0b11 are 0b1001. Of many resources, the first
    bits alone are taken.
    """
    largest = (1 << _BITS) - 1
    codes = np.zeros(len(rooms), np.int64)
    bits = [(bit, resource) for bit in range(_BITS - 1, -1, -1) for resource in range(len(capacities))]
    for bit, resource in bits[:62]:
        codes = codes * 2 + (rooms[:, resource] * largest // capacities[resource] >> bit & 1)
    return codes


def _tree_of(rooms: NDArray[np.int64], spare: int, shares: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a tree of rows with these rooms and of places for at least `spare` more, (2 * leaves, resources + 1).

    Node 1 is the root, nodes 2 * n and 2 * n + 1 are below n, and row r is node leaves + r. Places without a row
    have rooms of -1.
    """
    leaves = 1 << max(len(rooms) + spare - 1, 1).bit_length()
    tree = np.full((2 * leaves, len(shares) + 1), -1, np.int64)
    tree[leaves : leaves + len(rooms), :-1] = rooms
    tree[leaves : leaves + len(rooms), -1] = (rooms * shares).min(axis=1)
    while leaves > 1:
        np.maximum(tree[leaves : 2 * leaves : 2], tree[leaves + 1 : 2 * leaves : 2], out=tree[leaves // 2 : leaves])
        leaves //= 2
    return tree


@jit_if_large
def _fit(
    demands: NDArray[np.int64],
    capacities: NDArray[np.int64],
    shares: NDArray[np.int64],
    tree: NDArray[np.int64],
    rows: int,
    out_row_of: NDArray[np.int64],
) -> tuple[int, int]:
    """Place all items and renew the tree; the last column of `demands` is the smallest share.

    Returns (number of rows, nodes visited in searches from the front).
    """
    leaves = len(tree) // 2
    credit = FIRST_VISITS
    for item in range(len(demands)):
        node, visits = _find(tree, demands, item, 0, credit + VISITS)
        credit += VISITS - visits
        if node < 0:
            node, _ = _find(tree, demands, item, 1, VISITS)
        if node <= 0:
            node = leaves + rows
            rows += 1
            for resource in range(len(capacities)):
                tree[node, resource] = capacities[resource]
        out_row_of[item] = node - leaves
        least = np.int64(_WHOLE)  # of the rooms, each as a share of the capacity
        for resource in range(len(capacities)):
            tree[node, resource] -= demands[item, resource]
            least = min(least, tree[node, resource] * shares[resource])
        tree[node, len(capacities)] = least
        _update(tree, node)
    return rows, FIRST_VISITS + VISITS * len(demands) - credit


@jit_if_large
def _find(tree: NDArray[np.int64], demands: NDArray[np.int64], item: int, end: int, most: int) -> tuple[int, int]:
    """Return the leaf of the first row with room for an item, and how many nodes were visited.

    With end = 1, it is the last row. The leaf is 0 if there is none, and -1 if the search was given up after `most`
    nodes.
    """
    leaves = len(tree) // 2
    node = 1
    for visits in range(1, most + 1):
        fits = True
        for resource in range(tree.shape[1]):
            if demands[item, resource] > tree[node, resource]:
                fits = False
                break
        if fits:
            if node >= leaves:
                return node, visits
            node = 2 * node + end
        else:
            while node > 1 and node & 1 != end:
                node >>= 1
            if node == 1:
                return 0, visits
            node ^= 1
    return -1, most


@jit_if_large
def _update(tree: NDArray[np.int64], node: int) -> None:
    """Renew the nodes above a row whose rooms have changed."""
    node >>= 1
    while node > 0:
        changed = False
        for resource in range(tree.shape[1]):
            most = max(tree[2 * node, resource], tree[2 * node + 1, resource])
            if most != tree[node, resource]:
                tree[node, resource] = most
                changed = True
        if not changed:
            break
        node >>= 1


# ---- Drawing ----

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

MUCH_USED = 0.7
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
    weights = (use > MUCH_USED * capacities) / capacities
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
