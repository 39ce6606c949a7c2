"""The order of rows in an epoch, and how a global batch is dealt out to the ranks."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from packer.loader.dataset import PackedDataset
from packer.loader.draws import ROW_ORDER, check_range, draws, stream_key
from packer.shards.columns import PADDING


def row_order(rows: int, *, seed: int | None, epoch: int) -> NDArray[np.int64]:
    """Permute the numbers of all rows, shape (rows,); None as the seed gives the order on disk.

    Rows are sorted by a hash of seed, epoch and number, so that a run that is resumed in a newer environment goes on
    with the rows that it has not seen. Takes 8 bytes per row, and 40 while it works.

    Raises:
        PackerError: seed or epoch is not in 0..2^64-1.
    """
    for name, value in (("seed", seed), ("epoch", epoch)):
        if value is not None:
            check_range(name, value)
    numbers = np.arange(rows, dtype=np.uint64)
    if seed is None:
        return numbers.astype(np.int64)
    keys = draws(stream_key(seed, ROW_ORDER, epoch), numbers)
    # the low bits make way for the number itself: then no two keys are equal, and any sort gives the same order
    low = np.uint64((1 << max(rows - 1, 0).bit_length()) - 1)
    sorted_keys: NDArray[np.uint64] = np.sort((keys & ~low) | numbers)
    order: NDArray[np.int64] = (sorted_keys & low).astype(np.int64)
    return order


def slot_sizes(rows: int, slots: int) -> NDArray[np.int64]:
    """Split rows as evenly as they go, the larger parts first; 5 rows in 3 slots are [2, 2, 1]."""
    sizes = np.full(slots, rows // slots, np.int64)
    sizes[: rows % slots] += 1
    return sizes


def attention_costs(dataset: PackedDataset) -> NDArray[np.int64]:
    """Sum of the squared lengths of every row's segments, shape (rows,); padding costs nothing.

    That is what attention within segments grows with: the second term of the cost of a batch in Hierarchical Balance
    Packing (arXiv 2503.07680). All boundaries are read once, no token is.
    """
    costs = [np.zeros(0, np.int64)]
    for offsets, seq_lengths, doc_ids in dataset.segments():
        squares = np.where(doc_ids == PADDING, 0, seq_lengths.astype(np.int64) ** 2)
        sums = np.concatenate([[0], np.cumsum(squares)])
        costs.append(sums[offsets[1:]] - sums[offsets[:-1]])
    return np.concatenate(costs)


def deal_by_cost(costs: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Deal rows into slots of given sizes so that the slots' summed costs are even.

    Longest first into the lightest slot that has room, then swaps between the heaviest and the lightest slot while
    they help. Slots of one size come heaviest first, so that neighbours, which run at the same time, are alike.

    Example: costs [9, 1, 8, 2], sizes [2, 2] -> [[0, 1], [2, 3]].

    Args:
        costs: (rows,) cost of each row.
        sizes: (slots,) rows of each slot, larger ones first; they sum to the number of rows.

    Returns:
        For each slot the numbers of its rows, ascending.
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
    """Swap in place the two rows that bring two slots closest; whether any did, the gap being what parts them."""
    moved = costs[heavy][:, None] - costs[light][None, :]  # what the swap takes from the heavier slot
    left = np.abs(gap - 2 * moved)
    best = int(left.argmin())
    if left.flat[best] >= gap:
        return False
    i, j = np.unravel_index(best, left.shape)
    heavy[i], light[j] = light[j], heavy[i]
    return True
