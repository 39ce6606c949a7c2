"""Vector packing: rows of items with several demands, within the capacity of every resource; for `pack --limit`.

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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import vector_bounds
from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Rows
from packer.algorithms.permute import DRAWING, key_of, permute_all
from packer.algorithms.vector_drawing import draw_full_rows
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

    Rows are drawn at random, full in one resource (`packer.algorithms.vector_drawing`). What they leave, and a
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
