"""Vector packing: rows of items with several demands, within the capacity of every resource; for `pack --limit`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import vector_bounds
from packer.algorithms.vector_drawing import draw_full_rows
from packer.algorithms.vector_first_fit import vector_first_fit
from packer.plan.permute import key_of, permute_all
from packer.plan.rows import PlacedRows, collected_rows
from packer.random_purposes import DRAWING

RESERVES = (0.02, 0.1, 0.2)
"""Shares of the rows to be drawn that are packed by first fit decreasing instead, tried one after the other."""

GOOD_ENOUGH = 0.0005
"""Rows above the lower bound, as a share of it, at which nothing else is tried."""

WORTH_SORTING = 0.005
"""Share of the rows that first fit decreasing alone must save; its rows are not mixed like the corpus."""

SCARCE = 0.9
"""Bound of a resource, as a share of the largest, from which on rows may be drawn full in it."""


def pack_vectors(
    demands: NDArray[np.int32], capacities: NDArray[np.int64], *, max_segments: int | None = None, seed: int
) -> PlacedRows:
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
    """Return the resource that drawn rows are full in, of those whose bound is close to the largest.

    It is the one with the smallest capacity: many items have the same demand of it, such as three images, so that one
    is found that suits the other resources, too. Where all demands are equal, as with `max_segments`, nothing can be
    chosen, so that such a resource comes last.
    """
    scarce = np.flatnonzero(bounds >= SCARCE * bounds.max(initial=0))
    alike = [demands.shape[1] > 0 and demands[resource].min() == demands[resource].max() for resource in scarce]
    return int(scarce[np.lexsort((capacities[scarce], alike))[0]])


def _best_rows(demands: NDArray[np.int32], capacities: NDArray[np.int64], bound: int) -> tuple[NDArray[Any], int]:
    """Return the row of each item, shape (items,), and the number of rows."""
    drawn = draw_full_rows(demands, capacities)
    drawn_rows = int(drawn.max(initial=-1)) + 1
    shares = _largest_shares(demands, capacities)
    best, fewest = drawn, len(demands) + 1
    for reserve in (*RESERVES, 1):
        row_of, rows = _fit_others(demands, capacities, shares, drawn, int(drawn_rows * (1 - reserve)))
        if rows < fewest * (1 - WORTH_SORTING if reserve == 1 else 1):
            best, fewest = row_of, rows
        if fewest <= bound * (1 + (WORTH_SORTING if reserve == RESERVES[-1] else GOOD_ENOUGH)):
            break
    return best, fewest


def _largest_shares(demands: NDArray[np.int32], capacities: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Return the largest share of a capacity that each item takes, in units of 1 / 65535, shape (items,)."""
    shares = np.zeros(len(demands), np.float64)
    for resource, capacity in enumerate(capacities.tolist()):
        np.maximum(shares, demands[:, resource] * (65535 / capacity), out=shares)
    return shares.astype(np.uint16)


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
