"""Division of rows among batches so that the work of attention is even."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from packer.loader.dataset import PackedDataset
from packer.shards.row_format import PADDING


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


def deal_by_cost(costs: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Divide rows among slots of fixed sizes so that the summed costs of the slots are even.

    Rows are dealt from the most expensive one on, each to the cheapest slot with room. Then rows are swapped between
    the most and the least expensive slot as long as that helps. Slots of one size are sorted by cost, so that
    neighbors, which run at the same time on different ranks, have similar costs.

    `sizes` has the rows per slot, in descending order, and sums to the number of rows. Returns the row numbers of each
    slot, ascending: costs [9, 1, 8, 2] and sizes [2, 2] -> [[0, 1], [2, 3]].
    """
    slots: list[list[int]] = [[] for size in sizes if size]
    open_slots = [(0, slot) for slot in range(len(slots))]
    for row in np.argsort(-costs, kind="stable").tolist():
        load, slot = heappop(open_slots)
        slots[slot].append(row)
        if len(slots[slot]) < sizes[slot]:
            heappush(open_slots, (load + int(costs[row]), slot))
    dealt = [np.array(slot, np.int64) for slot in slots]
    loads = np.array([costs[slot].sum() for slot in dealt], np.int64)
    for _ in range(len(costs)):
        heavy, light = int(loads.argmax()), int(loads.argmin())
        if not _swap(dealt[heavy], dealt[light], costs, int(loads[heavy] - loads[light])):
            break
        loads[[heavy, light]] = costs[dealt[heavy]].sum(), costs[dealt[light]].sum()
    order = np.lexsort((-loads, -sizes[: len(loads)]))
    return [np.sort(dealt[slot]) for slot in order] + [np.zeros(0, np.int64)] * (len(sizes) - len(dealt))


def _swap(heavy: NDArray[np.int64], light: NDArray[np.int64], costs: NDArray[np.int64], gap: int) -> bool:
    """Swap, in place, the pair of rows that makes the costs of two slots most alike; return whether any pair helps.

    `heavy` and `light` are the row numbers of the slots, and `gap` is the difference of their summed costs.
    """
    moved = costs[heavy][:, None] - costs[light][None, :]  # cost that a swap moves from the heavy to the light slot
    left = np.abs(gap - 2 * moved)
    best = int(left.argmin())
    if left.flat[best] >= gap:
        return False
    i, j = np.unravel_index(best, left.shape)
    heavy[i], light[j] = light[j], heavy[i]
    return True
