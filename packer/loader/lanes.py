"""Order of the rows by lanes: each rank reads its own shards only, a few at a time.

The shards are dealt to lanes once, by the seed, so that a node reads the same shards in every epoch. In an epoch, a
lane visits its shards in random order, `window` shards at a time, and the rows of a window are shuffled. A step takes
equally many rows from every lane. All lanes have the same number of rows, give or take one: the dealt shards are seen
as one sequence of rows, which is cut into equal parts. A shard at a cut belongs to both lanes.

Example: 3 shards of 4 rows in 2 lanes, dealt as shards 2, 0, 1 -> rows 8 9 10 11 0 1 | 2 3 4 5 6 7.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.draws import draws, stream_key
from packer.random_purposes import LANE_ROWS, LANE_SHARDS, LANES


def lane_start(rows: int, lanes: int, lane: int) -> int:
    """Return the place at which a lane begins when `rows` rows are cut into equal lanes: 5 rows in 2 -> 0, 2."""
    return lane * rows // lanes


def lanes_of_rank(lanes: int, rank: int, world_size: int) -> range:
    """Return the lanes of a rank. They are consecutive, so that few shards belong to two ranks."""
    return range(rank * lanes // world_size, (rank + 1) * lanes // world_size)


def check_lanes(
    lanes: int, window: int, *, global_batch: int, world_size: int, balance: Literal["attention"] | None
) -> None:
    """Check the options of an order by lanes; see `BatchSampler`."""
    if lanes < 1 or global_batch % lanes:
        raise PackerError(f"lanes is {lanes}, global_batch {global_batch}: choose a divisor of the global batch")
    if lanes % world_size:
        raise PackerError(
            f"lanes is {lanes}, for {world_size} ranks: choose a multiple of the number of ranks that divides "
            f"global_batch, {global_batch}"
        )
    if window < 1:
        raise PackerError(f"window is {window}: it must be at least 1")
    if balance is not None:
        raise PackerError(
            f"balance is {balance!r}, and lanes is {lanes}: balancing moves rows between ranks, and in lanes each rank "
            "reads its own; leave balance out"
        )


class Lane:
    """Rows of a lane in one epoch, in order.

    `pieces`, shape (pieces, 3), has the number of the shard, of its first row in the lane, and of the row after the
    last, in the order of the epoch. `key` is that of the draws that shuffle rows, or None for the order on disk.
    """

    def __init__(self, pieces: NDArray[np.int64], *, window: int, key: np.uint64 | None) -> None:
        self._pieces = pieces
        self._key = key
        windows = -(-len(pieces) // window)
        self._bounds = [number * len(pieces) // max(windows, 1) for number in range(windows + 1)]
        ends = np.concatenate([[0], np.cumsum(pieces[:, 2] - pieces[:, 1])])
        self._starts: list[int] = ends[self._bounds].tolist()  # place of each window's first row, and the end
        self._read: tuple[int, NDArray[np.int64]] | None = None  # number and rows of the window that was read last

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self._starts) - 1

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the row numbers at the places first:last, fewer at the end of the lane."""
        parts = []
        for number in self.windows_at(first, last):
            if self._read is None or self._read[0] != number:
                self._read = number, self._shuffled(number)
            start = self._starts[number]
            parts.append(self._read[1][max(first - start, 0) : last - start])
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])

    def windows_at(self, first: int, last: int) -> range:
        """Return the numbers of the windows to which the places first:last belong."""
        last = min(last, self._starts[-1])
        if first >= last:
            return range(0)
        return range(bisect_right(self._starts, first) - 1, bisect_right(self._starts, last - 1))

    def end(self, number: int) -> int:
        """Return the place after the last row of a window."""
        return self._starts[number + 1]

    def shards(self, number: int) -> list[int]:
        """Return the shards of a window."""
        shards: list[int] = self._pieces[self._bounds[number] : self._bounds[number + 1], 0].tolist()
        return shards

    def _shuffled(self, number: int) -> NDArray[np.int64]:
        pieces = self._pieces[self._bounds[number] : self._bounds[number + 1], 1:].tolist()
        rows = np.concatenate([np.arange(first, last) for first, last in pieces])
        return rows if self._key is None else sorted_by_draw(rows, self._key)


