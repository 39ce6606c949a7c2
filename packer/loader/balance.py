"""Division of rows among steps and batches so that ranks, which wait for each other, have equal work."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from packer.column_names import PADDING
from packer.loader.dataset import PackedDataset

WINDOW = 8
"""Default number of consecutive steps whose rows are divided anew."""

EVEN_ENOUGH = 1.001
"""Largest work of a batch, relative to the mean, that is not evened out further."""


def slot_sizes(rows: int, slots: int) -> NDArray[np.int64]:
    """Split rows as evenly as possible, larger slots first: 5 rows in 3 slots -> [2, 2, 1]."""
    sizes = np.full(slots, rows // slots, np.int64)
    sizes[: rows % slots] += 1
    return sizes


def attention_costs(dataset: PackedDataset) -> NDArray[np.int64]:
    """Return the sum of squared segment lengths of each stored row, shape (rows,); padding costs nothing.

    The cost of attention within segments is proportional to it: the second term of the cost of a batch in Hierarchical
    Balance Packing (arXiv 2503.07680). Reads the segment boundaries of all rows once, and no tokens.
    """
    costs = [np.zeros(0, np.int64)]
    for offsets, seq_lengths, doc_ids in dataset.segments():
        squares = np.where(doc_ids == PADDING, 0, seq_lengths.astype(np.int64) ** 2)
        sums = np.concatenate([[0], np.cumsum(squares)])
        costs.append(sums[offsets[1:]] - sums[offsets[:-1]])
    return np.concatenate(costs)


def steps_of_like_work(
    order: NDArray[np.int64], costs: NDArray[np.int64], *, size: int, window: int
) -> NDArray[np.int64]:
    """Return the rows of an epoch in an order in which the `size` rows of a step have similar costs.

    The rows of at most `window` consecutive steps are sorted by cost and cut into as many steps. Where each rank has
    one row at a time, no other division of these rows lets ranks wait less. Steps of a window come in the order of
    their first rows in `order`, so that costs do not decrease within a window. Rows that fill no step stay at the end.

    `order` has the row numbers, shape (rows,), and `costs` the cost of each of them, in the same order. Rows 4, 5, 6
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
