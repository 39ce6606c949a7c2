"""Non-negative least squares over sparse columns: an active-set solver that never forms the matrix.

The method is that of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23): columns enter the
**passive** set one at a time, steepest first, and leave it when their amount reaches zero. Here the passive columns are
kept as a Cholesky factor of their Gram matrix, which a new column extends by one solve and a leaving one
shortens by Givens rotations, so that a step costs passive ** 2 and the columns outside are only scanned.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit, jit_if_large

DEPENDENT = 1e-13
"""A column whose squared distance from the passive ones is below this part of its squared norm adds nothing."""


class PatternColumns(NamedTuple):
    """Strategies as columns of the matrix.

    [2, 1, 1] is lengths[offsets[k]:offsets[k + 1]] and has 1 in row 2 and 2 in row 1.
    """

    offsets: NDArray[np.int64]  # (columns + 1,)
    lengths: NDArray[np.int32]  # (offsets[-1],)


class Target(NamedTuple):
    """Sum that the columns should have, row by row, and the weight of each row."""

    counts: NDArray[np.float64]  # (max_len + 1,)
    weights: NDArray[np.float64]  # (max_len + 1,) the squares of the weights in the objective


class Passive(NamedTuple):
    """The columns with an amount above 0; only the first `used` entries of the arrays count."""

    columns: NDArray[np.int64]  # (capacity,) their numbers
    amounts: NDArray[np.float64]  # (capacity,)
    factor: NDArray[np.float64]  # (capacity, capacity) upper triangular R; R.T @ R is the Gram matrix
    used: int


def no_columns(capacity: int) -> Passive:
    """An empty passive set with room for `capacity` columns."""
    return Passive(np.zeros(capacity, np.int64), np.zeros(capacity), np.zeros((capacity, capacity)), 0)


@jit
def weighted_residual(columns: PatternColumns, target: Target, passive: Passive) -> NDArray[np.float64]:
    """The weights times (counts - what the passive columns sum to), shape (max_len + 1,)."""
    residual: NDArray[np.float64] = target.counts.copy()
    for place in range(passive.used):
        column = passive.columns[place]
        amount = passive.amounts[place]
        for entry in range(columns.offsets[column], columns.offsets[column + 1]):
            residual[columns.lengths[entry]] -= amount
    for row in range(len(residual)):
        residual[row] *= target.weights[row]
    return residual


@jit_if_large
def slope(columns: PatternColumns, column: int, vector: NDArray[np.float64]) -> float:
    """The product of a column and a vector over rows; with the weighted residual, how the objective falls per unit."""
    total = 0.0
    for entry in range(columns.offsets[column], columns.offsets[column + 1]):
        total += vector[columns.lengths[entry]]
    return total


@jit
def improve(columns: PatternColumns, target: Target, out: Passive, tolerance: float) -> Passive:
    """Descend until no slope is above `tolerance`; returns the passive set."""
    inside = np.zeros(len(columns.offsets) - 1, np.bool_)
    refused = np.zeros(len(columns.offsets) - 1, np.bool_)
    for place in range(out.used):
        inside[out.columns[place]] = True
    residual = weighted_residual(columns, target, out)
    while out.used < len(out.columns):
        steepest = -1
        highest = tolerance
        for column in range(len(inside)):
            if not inside[column] and not refused[column]:
                rise = slope(columns, column, residual)
                if rise > highest:
                    highest = rise
                    steepest = column
        if steepest < 0:
            break
        extended = insert(columns, target, out, steepest, 0.0)
        if extended.used == out.used:
            refused[steepest] = True
            continue
        out = _settle(columns, target, extended, inside)
        if out.used and out.columns[out.used - 1] == steepest:
            for column in range(len(refused)):
                refused[column] = False
        else:
            # it could not rise after all: rounding; without this it would enter again and again
            refused[steepest] = True
        residual = weighted_residual(columns, target, out)
    return out


@jit_if_large
def _settle(columns: PatternColumns, target: Target, out: Passive, inside: NDArray[np.bool_]) -> Passive:
    """Move to the least-squares amounts of the passive columns, dropping those that reach 0 on the way.

    Each move is computed from the present residual, so rounding in the factor does not add up.
    """
    amounts = out.amounts
    for place in range(out.used):
        inside[out.columns[place]] = True
    while out.used:
        residual = weighted_residual(columns, target, out)
        move = np.empty(out.used)
        for place in range(out.used):
            move[place] = slope(columns, out.columns[place], residual)
        solve_transposed(out.factor, move)
        solve_upper(out.factor, move)
        share = 1.0
        first = -1
        for place in range(out.used):
            if move[place] < 0 and amounts[place] + share * move[place] <= 0:
                share = -amounts[place] / move[place]
                first = place
        for place in range(out.used):
            amounts[place] += share * move[place]
        if first < 0:
            break
        amounts[first] = 0.0
        for place in range(out.used - 1, -1, -1):
            if amounts[place] <= 0.0:
                inside[out.columns[place]] = False
                out = remove(out, place)
    return out


@jit_if_large
def insert(columns: PatternColumns, target: Target, out: Passive, column: int, amount: float) -> Passive:
    """Append a column to the passive set; the set stays as it is where the column depends on those in it."""
    used = out.used
    vector = np.zeros(len(target.weights))
    for entry in range(columns.offsets[column], columns.offsets[column + 1]):
        vector[columns.lengths[entry]] += target.weights[columns.lengths[entry]]
    norm = slope(columns, column, vector)
    products = np.empty(used)
    for place in range(used):
        products[place] = slope(columns, out.columns[place], vector)
    solve_transposed(out.factor, products)
    left = norm
    for place in range(used):
        left -= products[place] * products[place]
    if left <= DEPENDENT * norm:
        return out
    for place in range(used):
        out.factor[place, used] = products[place]
    out.factor[used, used] = math.sqrt(left)
    out.columns[used] = column
    out.amounts[used] = amount
    return Passive(out.columns, out.amounts, out.factor, used + 1)


@jit_if_large
def remove(out: Passive, place: int) -> Passive:
    """Take the column at `place` out of the passive set; Givens rotations make the factor triangular again."""
    factor = out.factor
    used = out.used
    for row in range(place):
        for k in range(place + 1, used):
            factor[row, k - 1] = factor[row, k]
    for row in range(place, used - 1):
        upper = factor[row, row + 1]
        lower = factor[row + 1, row + 1]
        length = math.sqrt(upper * upper + lower * lower)
        cos = upper / length
        sin = lower / length
        for k in range(row + 1, used):
            above = factor[row, k]
            below = factor[row + 1, k]
            factor[row, k - 1] = cos * above + sin * below
            factor[row + 1, k] = cos * below - sin * above
    for k in range(place + 1, used):
        out.columns[k - 1] = out.columns[k]
        out.amounts[k - 1] = out.amounts[k]
    return Passive(out.columns, out.amounts, factor, used - 1)


@jit_if_large
def solve_transposed(factor: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Solve R.T x = out for the leading triangle that fits; row by row of R, as it lies in memory."""
    for row in range(len(out)):
        value = out[row] / factor[row, row]
        out[row] = value
        if value != 0.0:
            for k in range(row + 1, len(out)):
                out[k] -= factor[row, k] * value


@jit_if_large
def solve_upper(factor: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Solve R x = out for the leading triangle that fits; four independent sums keep the processor busy."""
    used = len(out)
    for row in range(used - 1, -1, -1):
        first = 0.0
        second = 0.0
        third = 0.0
        fourth = 0.0
        k = row + 1
        while k + 3 < used:
            first += factor[row, k] * out[k]
            second += factor[row, k + 1] * out[k + 1]
            third += factor[row, k + 2] * out[k + 2]
            fourth += factor[row, k + 3] * out[k + 3]
            k += 4
        while k < used:
            first += factor[row, k] * out[k]
            k += 1
        out[row] = (out[row] - (first + second + third + fourth)) / factor[row, row]
