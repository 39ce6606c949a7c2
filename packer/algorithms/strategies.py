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
    levels = _levels(limit - 1)
    tables = np.full((len(levels), capacity + 1), NEVER)
    halves = np.zeros((len(levels), 2), np.int64)
    for place, level in enumerate(levels):
        if level == 0:
            tables[place, 0] = 0.0
        elif level == 1:
            tables[place] = values
            tables[place, 0] = 0.0
        else:
            halves[place] = levels.index(level - level // 2), levels.index(level // 2)
            _combine(tables[halves[place, 0]], tables[halves[place, 1]], tables[place])
    worth = values[1:] + tables[-1, capacity - 1 :: -1]
    order = np.argsort(-worth, kind="stable") + 1
    offsets, lengths = _written_out(tables, halves, np.array(levels), order[worth[order - 1] > least])
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return offsets, lengths[np.lexsort((lengths, owners))]


def _levels(level: int) -> list[int]:
    """The numbers of segments met when `level` is halved again and again, ascending: 7 -> [1, 2, 3, 4, 7]."""
    levels = {level}
    last = {level}
    while max(last) > 1:
        last = {half for number in last if number > 1 for half in (number - number // 2, number // 2)}
        levels |= last
    return sorted(levels)


@jit
def _combine(first: NDArray[np.float64], second: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """The best value of every fill that is one of `first` and one of `second`."""
    for fill in range(len(first)):
        value = first[fill]
        if value > NEVER:
            for tokens in range(fill, len(out)):
                total = value + second[tokens - fill]
                out[tokens] = total if total > out[tokens] else out[tokens]


@jit
def _written_out(
    tables: NDArray[np.float64], halves: NDArray[np.int64], levels: NDArray[np.int64], firsts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return, for each length of `firsts`, that length and the best fill of what is left, by descending the halves."""
    capacity = tables.shape[1] - 1
    offsets = np.zeros(len(firsts) + 1, np.int64)
    lengths = np.empty(len(firsts) * (levels[-1] + 1), np.int32)
    # what is still to be taken apart: level and tokens
    stack = np.empty((2 * len(levels) + 2, 2), np.int64)
    entries = 0
    for strategy in range(len(firsts)):
        lengths[entries] = firsts[strategy]
        entries += 1
        stack[0, 0] = len(levels) - 1
        stack[0, 1] = capacity - firsts[strategy]
        depth = 1
        while depth > 0:
            depth -= 1
            place = stack[depth, 0]
            tokens = stack[depth, 1]
            if tokens == 0:
                continue
            if levels[place] == 1:
                lengths[entries] = tokens
                entries += 1
                continue
            large = halves[place, 0]
            small = halves[place, 1]
            fill = 0
            while tables[large, fill] + tables[small, tokens - fill] != tables[place, tokens]:
                fill += 1
            stack[depth, 0] = large
            stack[depth, 1] = fill
            stack[depth + 1, 0] = small
            stack[depth + 1, 1] = tokens - fill
            depth += 2
        offsets[strategy + 1] = entries
    return offsets, lengths[:entries]
