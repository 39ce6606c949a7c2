"""Vector packing for `pack --limit`: items with several demands, packed within the capacity of every resource.

Items have a demand for each resource, such as tokens and images, and a row has a capacity of each (Christensen et al.,
"Approximation and online algorithms for multidimensional bin packing", 2017, is a survey of vector packing).

Most rows are drawn, each full in one resource, the primary one. As in `packer.algorithms.mixed`, a row takes the next
items of a random order until one does not fit. Then up to three items close it: they fill the primary resource exactly
and fit in all others. A pair is preferred if it brings the row close to the overall ratio of resources, so that the
remaining items can be packed as tightly. If nothing closes a row, up to MOST_REMOVED items are put back.

Items that are in no drawn row are placed by first fit. A tree over the rows finds the first row with room: a node
stores the largest room of each resource among the rows below it. These maxima may come from different rows, so an item
may seem to fit below a node although no row has room. Three measures keep searches short. First, rows are sorted by
their rooms when searches become slow, so that neighbors are alike, and rows too full for any further item are removed.
Second, a node also stores the largest min-share, where the min-share of a row is the smallest of its rooms as a share
of the capacity: rows with rooms [0.5, 0.1] and [0, 0.4] have the maxima [0.5, 0.4], but the largest min-share 0.1.
Third, a search that visits too many nodes is abandoned, and starts again from the other end, where the emptiest rows
are.
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
"""Shares of the drawn rows that are dissolved and packed by first fit decreasing instead; tried in this order."""

GOOD_ENOUGH = 0.0005
"""No further reserve is tried if the rows exceed the lower bound by at most this share."""

WORTH_SORTING = 0.005
"""First fit decreasing alone is used if it saves this share of the rows; its rows are not mixed like the corpus."""

SCARCE = 0.9
"""A resource may be primary if its lower bound is at least this share of the largest bound."""

VISITS = 256
"""Maximum mean number of nodes visited per item, from each end of the tree."""

FIRST_VISITS = 1 << 16
"""Number of additional nodes that may be visited for a batch of items."""

BATCHES, LEAST_BATCH = 16, 1 << 12
"""Number of batches of items, and minimum number of items per batch. Rows are sorted between batches."""

MANY_VISITS = 64
"""Mean number of visits per item above which rows are sorted."""

_WHOLE = 1 << 40  # fixed-point 1.0 for shares of a capacity
_BITS = 10  # number of bits per resource in the sort key of rows


def pack_vectors(
    demands: NDArray[np.int32], capacities: NDArray[np.int64], *, max_segments: int | None = None, seed: int
) -> Rows:
    """Pack items into rows so that the demands in a row are within the capacity of every resource.

    Rows are drawn at random, full in one resource (`packer.plan.vector_packing`). The remaining items, and a reserve of
    drawn rows, are packed by first fit in decreasing order of the largest share. The best of several reserves is kept.
    `demands` has the shape (resources, items), and `capacities` (resources,). Capacities are at least 1, and no demand
    exceeds its capacity.
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

    Among these, the smallest capacity is best: many items have the same demand, such as three images, so there is a
    choice of items that suit the other resources. A resource with the same demand for every item, such as
    `max_segments`, is chosen last, because all items fit equally well.
    """
    scarce = np.flatnonzero(bounds >= SCARCE * bounds.max(initial=0))
    alike = [demands.shape[1] > 0 and demands[resource].min() == demands[resource].max() for resource in scarce]
    return int(scarce[np.lexsort((capacities[scarce], alike))[0]])


def _best_rows(demands: NDArray[np.int32], capacities: NDArray[np.int64], bound: int) -> tuple[NDArray[Any], int]:
    """Return (row of each item, shape (items,); number of rows)."""
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
    """Keep the first `kept` drawn rows and fit all other items. Returns (row of each item, number of rows)."""
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
    """Put items, in the order given, each into the first row that has room for it. Returns the number of rows.

    Existing rows, with remaining capacities `rooms` of shape (rows, resources), are tried first, fullest first; then
    new rows. With items sorted by decreasing largest share of a capacity, this is first fit decreasing. `demands` has
    the shape (items, resources), and no demand exceeds its capacity. Writes the row of each item in `order` to
    `out_row_of`.
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
    """Return sort keys of rows, shape (rows,); rows with neighboring keys have similar rooms.

    The bits of all rooms are interleaved (Z-order): rooms 0b10 and 0b01 of 0b11 are 0b1001. With many resources, only
    the leading bits of each are used.
    """
    largest = (1 << _BITS) - 1
    codes = np.zeros(len(rooms), np.int64)
    bits = [(bit, resource) for bit in range(_BITS - 1, -1, -1) for resource in range(len(capacities))]
    for bit, resource in bits[:62]:
        codes = codes * 2 + (rooms[:, resource] * largest // capacities[resource] >> bit & 1)
    return codes


def _tree_of(rooms: NDArray[np.int64], spare: int, shares: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a tree of rows with these rooms and at least `spare` empty places: (2 * leaves, resources + 1).

    Node 1 is the root, nodes 2 * n and 2 * n + 1 are below n, and row r is node leaves + r. Places without a row have
    rooms of -1.
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
    """Place all items and update the tree. The last column of `demands` is the item's smallest share.

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
        least = np.int64(_WHOLE)  # smallest room as a share of the capacity
        for resource in range(len(capacities)):
            tree[node, resource] -= demands[item, resource]
            least = min(least, tree[node, resource] * shares[resource])
        tree[node, len(capacities)] = least
        _update(tree, node)
    return rows, FIRST_VISITS + VISITS * len(demands) - credit


@jit_if_large
def _find(tree: NDArray[np.int64], demands: NDArray[np.int64], item: int, end: int, most: int) -> tuple[int, int]:
    """Return (leaf of the first row with room for an item, number of nodes visited).

    With end = 1, search for the last row instead. The leaf is 0 if there is none, and -1 if the search was abandoned
    after `most` nodes.
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
    """Update the nodes above a row whose rooms have changed."""
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
"""Maximum capacity of the primary resource for drawing. Larger capacities, and their demands, use coarser units."""

CANDIDATES = 64
"""Number of upcoming items to try as the first of two or three items that close a row."""

PARTNERS = 8
"""Number of items after the first to try as the second of three."""

LOOKED_AT = 4
"""Number of items with the needed primary demand to try as the last of two or three."""

MOST_REMOVED = 4
"""Maximum number of items that are put back if nothing closes the row."""

IMPATIENCE = 0.01
"""Increase of the accepted distance from the aim per pair tried; distances are in capacities."""

ANY = 1e300
"""Value of `impatience` that accepts the first pair."""

MUCH_USED = 0.7
"""A resource is scarce if full rows use more than this share of its capacity on average."""

GAIN = 0.25
"""Share of the accumulated shortfall that the next row tries to make up."""

_FREE, _HELD, _PLACED = 0, 1, 2


class _Items(NamedTuple):
    """Items, their states, and an index of items by primary demand."""

    demands: NDArray[np.int32]  # (items, resources) demands of items in random order; column 0 is the primary resource
    states: NDArray[np.int8]  # (items,) _FREE, _HELD by the row being drawn, or _PLACED (also: given up, not to draw)
    jumps: NDArray[Any]  # (items,) for a placed position: a later position, with no free position in between
    members: NDArray[Any]  # (items,) positions by primary demand, ascending within one; uint32 or int64
    # Begin and end of each primary demand's members (placed members are removed when found), and the start of the next
    # search, which does not begin with items that did not fit. Shape (capacity + 1,).
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    cursors: NDArray[np.int64]


class _Aim(NamedTuple):
    """Target use of each other resource."""

    use: NDArray[np.float64]  # (resources,) mean use in a full row
    weights: NDArray[np.float64]  # (resources,) weight of a deviation of one unit; 0 for resources that are not scarce


def draw_full_rows(demands: NDArray[np.int32], capacities: NDArray[np.int64]) -> NDArray[Any]:
    """Draw rows that are full in the first resource until no items are left.

    `demands`, (items, resources), are in random order of the items, and none exceeds its capacity; `capacities`,
    (resources,), are at least 1. Returns the row of each item, shape (items,), numbered in the order in which rows were
    drawn; -1 for items without a row. The dtype is int32, or int64 for 2**31 items or more.
    """
    primary, capacity = coarsen(demands[:, 0], int(capacities[0]))
    counted = demands if capacity == capacities[0] else np.column_stack([primary, demands[:, 1:]])
    limits = np.concatenate([[capacity], capacities[1:]]).astype(np.int64)
    number = np.int32 if len(demands) < 2**31 else np.int64
    row_of = np.full(len(demands), -1, number)
    starts, members = sorted_indices(primary, capacity + 1)
    starts, ends = starts[:-1].copy(), starts[1:].copy()
    aim = _aim(counted, limits)
    # Items without primary demand are drawn like others, unless they are needed to fill up rows in a scarce resource.
    states = np.where((primary == 0) & aim.weights.any(), _PLACED, _FREE).astype(np.int8)
    jumps = np.arange(1, len(demands) + 1, dtype=number)
    drawing = _Items(counted, states, jumps, members, starts, ends, starts.copy())
    _draw(drawing, limits, aim, row_of)
    return row_of


def coarsen(demands: NDArray[np.int32], capacity: int) -> tuple[NDArray[np.int32], int]:
    """Convert demands and a capacity to coarser units, so that the capacity is at most FINEST.

    Demands are rounded up and the capacity down, so whatever fits in the coarser units fits: 5, 6 and 10 of 10 in units
    of 3 are 2, 2 and 3 of 3. Demands above the rounded capacity are clipped to it; such an item is alone in its row.
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
    """Draw rows until the order ends, and write the row of each drawn item. Returns the number of rows."""
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
        # Take items in order until one does not fit.
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
    """Return the first free position from `position` on, or the number of items if there is none."""
    states, jumps = drawing.states, drawing.jumps
    while position < len(states) and states[position] != _FREE:
        ahead = jumps[position] if states[position] == _PLACED else position + 1
        if states[position] == _PLACED and ahead < len(states) and states[ahead] == _PLACED:
            jumps[position] = jumps[ahead]
        position = ahead
    return position


@jit_if_large
def _fits(demands: NDArray[np.int32], position: int, rooms: NDArray[np.int64]) -> bool:
    """Whether an item fits into the remaining room of every resource."""
    for resource in range(len(rooms)):  # noqa: SIM110 - plain loops compile faster
        if demands[position, resource] > rooms[resource]:
            return False
    return True


@jit_if_large
def _hold(drawing: _Items, position: int, out_rooms: NDArray[np.int64]) -> None:
    """Put an item into the row being drawn."""
    drawing.states[position] = _HELD
    for resource in range(len(out_rooms)):
        out_rooms[resource] -= drawing.demands[position, resource]


@jit_if_large
def _put_back(drawing: _Items, position: int, out_rooms: NDArray[np.int64]) -> None:
    """Take an item out of the row being drawn."""
    drawing.states[position] = _FREE
    for resource in range(len(out_rooms)):
        out_rooms[resource] += drawing.demands[position, resource]


@jit_if_large
def _close(
    drawing: _Items, position: int, out_row: NDArray[np.int64], taken: int, out_rooms: NDArray[np.int64], aim: _Aim
) -> tuple[int, int]:
    """Fill a row exactly in the primary resource; put back as few items as necessary. Returns (position, taken).

    Items that are put back are the next ones in the order; the first item of a row stays. If nothing fills the row, it
    is left unchanged, with room.
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
    """Write the positions of up to three items that close a row to `out`. Returns their number, 0 if there are none.

    Two are preferred, as in `packer.algorithms.mixed`. One or three are accepted as soon as they are found.
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
    """Return the positions of two items that close a row, or (-1, -1). The first is among the next `candidates` items.

    Stops when the best pair so far is near enough to the aim; this distance grows with the number of pairs tried.
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
        # Placed members are overwritten by the last member, so that each member is visited only once.
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
