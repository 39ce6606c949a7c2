"""Vector packing by first fit: a tree over the rows knows the largest room of each resource."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_helper, jit_if_large

VISITS = 256
"""Nodes of the tree that are visited for an item on average, at most; an item whose row is not found opens one."""

FIRST_VISITS = 1 << 16
"""Nodes that may be visited in addition, all in all."""

_WHOLE = 1 << 40  # a capacity, as a share


def vector_first_fit(
    demands: NDArray[np.int32],
    capacities: NDArray[np.int64],
    order: NDArray[np.int64],
    rooms: NDArray[np.int64],
    out_row_of: NDArray[np.int64],
) -> int:
    """Put items, in a given order, each into the first row that has room for it; returns the number of rows.

    Items in decreasing order of their largest share of a capacity: first fit decreasing. With one resource, every row
    with room is found. With several, the rooms of a node may be those of different rows, so the search takes longer
    where that misleads it, and has a limit. To mislead it less, a node also knows the largest room among its rows that
    each has of every resource, as a share: rows with rooms [0.5, 0.1] and [0, 0.4] have rooms [0.5, 0.4], of both 0.1.

    Args:
        demands: (items, resources), none above its capacity.
        capacities: (resources,), at least 1.
        order: (items to place,) numbers of the items.
        rooms: (rows, resources): what the rows that there are have left.
        out_row_of: (items,) row of each item; those of `order` are written. New rows follow those that there are.
    """
    shares = _WHOLE // capacities
    resources = len(capacities)
    ordered = np.empty((len(order), resources + 1), np.int64)
    ordered[:, :resources] = demands[order]
    ordered[:, resources] = (ordered[:, :resources] * shares).min(axis=1)
    found = np.empty(len(order), np.int64)
    rows = int(_fit(ordered, capacities, shares, rooms, found))
    out_row_of[order] = found
    return rows


@jit_if_large
def _fit(
    demands: NDArray[np.int64],
    capacities: NDArray[np.int64],
    shares: NDArray[np.int64],
    rooms: NDArray[np.int64],
    out_row_of: NDArray[np.int64],
) -> int:
    """Place all items; the last column of `demands` is the smallest share. Returns the number of rows."""
    rows = len(rooms)
    tree = _grown(rooms, rows, capacities, shares)
    leaves = len(tree) // 2
    credit = FIRST_VISITS
    for item in range(len(demands)):
        node, visits = _first_with_room(tree, demands, item, credit + VISITS)
        credit += VISITS - visits
        if node == 0:
            node = leaves + rows
        if node >= 2 * leaves:
            tree = _grown(tree[leaves:], leaves, capacities, shares)
            leaves *= 2
            node = leaves + rows
        row = node - leaves
        rows = max(rows, row + 1)
        out_row_of[item] = row
        for resource in range(len(capacities)):
            tree[node, resource] -= demands[item, resource]
        tree[node, len(capacities)] = _least_share(tree, node, shares)
        _update(tree, node)
    return rows


@jit_helper
def _grown(
    rooms: NDArray[np.int64], rows: int, capacities: NDArray[np.int64], shares: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return a tree of rows with these rooms and of at least as many empty ones, shape (2 * leaves, resources + 1).

    Node 1 is the root, nodes 2 * n and 2 * n + 1 are below n, and row r is node leaves + r.
    """
    leaves = 64
    while leaves < 2 * rows:
        leaves *= 2
    resources = len(capacities)
    tree = np.zeros((2 * leaves, resources + 1), np.int64)
    for row in range(leaves):
        for resource in range(resources):
            tree[leaves + row, resource] = rooms[row, resource] if row < rows else capacities[resource]
        tree[leaves + row, resources] = _least_share(tree, leaves + row, shares)
    for node in range(leaves - 1, 0, -1):
        for resource in range(resources + 1):
            tree[node, resource] = max(tree[2 * node, resource], tree[2 * node + 1, resource])
    return tree


@jit_helper
def _least_share(tree: NDArray[np.int64], node: int, shares: NDArray[np.int64]) -> Any:
    """Return the least of the rooms of a row, each as a share of the capacity."""
    least: Any = tree[node, 0] * shares[0]
    for resource in range(1, len(shares)):
        least = min(least, tree[node, resource] * shares[resource])
    return least


@jit_helper
def _first_with_room(tree: NDArray[np.int64], demands: NDArray[np.int64], item: int, most: int) -> tuple[int, int]:
    """Return the leaf of the first row with room for an item, 0 if none is found, and how many nodes were visited."""
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
            node *= 2
        else:
            while node & 1:
                node >>= 1
            if node == 0:
                return 0, visits
            node += 1
    return 0, most


@jit_helper
def _update(tree: NDArray[np.int64], node: int) -> None:
    """Renew the nodes above a row whose rooms have become less."""
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
