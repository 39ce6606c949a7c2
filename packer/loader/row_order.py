"""Orders of rows: a permutation of the dataset, lanes of shards, an endless stream (`RowStream`), and balanced work.

All orders come from hashes of seed, purpose and index. `numpy.random` is not used because NumPy may change its streams
in any release (NEP 19), while a run that is resumed in a newer environment must continue with the same draws.

Shards are dealt to lanes once, by the seed, so that a node reads the same shards in every epoch. In an epoch, a lane
visits its shards in random order, `window` shards at a time, and the rows of a window are shuffled. A step takes
equally many rows from every lane. All lanes have the same number of rows, to within one: the dealt shards are treated
as one sequence of rows, which is cut into equal parts. A shard at a cut belongs to both lanes.

Example: 3 shards of 4 rows in 2 lanes, dealt as shards 2, 0, 1 -> rows 8 9 10 11 0 1 | 2 3 4 5 6 7.

Ranks wait for each other after every batch. They wait less if the rows of a step have similar costs.
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
    """Raise a PackerError unless `value`, a seed or an epoch called `name`, is an integer from 0 to 2**64 - 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
        raise PackerError(f"{name} is {value!r}: it must be a whole number from 0 to 2^64 - 1")


def sorted_by_draw(numbers: NDArray[np.int64], key: np.uint64) -> NDArray[np.int64]:
    """Return the numbers sorted by their draws."""
    return numbers[np.argsort(hashes_of(key, numbers), kind="stable")]


def row_order(rows: int, *, seed: int | None, epoch: int) -> NDArray[np.int64]:
    """Return a permutation of the row numbers, shape (rows,).

    Rows are sorted by a hash of seed, epoch and row number, which does not depend on library versions. A run that is
    resumed in a newer environment therefore continues with the rows that it has not seen. The result takes 8 bytes per
    row; computing it takes 40 bytes per row. Without a seed, rows stay in the order on disk.
    """
    numbers = np.arange(rows)
    return numbers if seed is None else sorted_by_draw(numbers, key_of(seed, ROW_ORDER, epoch))


def whole_shards(shard_rows: Sequence[int]) -> NDArray[np.int64]:
    """Return (shard, its first row, the row after its last) for each shard: [2, 3] -> [[0, 0, 2], [1, 2, 5]]."""
    ends = np.cumsum(np.asarray(shard_rows, np.int64))
    return np.stack([np.arange(len(ends)), ends - shard_rows, ends], axis=1)


