"""Order of rows: of the whole dataset, in lanes, endless (`RowStream`), or so that ranks have equal work.

All orders come from hashes of seed, purpose and index. `numpy.random` is not used because NumPy may change its streams
in any release (NEP 19), while a run that is resumed in a newer environment must continue with the same draws.

The shards are dealt to lanes once, by the seed, so that a node reads the same shards in every epoch. In an epoch, a
lane visits its shards in random order, `window` shards at a time, and the rows of a window are shuffled. A step takes
equally many rows from every lane. All lanes have the same number of rows, give or take one: the dealt shards are seen
as one sequence of rows, which is cut into equal parts. A shard at a cut belongs to both lanes.

Example: 3 shards of 4 rows in 2 lanes, dealt as shards 2, 0, 1 -> rows 8 9 10 11 0 1 | 2 3 4 5 6 7.

Ranks wait for each other after every batch. Rows of a step that cost about the same keep them from waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.permute import (
    COMBINED,
    COMBINED_ROWS,
    LANE_ROWS,
    LANE_SHARDS,
    LANES,
    ROW_ORDER,
    draw_bits,
    hashes_of,
    key_of,
    permuted_all,
)
from packer.errors import PackerError


def check_range(name: str, value: int) -> None:
    """Raise a PackerError if a seed or an epoch, called `name`, is not a whole number in 0..2^64-1."""
    if not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
        raise PackerError(f"{name} is {value}: it must be a whole number from 0 to 2^64 - 1")


def sorted_by_draw(numbers: NDArray[np.int64], key: np.uint64) -> NDArray[np.int64]:
    """Return the numbers sorted by their draws."""
    ordered: NDArray[np.int64] = numbers[np.argsort(hashes_of(key, numbers), kind="stable")]
    return ordered


def row_order(rows: int, *, seed: int | None, epoch: int) -> NDArray[np.int64]:
    """Return a permutation of the row numbers, shape (rows,).

    Rows are sorted by a hash of seed, epoch and row number, which no library version can change: a run that is resumed
    in a newer environment continues with the rows that it has not seen. The result takes 8 bytes per row, computing it
    40. Without a seed, it is the order on disk.
    """
    numbers = np.arange(rows, dtype=np.uint64)
    if seed is None:
        return numbers.astype(np.int64)
    keys = hashes_of(key_of(seed, ROW_ORDER, epoch), numbers)
    # The row number replaces the low bits of its key: no two keys are equal, so that every sort gives the same order.
    low = np.uint64((1 << max(rows - 1, 0).bit_length()) - 1)
    sorted_keys: NDArray[np.uint64] = np.sort((keys & ~low) | numbers)
    order: NDArray[np.int64] = (sorted_keys & low).astype(np.int64)
    return order


def whole_shards(shard_rows: Sequence[int]) -> NDArray[np.int64]:
    """Return (shard, its first row, the row after its last) for each shard: [2, 3] -> [[0, 0, 2], [1, 2, 5]]."""
    ends = np.cumsum(np.asarray(shard_rows, np.int64))
    return np.stack([np.arange(len(ends)), ends - shard_rows, ends], axis=1)


class Lane:
    """Rows of a lane in one epoch, in order.

    `ranges`, shape (ranges, 3), has (shard, its first row in the lane, the row after its last one), in the order of the
    epoch. `key` draws the order of rows; None keeps the order on disk.
    """

    def __init__(self, ranges: NDArray[np.int64], *, window: int, key: np.uint64 | None) -> None:
        self._key = key
        count = -(-len(ranges) // window)
        bounds = [number * len(ranges) // max(count, 1) for number in range(count + 1)]
        self.windows = [ranges[first:last] for first, last in pairwise(bounds)]
        # place of each window's first row, and the end
        self._starts = [0, *accumulate(int((window[:, 2] - window[:, 1]).sum()) for window in self.windows)]
        self._read: tuple[int, NDArray[np.int64]] | None = None  # number and rows of the window that was read last

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the row numbers at the places first:last, fewer at the end of the lane."""
        parts = [np.zeros(0, np.int64)]
        for number in self.windows_at(first, last):
            if self._read is None or self._read[0] != number:
                rows = np.concatenate([np.arange(begin, end) for _, begin, end in self.windows[number].tolist()])
                self._read = number, rows if self._key is None else sorted_by_draw(rows, self._key)
            start = self._starts[number]
            parts.append(self._read[1][max(first - start, 0) : last - start])
        return np.concatenate(parts)

    def shards(self, number: int) -> list[int]:
        """Return the shards of a window."""
        shards: list[int] = self.windows[number][:, 0].tolist()
        return shards

    def windows_at(self, first: int, last: int) -> range:
        """Return the numbers of the windows to which the places first:last belong."""
        last = min(last, self._starts[-1])
        if first >= last:
            return range(0)
        return range(bisect_right(self._starts, first) - 1, bisect_right(self._starts, last - 1))


