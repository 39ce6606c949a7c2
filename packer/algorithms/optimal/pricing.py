"""Pricing: given a value for every length, find the most valuable patterns by a knapsack in exact integers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit, jit_helper


class Priced(NamedTuple):
    """The most valuable patterns for a set of values."""

    best: int
    """The value of the most valuable pattern."""

    worth: NDArray[np.int64]
    """Shape (lengths,): the value of the best pattern with each length in it."""

    table: NDArray[np.int64]
    """Best values of the other segments of a pattern, by their number and their room; `patterns_with` reads it."""


def certified_bound(demand: NDArray[np.int64], values: NDArray[np.int64], best: int) -> int:
    """Return a lower bound: the value of all segments over the value of the best pattern, rounded up.

    Python's integers make it a proof: with 3 segments worth 2 each, and no pack worth more than 4, it is 2.
    """
    if best == 0:
        return 0
    worth: int = sum(count * value for count, value in zip(demand.tolist(), values.tolist(), strict=True))
    return -(-worth // best)


def pricing_work(lengths: NDArray[np.int64], capacity: int, limit: int) -> int:
    """Return the work of pricing the patterns once, in units of about 40 nanoseconds."""
    layers = min(limit, capacity // int(lengths[0]))
    return layers * int((capacity - lengths).sum()) // 256


def price(lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int, limit: int) -> Priced:
    """Price all patterns of these lengths, ascending, at these values; no sum of values of a pattern may pass int64.

    A pattern may hold a length more often than there are segments of it.
    """
    if limit >= capacity // lengths[0]:
        table = _unlimited(lengths, values, capacity).reshape(1, -1)
    else:
        table = _limited(lengths, values, capacity, limit - 1)
    worth = values + table[-1, capacity - lengths]
    return Priced(int(worth.max(initial=0)), worth, table)


@jit
def _unlimited(lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """The best value in each room from 0 to capacity, with any number of segments."""
    best = np.zeros(capacity + 1, np.int64)
    for i in range(len(lengths)):
        length = lengths[i]
        value = values[i]
        for room in range(length, capacity + 1):
            best[room] = max(best[room], best[room - length] + value)
    return best


@jit
def _limited(lengths: NDArray[np.int64], values: NDArray[np.int64], capacity: int, limit: int) -> NDArray[np.int64]:
    """The best value (limit + 1, capacity + 1) for each number of segments and each room, as upper limits."""
    best = np.zeros((limit + 1, capacity + 1), np.int64)
    for segments in range(1, limit + 1):
        before = best[segments - 1]
        after = best[segments]
        most = 0
        for i in range(len(lengths)):
            # a shorter one of the same value is in a best pattern, too
            if values[i] > most:
                most = values[i]
                _allow(before, lengths[i], most, after)
    return best


@jit_helper
def _allow(before: NDArray[np.int64], length: int, value: int, out_after: NDArray[np.int64]) -> None:
    """Raise the best values to those that a last segment of this length and value allows."""
    # two windows that begin at index 0: with no index that could be negative the loop becomes vector instructions,
    # seven times as fast
    rooms = before[: len(before) - length]
    filled = out_after[length:]
    for room in range(len(rooms)):
        filled[room] = max(filled[room], rooms[room] + value)


@jit
def patterns_with(
    chosen: NDArray[np.int64], lengths: NDArray[np.int64], values: NDArray[np.int64], table: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The best pattern with each chosen length in it, as offsets (chosen + 1,) and indices of lengths, descending."""
    capacity = table.shape[1] - 1
    offsets = np.zeros(len(chosen) + 1, np.int64)
    indices = np.empty(16 * len(chosen) + 16, np.int64)
    step = 1 if len(table) > 1 else 0
    for pattern in range(len(chosen)):
        start = offsets[pattern]
        # no pattern is longer than this
        if start + capacity // lengths[0] + 1 > len(indices):
            indices = _longer(indices, start, 2 * start + capacity // lengths[0] + 1)
        indices[start] = chosen[pattern]
        end = start + 1
        room = capacity - lengths[chosen[pattern]]
        row = len(table) - 1
        i = len(lengths) - 1
        while table[row, room] > 0:
            # the longest in a best pattern; a shorter one never comes before a longer one
            while lengths[i] > room or values[i] + table[row - step, room - lengths[i]] != table[row, room]:
                i -= 1
            indices[end] = i
            end += 1
            room -= lengths[i]
            row -= step
        # the chosen one to its place
        place = start
        while place + 1 < end and indices[place + 1] > indices[place]:
            indices[place], indices[place + 1] = indices[place + 1], indices[place]
            place += 1
        offsets[pattern + 1] = end
    return offsets, indices[: offsets[-1]]


@jit_helper
def _longer(indices: NDArray[np.int64], used: int, size: int) -> NDArray[np.int64]:
    """The used ones in an array of this size."""
    longer = np.empty(size, np.int64)
    for i in range(used):
        longer[i] = indices[i]
    return longer
