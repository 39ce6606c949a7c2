"""Non-negative least-squares histogram packing (NNLSHP) as published (Krell et al., arXiv 2107.02027).

Each way to fill a pack exactly is a **strategy**. The number of packs per strategy is the non-negative least-squares
solution of "all strategies together hold the histogram", rounded to integers. A rule packs the remaining segments.

The solver is the active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23). It never
forms the matrix whose columns are the strategies. Columns enter the **passive** set one at a time, the steepest first,
and leave it when their amount reaches zero. The solver keeps a Cholesky factor of the Gram matrix of the passive
columns. A new column extends the factor with one solve, and removing a column shortens it with Givens rotations. The
work of a step is therefore the square of the number of passive columns, plus a scan of the other columns.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.exact_fill import Filled, add_packs, packs_left
from packer.algorithms.jit import jit, jit_if_large
from packer.algorithms.open_packs import (
    Links,
    OpenPacks,
    best_fit,
    no_links,
    open_packs,
    push,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns, Rows
from packer.errors import PackerError

PAPER_DEPTH = 3
"""Maximum number of segments per pack in the paper's experiments; used if no limit is given."""

CHEAP_LENGTHS = 8
"""In the paper's objective, lengths up to this one have the weight CHEAP_WEIGHT, other lengths the weight 1."""

CHEAP_WEIGHT = 0.09

MOST_STRATEGIES = 100_000
"""Maximum number of strategies; so many take seconds. 1,024 tokens with 3 segments have fewer."""


DEPENDENT = 1e-13
"""Share of a column's squared norm that counts as zero.

A column is linearly dependent on the passive columns if its squared distance from their span is below this share.
"""


class PatternColumns(NamedTuple):
    """Strategies as columns of the matrix.

    The strategy [2, 1, 1] is stored in lengths[offsets[k]:offsets[k + 1]]. Its column has 1 in row 2, and 2 in row 1.
    """

    offsets: NDArray[np.int64]  # (columns + 1,)
    lengths: NDArray[np.int32]  # (offsets[-1],)


class WantedSums(NamedTuple):
    """Sum that the columns should have in each row, and the weight of each row."""

    counts: NDArray[np.float64]  # (max_len + 1,)
    weights: NDArray[np.float64]  # (max_len + 1,) the squares of the weights in the objective


class Passive(NamedTuple):
    """Columns with an amount above 0. Only the first `used` entries of the arrays are valid."""

    columns: NDArray[np.int64]  # (capacity,) indices of the columns
    amounts: NDArray[np.float64]  # (capacity,)
    factor: NDArray[np.float64]  # (capacity, capacity) upper triangular R; R.T @ R is the Gram matrix
    used: int


def nnlshp(histogram: NDArray[np.int64], max_segments: int | None = None, start: Patterns | None = None) -> Patterns:
    """Pack by NNLSHP as published. Each segment of length l left by the rounded amounts gets a pack {l, max_len - l}.

    If max_segments is None, it is 3, as in the paper. start: patterns of a histogram with about the same shares, with
    which the solver begins. Raises a PackerError if there are more than `MOST_STRATEGIES` strategies.
    """
    limit = segment_limit(histogram, PAPER_DEPTH if max_segments is None else max_segments)
    capacity = len(histogram) - 1
    number = count_strategies(capacity, limit, MOST_STRATEGIES)
    if number > MOST_STRATEGIES:
        raise PackerError(
            f"nnlshp lists every way to fill {capacity} tokens with at most {limit} segments: "
            f"{number:,} or more, above its limit of {MOST_STRATEGIES:,}; choose auto, or fewer segments"
        )
    columns, passive = PatternColumns(*every_strategy(capacity, limit)), no_columns(capacity + 1)
    weights = np.ones(capacity + 1)
    weights[: CHEAP_LENGTHS + 1] = CHEAP_WEIGHT**2
    target = WantedSums(histogram.astype(np.float64), weights)
    if start is not None:
        columns, passive = _started(columns, target, start)
    tolerance = 1e-12 * max(1, int(histogram.sum()))  # slopes below this count as zero
    passive = improve(columns, target, passive, tolerance)
    columns_used, amounts = passive.columns[: passive.used], passive.amounts[: passive.used]
    strategies = Rows(values=columns.lengths, row_starts=columns.offsets).chosen(columns_used)
    counts = np.rint(amounts).astype(np.int64)
    places = np.zeros(capacity + 1, np.int64)
    np.add.at(places, strategies.values, np.repeat(counts, np.diff(strategies.row_starts)))
    # Each remaining segment of length l gets a pack {l, max_len - l}, or {l} if packs have one segment.
    left = np.maximum(histogram - places, 0)
    rest = np.flatnonzero(left)
    pairs = np.stack([rest, capacity - rest], axis=1)[:, :limit].astype(np.int32)
    of_rest = Rows(values=pairs.ravel(), row_starts=np.arange(len(rest) + 1) * pairs.shape[1])
    return fill(histogram, limit, Rows.joined([strategies, of_rest]), np.concatenate([counts, left[rest]]))