class LaneOrder:
    """Order of the rows of one rank's lanes. Memory grows with the shards and with the rows of a window only.

    The arguments are those of `BatchSampler`. Without a seed, lanes are consecutive parts of the dataset, each in the
    order on disk.
    """

    def __init__(
        self,
        shard_rows: Sequence[int],
        *,
        lanes: int,
        window: int,
        seed: int | None,
        global_batch: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.lanes = lanes
        self.window = window
        self._seed = seed
        self._taken = global_batch // lanes  # rows of each lane in a step
        self._own = lanes_of_rank(lanes, rank, world_size)
        rows = np.asarray(shard_rows, np.int64)
        shards = np.arange(len(rows))
        self._dealt = shards if seed is None else sorted_by_draw(shards, stream_key(seed, LANES, 0))
        self._ends = np.cumsum(rows[self._dealt])  # place after each shard's last row, among all dealt rows
        self._begins = self._ends - rows[self._dealt]
        self._first_rows = np.cumsum(rows) - rows
        self._lanes: dict[tuple[int, int], Lane] = {}  # by (epoch, number)
        self._shards: tuple[int, range, tuple[tuple[int, ...], tuple[int, ...]]] | None = None  # epoch, steps, shards

    def rows_of_step(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return this rank's rows of a step: the first row of each of its lanes, the second of each, and so on."""
        first = step * self._taken
        parts = [self._lane(epoch, number).rows(first, first + self._taken) for number in self._own]
        if all(len(part) == self._taken for part in parts):
            return np.stack(parts, axis=1).ravel()
        turns = np.concatenate([np.arange(len(part)) for part in parts])
        ordered: NDArray[np.int64] = np.concatenate(parts)[np.argsort(turns, kind="stable")]
        return ordered

    def shards_of_step(self, epoch: int, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (shards in the windows from which a step takes rows, shards of the windows after these).

        The first window of the next epoch comes after the last of an epoch.
        """
        if self._shards is None or self._shards[0] != epoch or step not in self._shards[1]:
            self._shards = epoch, *self._shards_from(epoch, step)
        return self._shards[2]

    def _shards_from(self, epoch: int, step: int) -> tuple[range, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return (steps from this one on that have the same windows, what `shards_of_step` returns for them)."""
        now: dict[int, None] = {}
        after: dict[int, None] = {}
        ends = []
        first = step * self._taken
        for number in self._own:
            lane = self._lane(epoch, number)
            windows = lane.windows_at(first, first + self._taken)
            for window in windows:
                now |= dict.fromkeys(lane.shards(window))
            if not windows:
                continue
            if windows.stop < lane.windows:
                after |= dict.fromkeys(lane.shards(windows.stop))
            else:
                after |= dict.fromkeys(self._lane((epoch + 1) % 2**64, number).shards(0))
            ends.append(lane.end(windows[0]) // self._taken)
        steps = range(step, max(step + 1, min(ends, default=0)))
        return steps, (tuple(now), tuple(shard for shard in after if shard not in now))

    def _lane(self, epoch: int, number: int) -> Lane:
        """Return one of this rank's lanes; those of an epoch and of the next are kept."""
        lane = self._lanes.get((epoch, number))
        if lane is None:
            self._lanes = {key: kept for key, kept in self._lanes.items() if key[0] in (epoch - 1, epoch, epoch + 1)}
            key = None if self._seed is None else stream_key(self._seed, LANE_ROWS, epoch)
            lane = self._lanes[epoch, number] = Lane(self._pieces(epoch, number), window=self.window, key=key)
        return lane

    def _pieces(self, epoch: int, number: int) -> NDArray[np.int64]:
        """Return the pieces of a lane in the order of an epoch, as `Lane` takes them."""
        total = int(self._ends[-1])
        start, stop = (lane_start(total, self.lanes, lane) for lane in (number, number + 1))
        first, last = np.searchsorted(self._ends, start, "right"), np.searchsorted(self._ends, stop, "left") + 1
        shards, begins, ends = self._dealt[first:last], self._begins[first:last], self._ends[first:last]
        moved = self._first_rows[shards] - begins  # from a place among the dealt rows to the row's number
        pieces = np.stack([shards, np.maximum(begins, start) + moved, np.minimum(ends, stop) + moved], axis=1)
        pieces = pieces[pieces[:, 1] < pieces[:, 2]]
        if self._seed is None:
            return pieces
        keys = draws(stream_key(self._seed, LANE_SHARDS, epoch), pieces[:, 0])
        ordered: NDArray[np.int64] = pieces[np.argsort(keys, kind="stable")]
        return ordered


def sorted_by_draw(numbers: NDArray[np.int64], key: np.uint64) -> NDArray[np.int64]:
    """Return the numbers sorted by their draws."""
    ordered: NDArray[np.int64] = numbers[np.argsort(draws(key, numbers), kind="stable")]
    return ordered