class Lane:
    """Rows of a lane in one epoch, in order.

    `ranges`, shape (ranges, 3), has the columns shard, first row, and row after the last, in the order of the epoch.
    `key` is the hash key that shuffles rows; None keeps the order on disk.
    """

    def __init__(self, ranges: NDArray[np.int64], *, window: int, key: np.uint64 | None) -> None:
        self._key = key
        count = -(-len(ranges) // window)
        bounds = [number * len(ranges) // max(count, 1) for number in range(count + 1)]
        self.windows = [ranges[first:last] for first, last in pairwise(bounds)]
        # index of each window's first row in the lane, plus the end
        self._starts = [0, *accumulate(int((window[:, 2] - window[:, 1]).sum()) for window in self.windows)]
        self._read: tuple[int, NDArray[np.int64]] | None = None  # number and rows of the last window read

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the row numbers at the positions first:last of the lane, fewer at its end."""
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
        """Return the numbers of the windows that contain the positions first:last."""
        last = min(last, self._starts[-1])
        if first >= last:
            return range(0)
        return range(bisect_right(self._starts, first) - 1, bisect_right(self._starts, last - 1))


@dataclass(kw_only=True, eq=False)
class LaneOrder:
    """Order of the rows in one rank's lanes. Memory grows only with the number of shards and the rows of a window.

    The fields are arguments of `BatchSampler`; `lanes` is a multiple of `world_size`. Without a seed, lanes are
    consecutive parts of the dataset, each in the order on disk.
    """

    shard_ranges: Callable[[int], NDArray[np.int64]]
    """Function that returns the shards of an epoch, as `whole_shards` does."""

    lanes: int
    window: int
    seed: int | None
    global_batch: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        self._taken = self.global_batch // self.lanes  # number of rows that a step takes from each lane
        self._lanes: dict[int, list[Lane]] = {}  # lanes of this rank, by epoch

    def rows_of_step(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return this rank's rows of a step: the first row of each of its lanes, the second of each, and so on."""
        first = step * self._taken
        parts = [lane.rows(first, first + self._taken) for lane in self._lanes_of(epoch)]
        turns = np.concatenate([np.arange(len(part)) for part in parts])
        return np.concatenate(parts)[np.argsort(turns, kind="stable")]

    def shards_of_step(self, epoch: int, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (shards in the windows that a step reads, shards in the windows after these).

        The last window of an epoch is followed by the first window of the next epoch.
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
        """Return this rank's lanes. They are consecutive, so that few shards belong to two ranks."""
        if epoch not in self._lanes:
            self._lanes = {kept: self._lanes[kept] for kept in (epoch - 1, epoch + 1) if kept in self._lanes}
            key = None if self.seed is None else key_of(self.seed, LANE_ROWS, epoch)
            own, dealt = self.lanes // self.world_size, self.shard_ranges(epoch)
            if self.seed is not None:
                dealt = dealt[np.argsort(hashes_of(key_of(self.seed, LANES, 0), dealt[:, 0]), kind="stable")]
            ranges = (
                self._ranges_of_lane(dealt, epoch, number) for number in range(self.rank * own, (self.rank + 1) * own)
            )
            self._lanes[epoch] = [Lane(each, window=self.window, key=key) for each in ranges]
        return self._lanes[epoch]

    def _ranges_of_lane(self, dealt: NDArray[np.int64], epoch: int, number: int) -> NDArray[np.int64]:
        """Return the ranges of shards in a lane, in the order of an epoch, as `Lane` expects them."""
        ends = np.cumsum(dealt[:, 2] - dealt[:, 1])  # end of each shard in the sequence of all dealt rows
        moved = dealt[:, 2] - ends  # difference between a row's number and its index in that sequence
        total = int(ends[-1])
        start, stop = number * total // self.lanes, (number + 1) * total // self.lanes
        firsts, lasts = np.maximum(dealt[:, 1] - moved, start), np.minimum(ends, stop)
        ranges: NDArray[np.int64] = np.stack([dealt[:, 0], firsts + moved, lasts + moved], axis=1)[firsts < lasts]
        if self.seed is not None:
            keys = hashes_of(key_of(self.seed, LANE_SHARDS, epoch), ranges[:, 0])
            ranges = ranges[np.argsort(keys, kind="stable")]
        return ranges


_KEPT = 16  # number of passes whose shard order is kept


class RowStream:
    """Rows of a dataset in an endless order. Each epoch of several datasets takes the next rows of every stream.

    Each pass over the rows has its own permutation. The shards are in random order, and so are the rows of each shard;
    then the order is rotated by a random number of rows, so that every row is equally likely at every position. Few
    shards are read at the same time, and memory grows only with the number of shards.

    Example: shards of 2 and 3 rows in the order 4 2 3 | 1 0, rotated by 1 row -> 2 3 1 0 4.

    Args:
        shard_rows: number of rows of each shard.
        key: hash key of all draws, or None for the order on disk.
        begin: number of rows that an earlier mixture used; the stream continues after them.
    """

    def __init__(self, shard_rows: Sequence[int], key: np.uint64 | None, begin: int = 0) -> None:
        self.key, self.begin = key, begin
        self._sizes = np.asarray(shard_rows, np.int64)
        self._first_rows = np.cumsum(self._sizes) - self._sizes
        self._rows = int(self._sizes.sum())
        self._orders: dict[int, tuple[NDArray[np.int64], NDArray[np.int64], int]] = {}

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows at these positions of the stream; positions may be in any order."""
        passes, within = np.divmod(places + self.begin, self._rows)
        found = np.empty(len(places), np.int64)
        for number in np.unique(passes).tolist():
            here = np.flatnonzero(passes == number)
            found[here] = self._rows_in_pass(number, within[here])
        return found

    def shard_counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Return (shard, number of rows) for each run of positions in first:last within a shard; shape (runs, 2)."""
        found = [np.zeros((0, 2), np.int64)]
        first, last = first + self.begin, last + self.begin
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
        if self.key is not None:
            keys = hashes_of(key_of(int(self.key), COMBINED_ROWS, number), shard)
            inside = permuted_all(inside, self._sizes[shard], keys)
        return self._first_rows[shard] + inside

    def _order(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return (shards in the order of a pass, end of each shard in that order, rotation in rows)."""
        if number not in self._orders:
            if len(self._orders) >= _KEPT:
                self._orders = {}
            shards, moved = np.arange(len(self._sizes)), 0
            if self.key is not None:
                key = key_of(int(self.key), COMBINED, number)
                shards, moved = sorted_by_draw(shards, key), int(draw_bits(key, len(shards))) % self._rows
            self._orders[number] = shards, np.cumsum(self._sizes[shards]), moved
        return self._orders[number]


WINDOW = 8
"""Default number of consecutive steps whose rows are redistributed."""

EVEN_ENOUGH = 1.001
"""Balancing stops when the largest work of a batch is at most this multiple of the mean."""


def slot_sizes(rows: int, slots: int) -> NDArray[np.int64]:
    """Split rows as evenly as possible, larger slots first: 5 rows in 3 slots -> [2, 2, 1]."""
    sizes = np.full(slots, rows // slots, np.int64)
    sizes[: rows % slots] += 1
    return sizes


def steps_of_like_work(
    order: NDArray[np.int64], costs: NDArray[np.int64], *, size: int, window: int
) -> NDArray[np.int64]:
    """Return the rows of an epoch in an order in which the `size` rows of a step have similar costs.

    The rows of at most `window` consecutive steps are sorted by cost and cut into as many steps. If each rank has one
    row per batch, no other grouping of these rows has less waiting. The steps of a window are ordered by their first
    rows in `order`, so that costs do not decrease within a window. Rows that do not fill a step stay at the end.

    `order` has the row numbers, shape (rows,), and `costs` their costs in the same order. Example: rows 4, 5, 6 and 7
    with costs [1, 9, 2, 8], steps of 2 and a window of 2 -> [4, 6, 5, 7].
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
    """Return an order of a shard's rows in which every `ranks` consecutive rows of the dataset have similar costs.

    `costs`, shape (rows,), has the cost of each row; `first` is the number of the shard's first row in the dataset.
    Groups within the shard are formed by `steps_of_like_work` with a window of WINDOW. A group that two shards share
    gets rows of median cost from both, because shards are samples of one corpus.
    """
    rows = len(costs)
    begun = min(-first % ranks, rows)  # number of rows that belong to the last group of the previous shard
    shared = begun + (rows - begun) % ranks
    lowest = (rows - shared) // 2
    middle = np.sort(np.argsort(costs, kind="stable")[lowest : lowest + shared])
    others = np.delete(np.arange(rows), middle)
    alike = steps_of_like_work(others, costs[others], size=ranks, window=WINDOW)
    return np.concatenate([middle[:begun], alike, middle[begun:]])


def deal_by_cost(costs: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide rows among slots of fixed sizes so that the summed costs of the slots are nearly equal.

    Rows are dealt from the most expensive one on, each to the cheapest slot with room. Then rows are swapped between
    the most and the least expensive slot until the costs are close enough, or no swap helps. Slots of one size are
    sorted by cost, so that neighbors, which run at the same time on different ranks, have similar costs.

    `sizes` has the number of rows per slot, in descending order, and sums to the number of rows. Returns the row
    numbers of each slot, ascending, slot by slot: costs [9, 1, 8, 2] and sizes [2, 2] -> [0, 1, 2, 3].
    """
    filled = len(sizes) - np.count_nonzero(sizes == 0)
    slot_of = np.empty(len(costs), np.int64)
    by_cost = np.argsort(-costs, kind="stable")
    if filled == len(costs):  # one row per slot
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
    return np.argsort(placed[slot_of], kind="stable")


def _loads(slot_of: NDArray[np.int64], costs: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    """Return the summed costs of each slot; `slot_of` has the slot of each row."""
    loads = np.zeros(slots, np.int64)
    np.add.at(loads, slot_of, costs)
    return loads


def _swap_rows(slot_of: NDArray[np.int64], costs: NDArray[np.int64], slots: int) -> None:
    """Swap rows, in place, between the most and the least expensive slot until costs are even or no swap helps."""
    loads = _loads(slot_of, costs, slots)
    enough = loads.sum() / max(slots, 1) * EVEN_ENOUGH
    for _ in range(len(costs)):
        heavy, light = int(loads.argmax()), int(loads.argmin())
        if loads[heavy] <= enough:
            break
        own, other = np.flatnonzero(slot_of == heavy), np.flatnonzero(slot_of == light)
        moved = costs[own][:, None] - costs[other][None, :]  # cost that each swap moves to the light slot
        gap = loads[heavy] - loads[light]
        left = np.abs(gap - 2 * moved)
        i, j = np.unravel_index(int(left.argmin()), left.shape)
        if left[i, j] >= gap:
            break
        slot_of[own[i]], slot_of[other[j]] = light, heavy
        loads[heavy] -= moved[i, j]
        loads[light] += moved[i, j]