def _started(columns: PatternColumns, target: WantedSums, start: Patterns) -> tuple[PatternColumns, Passive]:
    """Return columns in which the full patterns of `start` come first, and the passive set that begins with them."""
    capacity = len(target.counts) - 1
    is_full = np.add.reduceat(start.extents, start.offsets[:-1]) == capacity
    full = Rows(values=start.extents, row_starts=start.offsets).chosen(np.flatnonzero(is_full))
    columns = PatternColumns(
        np.concatenate([full.row_starts, full.row_starts[-1] + columns.offsets[1:]]),
        np.concatenate([full.values, columns.lengths]),
    )
    passive = no_columns(capacity + 1)
    amounts = start.counts[is_full] * (target.counts.sum() / (start.counts @ np.diff(start.offsets)))
    for column, amount in enumerate(amounts.tolist()):
        passive = insert(columns, target, passive, column, amount)
    return columns, _settle(columns, target, passive, np.zeros(len(columns.offsets) - 1, np.bool_))


def fill(histogram: NDArray[np.int64], limit: int, strategies: Rows, counts: NDArray[np.int64]) -> Patterns:
    """Pack each strategy k `counts[k]` times, then the remaining segments by best fit.

    If the strategies need more segments of a length than exist, the last packs are built without the missing segments.
    Best fit may fill the gap with shorter segments; what remains is padding. Empty packs are dropped. Equal lengths
    must be neighbors in a strategy; a length of 0 is skipped.
    """
    # When a length runs out, a strategy gets at most two more groups: one pack with too few segments of it, and packs
    # with none.
    packs = open_packs(histogram, len(histogram) - 1, more=len(counts) + 2 * np.count_nonzero(histogram))
    found = np.empty(len(histogram), np.int64)
    links = _fill(histogram, limit, strategies.row_starts, strategies.values, counts, found, packs, no_links())
    patterns = to_patterns(packs.groups, links)
    owners = np.repeat(np.arange(len(patterns.counts)), np.diff(patterns.offsets))
    order = np.lexsort((-patterns.extents, owners))
    return Patterns(offsets=patterns.offsets, extents=patterns.extents[order], counts=patterns.counts)


@jit
def _fill(
    histogram: NDArray[np.int64],
    limit: int,
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int32],
    counts: NDArray[np.int64],
    out_found: NDArray[np.int64],
    out: OpenPacks,
    out_links: Links,
) -> Links:
    """Return the links of all groups: first the groups of strategies, then those of best fit."""
    capacity = len(histogram) - 1
    left = histogram.copy()
    filled = Filled(out.groups, out_links)
    for strategy in range(len(counts)):
        wanted = counts[strategy]
        while wanted > 0:
            # Take as many segments of each length as the strategy has, or none of a length if too few are left.
            size, repeat, room = 0, 0, capacity
            for entry in range(offsets[strategy], offsets[strategy + 1]):
                length = lengths[entry]
                repeat = repeat + 1 if entry > offsets[strategy] and lengths[entry - 1] == length else 1
                if left[length] >= repeat:
                    out_found[size] = length
                    size += 1
                    room -= length
            if size == 0:
                break
            packs = min(wanted, packs_left(left, out_found, size))
            filled = add_packs(filled, out_found, size, packs, left)
            if room > 0 and size < limit:
                push(out, room, filled.links.groups - 1)
            wanted -= packs
    return best_fit(out, filled.links, left, capacity, limit)