@dataclass(kw_only=True, eq=False)
class LaneOrder:
    """Order of the rows of one rank's lanes. Memory grows with the shards and with the rows of a window only.

    The fields are the arguments of `BatchSampler`, where `lanes` is a multiple of `world_size`. Without a seed, lanes
    are consecutive parts of the dataset, each in the order on disk.
    """

    shard_ranges: Callable[[int], NDArray[np.int64]]
    """Function from an epoch to its shards, as `whole_shards` returns them."""

    lanes: int
    window: int
    seed: int | None
    global_batch: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        self._taken = self.global_batch // self.lanes  # rows of each lane in a step
        self._lanes: dict[int, list[Lane]] = {}  # this rank's, by epoch

    def rows_of_step(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return this rank's rows of a step: the first row of each of its lanes, the second of each, and so on."""
        first = step * self._taken
        parts = [lane.rows(first, first + self._taken) for lane in self._lanes_of(epoch)]
        turns = np.concatenate([np.arange(len(part)) for part in parts])
        ordered: NDArray[np.int64] = np.concatenate(parts)[np.argsort(turns, kind="stable")]
        return ordered

    def shards_of_step(self, epoch: int, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (shards in the windows from which a step takes rows, shards of the windows after these).

        After the last window of an epoch comes the first one of the next.
        """
        now: dict[int, None] = {}
        after: dict[int, None] = {}
        first = step * self._taken
        for number, lane in enumerate(self._lanes_of(epoch)):
            windows = lane.windows_at(first, first + self._taken)
            for window in windows:
                now |= dict.fromkeys(lane.shards(window))
            if windows and windows.stop < len(lane.windows):
                after |= dict.fromkeys(lane.shards(windows.stop))
            elif windows:
                after |= dict.fromkeys(self._lanes_of((epoch + 1) % 2**64)[number].shards(0))
        return tuple(now), tuple(shard for shard in after if shard not in now)

    def _lanes_of(self, epoch: int) -> list[Lane]:
        """Return this rank's lanes, which are consecutive, so that few shards belong to two ranks."""
        if epoch not in self._lanes:
            self._lanes = {kept: self._lanes[kept] for kept in (epoch - 1, epoch + 1) if kept in self._lanes}
            key = None if self.seed is None else key_of(self.seed, LANE_ROWS, epoch)
            own, dealt = self.lanes // self.world_size, self._dealt_ranges(epoch)
            ranges = (
                self._ranges_of_lane(dealt, epoch, number) for number in range(self.rank * own, (self.rank + 1) * own)
            )
            self._lanes[epoch] = [Lane(each, window=self.window, key=key) for each in ranges]
        return self._lanes[epoch]

    def _dealt_ranges(self, epoch: int) -> NDArray[np.int64]:
        """Return the shards of an epoch in the order in which they are dealt to lanes."""
        ranges = self.shard_ranges(epoch)
        if self.seed is None:
            return ranges
        keys = hashes_of(key_of(self.seed, LANES, 0), ranges[:, 0])
        return ranges[np.argsort(keys, kind="stable")]

    def _ranges_of_lane(self, dealt: NDArray[np.int64], epoch: int, number: int) -> NDArray[np.int64]:
        """Return the ranges of shards in a lane in the order of an epoch, as `Lane` takes them."""
        ends = np.cumsum(dealt[:, 2] - dealt[:, 1])  # place after each shard's last row, among all dealt rows
        moved = dealt[:, 2] - ends  # from a place among the dealt rows to the row's number
        total = int(ends[-1])
        start, stop = number * total // self.lanes, (number + 1) * total // self.lanes
        firsts, lasts = np.maximum(dealt[:, 1] - moved, start), np.minimum(ends, stop)
        ranges: NDArray[np.int64] = np.stack([dealt[:, 0], firsts + moved, lasts + moved], axis=1)[firsts < lasts]
        if self.seed is not None:
            keys = hashes_of(key_of(self.seed, LANE_SHARDS, epoch), ranges[:, 0])
            ranges = ranges[np.argsort(keys, kind="stable")]
        return ranges


_KEPT = 16  # passes whose order of shards is kept


class RowStream:
    """Rows of a dataset in an endless order, from which an epoch of several datasets takes the next ones.

    Each pass over the rows has its own permutation: the shards in random order, the rows of a shard in random order,
    and the beginning moved to the end, up to a random place, so that every row is equally likely to be anywhere. Few
    shards are read at a time, and memory grows with the shards only.

    Example: shards of 2 and 3 rows in the order 4 2 3 | 1 0, moved by 1 place -> 2 3 1 0 4.

    Args:
        shard_rows: rows of each shard.
        key: key of all draws, or None for the order on disk.
    """

    def __init__(self, shard_rows: Sequence[int], key: np.uint64 | None) -> None:
        self._sizes = np.asarray(shard_rows, np.int64)
        self._first_rows = np.cumsum(self._sizes) - self._sizes
        self._rows = int(self._sizes.sum())
        self._key = key
        self._orders: dict[int, tuple[NDArray[np.int64], NDArray[np.int64], int]] = {}

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows at these places of the stream, in any order."""
        passes, within = np.divmod(places, self._rows)
        found = np.empty(len(places), np.int64)
        for number in np.unique(passes).tolist():
            here = np.flatnonzero(passes == number)
            found[here] = self._rows_in_pass(number, within[here])
        return found

    def shard_counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Return (shard, rows) of each run of places within first:last whose rows are in one shard; shape (runs, 2)."""
        found = [np.zeros((0, 2), np.int64)]
        for number in range(first // self._rows, -(-last // self._rows)):
            shards, ends, moved = self._order(number)
            shards, ends = np.tile(shards, 2), np.concatenate([ends, ends + self._rows])
            start = number * self._rows
            begin, end = max(first, start) - start + moved, min(last - start, self._rows) + moved
            counts = np.minimum(ends, end) - np.maximum(ends - self._sizes[shards], begin)
            found.append(np.stack([shards, counts], axis=1)[counts > 0])
        return np.concatenate(found)

    def _rows_in_pass(self, number: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        shards, ends, moved = self._order(number)
        places = (places + moved) % self._rows
        at = np.searchsorted(ends, places, side="right")
        shard = shards[at]
        inside = places - ends[at] + self._sizes[shard]
        if self._key is not None:
            keys = hashes_of(key_of(int(self._key), COMBINED_ROWS, number), shard)
            inside = permuted_all(inside, self._sizes[shard], keys)
        found: NDArray[np.int64] = self._first_rows[shard] + inside
        return found

    def _order(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return (the shards in the order of a pass, the place after the last row of each, the places it is moved)."""
        if number not in self._orders:
            if len(self._orders) >= _KEPT:
                self._orders = {}
            shards, moved = np.arange(len(self._sizes)), 0
            if self._key is not None:
                key = key_of(int(self._key), COMBINED, number)
                shards, moved = sorted_by_draw(shards, key), int(draw_bits(key, len(shards))) % self._rows
            self._orders[number] = shards, np.cumsum(self._sizes[shards]), moved
        return self._orders[number]


WINDOW = 8
"""Default number of consecutive steps whose rows are divided anew."""

EVEN_ENOUGH = 1.001
"""Largest work of a batch, relative to the mean, that is not evened out further."""


def slot_sizes(rows: int, slots: int) -> NDArray[np.int64]:
    """Split rows as evenly as possible, larger slots first: 5 rows in 3 slots -> [2, 2, 1]."""
    sizes = np.full(slots, rows // slots, np.int64)
    sizes[: rows % slots] += 1
    return sizes


def steps_of_like_work(
    order: NDArray[np.int64], costs: NDArray[np.int64], *, size: int, window: int
) -> NDArray[np.int64]:
    """Return the rows of an epoch in an order in which the `size` rows of a step have similar costs.

    The rows of at most `window` consecutive steps are sorted by cost and cut into as many steps. Where each rank has
    one row at a time, no other division of these rows lets ranks wait less. Steps of a window come in the order of
    their first rows in `order`, so that costs do not decrease within a window. Rows that fill no step stay at the end.

    `order` has the row numbers, shape (rows,), and `costs` their costs in the same order. Rows 4, 5, 6
    and 7 of costs [1, 9, 2, 8] in steps of 2 and a window of 2 -> [4, 6, 5, 7].
    """
    steps = len(order) // size
    moved: NDArray[np.int64] = order.copy()
    for numbers in np.array_split(np.arange(steps), max(-(-steps // window), 1)):
        places = np.arange(numbers[0] * size, (numbers[-1] + 1) * size) if len(numbers) else numbers
        alike = places[np.argsort(-costs[places], kind="stable")].reshape(-1, size)
        alike = np.sort(alike, axis=1)
        moved[places] = order[alike[np.argsort(alike[:, 0])].ravel()]
    return moved


def order_for_readers(costs: NDArray[np.int64], *, first: int, ranks: int) -> NDArray[np.int64]:
    """Return the order of a shard's rows in which every `ranks` consecutive rows of the dataset have similar costs.

    `costs`, shape (rows,), has the cost of each row, and `first` the number of the shard's first row in the dataset.
    Groups within the shard are formed as by `steps_of_like_work`, with a window of WINDOW. A group that two shards
    share gets rows of median cost from both, because shards are samples of one corpus.
    """
    rows = len(costs)
    begun = min(-first % ranks, rows)  # rows that complete the group begun by the shard before
    shared = begun + (rows - begun) % ranks
    lowest = (rows - shared) // 2
    middle = np.sort(np.argsort(costs, kind="stable")[lowest : lowest + shared])
    others = np.delete(np.arange(rows), middle)
    alike = steps_of_like_work(others, costs[others], size=ranks, window=WINDOW)
    return np.concatenate([middle[:begun], alike, middle[begun:]])


def deal_by_cost(costs: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide rows among slots of fixed sizes so that the summed costs of the slots are even.

    Rows are dealt from the most expensive one on, each to the cheapest slot with room. Then rows are swapped between
    the most and the least expensive slot until the slots are even enough, or no swap helps. Slots of one size are
    sorted by cost, so that neighbors, which run at the same time on different ranks, have similar costs.

    `sizes` has the rows per slot, in descending order, and sums to the number of rows. Returns the row numbers of each
    slot, ascending, one slot after the other: costs [9, 1, 8, 2] and sizes [2, 2] -> [0, 1, 2, 3].
    """
    filled = len(sizes) - np.count_nonzero(sizes == 0)
    slot_of = np.empty(len(costs), np.int64)
    by_cost = np.argsort(-costs, kind="stable")
    if filled == len(costs):  # a row for each slot
        slot_of[by_cost] = np.arange(filled)
    else:
        open_slots = [(0, slot, int(sizes[slot])) for slot in range(filled)]
        for row, cost in zip(by_cost.tolist(), costs[by_cost].tolist(), strict=True):
            load, slot, room = heappop(open_slots)
            slot_of[row] = slot
            if room > 1:
                heappush(open_slots, (load + cost, slot, room - 1))
        _swap_rows(slot_of, costs, filled)
    loads = _loads(slot_of, costs, filled)
    order = np.lexsort((-loads, -sizes[:filled]))
    placed = np.empty(filled, np.int64)
    placed[order] = np.arange(filled)
    rows: NDArray[np.int64] = np.argsort(placed[slot_of], kind="stable")
    return rows


def _loads(slot_of: NDArray[np.int64], costs: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    """Return the summed costs of each slot, where `slot_of` has the slot of each row."""
    loads = np.zeros(slots, np.int64)
    np.add.at(loads, slot_of, costs)
    return loads


def _swap_rows(slot_of: NDArray[np.int64], costs: NDArray[np.int64], slots: int) -> None:
    """Swap rows, in place, between the most and the least expensive slot as long as that helps and they are uneven."""
    loads = _loads(slot_of, costs, slots)
    enough = loads.sum() / max(slots, 1) * EVEN_ENOUGH
    for _ in range(len(costs)):
        heavy, light = int(loads.argmax()), int(loads.argmin())
        if loads[heavy] <= enough:
            break
        own, other = np.flatnonzero(slot_of == heavy), np.flatnonzero(slot_of == light)
        moved = costs[own][:, None] - costs[other][None, :]  # cost that a swap moves from the heavy to the light slot
        gap = loads[heavy] - loads[light]
        left = np.abs(gap - 2 * moved)
        i, j = np.unravel_index(int(left.argmin()), left.shape)
        if left[i, j] >= gap:
            break
        slot_of[own[i]], slot_of[other[j]] = light, heavy
        loads[heavy] -= moved[i, j]
        loads[light] += moved[i, j]
