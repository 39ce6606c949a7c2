"""Strategies: the ways to fill a pack exactly; all of them, or those that a least-squares residual asks for."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit

NEVER = -np.inf
"""The value of a fill that cannot be reached."""


def count_strategies(capacity: int, limit: int, most: int) -> int:
    """The ways to fill `capacity` tokens exactly with at most `limit` segments; counts on to just above `most`.

    4 tokens, at most 3 segments: [4], [3, 1], [2, 2], [2, 1, 1] -> 4.
    """
    # as many as there are ways with segments of at most `limit` tokens: [2, 1, 1] drawn as dots, columns for rows
    ways = [1] * (capacity + 1)
    for part in range(2, min(limit, capacity) + 1):
        if ways[capacity] > most:
            break
        for tokens in range(part, capacity + 1):
            ways[tokens] += ways[tokens - part]
    return ways[capacity]


def every_strategy(capacity: int, limit: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Offsets and lengths of every way to fill a pack with at most `limit` segments, ascending within each."""
    strategies = count_strategies(capacity, limit, np.iinfo(np.int64).max)
    return _every_strategy(capacity, min(limit, capacity), strategies)


@jit
def _every_strategy(capacity: int, limit: int, strategies: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Count through the strategies in the order of their lengths: [1, 1, 2], [1, 3], [2, 2], [4]."""
    offsets = np.zeros(strategies + 1, np.int64)
    lengths = np.empty(limit * strategies, np.int32)  # memory that is not written is not used
    stack = np.zeros(limit + 1, np.int64)
    used = 0
    entries = 0
    depth = 0  # stack[:depth] stands; stack[depth] is to be tried
    stack[0] = 1
    left = capacity
    while depth >= 0:
        new = stack[depth]
        if new == left or ((2 * new > left or depth + 1 == limit) and new < left):
            # nothing but one last segment fits after stack[:depth]
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


def best_strategies(
    values: NDArray[np.float64], limit: int, least: float
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The best strategy that contains each length, if it is worth more than `least`; the best first.

    Offsets and lengths as from `every_strategy`.

    `values`, shape (max_len + 1,), are the values of a segment of each length; lengths with NEVER are not used. A
    strategy may occur more than once.
    """
    capacity = len(values) - 1
    lengths = np.flatnonzero(values > NEVER)
    table = _best_fills(lengths, values, limit - 1)
    worth = values[lengths] + table[-1, capacity - lengths]
    order = np.argsort(-worth, kind="stable")
    offsets, segments = _written_out(table, lengths, values, lengths[order[worth[order] > least]])
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return offsets, segments[np.lexsort((segments, owners))]


@jit
def _best_fills(lengths: NDArray[np.int64], values: NDArray[np.float64], limit: int) -> NDArray[np.float64]:
    """The best value (limit + 1, max_len + 1) of exactly so many tokens by at most so many segments."""
    best = np.full((limit + 1, len(values)), NEVER)
    best[0, 0] = 0.0
    for segments in range(1, limit + 1):
        before, after = best[segments - 1], best[segments]
        for tokens in range(len(values)):
            after[tokens] = before[tokens]
        for length in lengths:
            value = values[length]
            # two windows that begin at index 0, as in `column_generation`
            shorter, filled = before[: len(before) - length], after[length:]
            for tokens in range(len(shorter)):
                total = shorter[tokens] + value
                filled[tokens] = total if total > filled[tokens] else filled[tokens]
    return best


@jit
def _written_out(
    best: NDArray[np.float64], lengths: NDArray[np.int64], values: NDArray[np.float64], firsts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return, for each length of `firsts`, that length and the best fill of what it leaves."""
    offsets = np.zeros(len(firsts) + 1, np.int64)
    segments = np.empty(len(firsts) * len(best), np.int32)
    entries = 0
    for strategy in range(len(firsts)):
        segments[entries] = firsts[strategy]
        entries += 1
        left = best.shape[1] - 1 - firsts[strategy]
        row = len(best) - 1
        while left > 0:
            while best[row - 1, left] == best[row, left]:
                row -= 1
            place = 0
            length = lengths[0]
            while length > left or best[row - 1, left - length] + values[length] != best[row, left]:
                place += 1
                length = lengths[place]
            segments[entries] = length
            entries += 1
            left -= length
            row -= 1
        offsets[strategy + 1] = entries
    return offsets, segments[:entries]