def count_strategies(capacity: int, limit: int, most: int) -> int:
    """Return the number of ways to fill `capacity` tokens exactly with at most `limit` segments.

    Stops counting when the number exceeds `most`. Example: 4 tokens and at most 3 segments -> 4: [4], [3, 1], [2, 2]
    and [2, 1, 1].
    """
    # This equals the number of ways with any number of segments of at most `limit` tokens (conjugate partitions).
    ways = [1] * (capacity + 1)
    for part in range(2, min(limit, capacity) + 1):
        if ways[capacity] > most:
            break
        for tokens in range(part, capacity + 1):
            ways[tokens] += ways[tokens - part]
    return ways[capacity]


def every_strategy(capacity: int, limit: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (offsets, lengths) of each way to fill a pack with at most `limit` segments; lengths ascend in each."""
    strategies = count_strategies(capacity, limit, np.iinfo(np.int64).max)
    return _every_strategy(capacity, min(limit, capacity), strategies)


@jit
def _every_strategy(capacity: int, limit: int, strategies: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Enumerate the strategies in lexicographic order: [1, 1, 2], [1, 3], [2, 2], [4]."""
    offsets = np.zeros(strategies + 1, np.int64)
    lengths = np.empty(limit * strategies, np.int32)  # memory that is never written takes no space
    stack = np.zeros(limit + 1, np.int64)
    used = 0
    entries = 0
    depth = 0  # stack[:depth] is fixed; stack[depth] is tried next
    stack[0] = 1
    left = capacity
    while depth >= 0:
        new = stack[depth]
        if new == left or ((2 * new > left or depth + 1 == limit) and new < left):
            # Only one segment fits after stack[:depth].
            stack[depth] = left
            for place in range(depth + 1):
                lengths[entries] = stack[place]
                entries += 1
            used += 1
            offsets[used] = entries
            depth -= 1
            if depth >= 0:
                left += stack[depth]
                stack[depth] += 1
        else:
            left -= new
            depth += 1
            stack[depth] = new
    return offsets, lengths[:entries]


def no_columns(capacity: int) -> Passive:
    """Return an empty passive set with space for `capacity` columns."""
    return Passive(np.zeros(capacity, np.int64), np.zeros(capacity), np.zeros((capacity, capacity)), 0)


@jit
def weighted_residual(columns: PatternColumns, target: WantedSums, passive: Passive) -> NDArray[np.float64]:
    """Return the weights times (counts - sums of the passive columns), shape (max_len + 1,)."""
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
    """Return the product of a column and a vector; of the weighted residual, it is the objective's fall per unit."""
    total = 0.0
    for entry in range(columns.offsets[column], columns.offsets[column + 1]):
        total += vector[columns.lengths[entry]]
    return total


@jit
def improve(columns: PatternColumns, target: WantedSums, out: Passive, tolerance: float) -> Passive:
    """Descend until no slope is above `tolerance`; return the passive set."""
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
            # Because of rounding, the amount of this column did not rise. Refuse the column, or it would enter again
            # and again.
            refused[steepest] = True
        residual = weighted_residual(columns, target, out)
    return out


@jit_if_large
def _settle(columns: PatternColumns, target: WantedSums, out: Passive, inside: NDArray[np.bool_]) -> Passive:
    """Move to the least-squares amounts of the passive columns; drop columns whose amounts reach 0 on the way.

    Each move starts from the current residual, so rounding errors of the factor do not accumulate.
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
def insert(columns: PatternColumns, target: WantedSums, out: Passive, column: int, amount: float) -> Passive:
    """Append a column to the passive set. Leave the set unchanged if the column is linearly dependent on it."""
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
    """Remove the column at `place` from the passive set. Givens rotations make the factor triangular again."""
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
    """Solve R.T x = out for the leading len(out) x len(out) triangle R of `factor`."""
    for row in range(len(out)):
        value = out[row] / factor[row, row]
        out[row] = value
        if value != 0.0:
            for k in range(row + 1, len(out)):
                out[k] -= factor[row, k] * value


@jit_if_large
def solve_upper(factor: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Solve R x = out for the leading len(out) x len(out) triangle R of `factor`; four independent sums run faster."""
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
