"""Numba kernels that keep the segments of a group in different rows: find those that are not, swap them.

They take groups and extents by segment number: a helper that looks them up by document costs a kernel more than the
looking, as Numba counts references to arrays at every call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.plan.permute import EXCHANGES, SWAPS, draw_below, stream_key

LOOKED_AT = 64
"""Segments that one may be swapped with, or rows that it may be exchanged with, which are looked at for it."""

DEEPEST = 24
"""Segments of a row, the first, of which pairs are made."""


@jit
def find_clashes(
    slots: NDArray[Any],
    row_starts: NDArray[np.int64],
    groups: NDArray[np.int32],
    count: int,
) -> Any:
    """The slots whose group stands earlier in their row, ascending; `count` is the number of groups."""
    stamps = np.full(count, -1)
    found = np.empty(1024, np.int64)
    size = 0
    for row in range(len(row_starts) - 1):
        for slot in range(row_starts[row], row_starts[row + 1]):
            group = groups[slots[slot]]
            if group < 0:
                continue
            if stamps[group] == row:
                if size == len(found):
                    longer = np.empty(2 * size, np.int64)
                    for i in range(size):
                        longer[i] = found[i]
                    found = longer
                found[size] = slot
                size += 1
            stamps[group] = row
    return found[:size].copy()


@jit
def row_of(slot: int, row_starts: NDArray[np.int64]) -> Any:
    """The row that holds a slot."""
    low, high = np.int64(0), np.int64(len(row_starts) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        if row_starts[middle] <= slot:
            low = middle
        else:
            high = middle
    return low


@jit
def is_in(
    group: int,
    row: int,
    but: int,
    slots: NDArray[np.uint32],
    row_starts: NDArray[np.int64],
    groups: NDArray[np.int32],
) -> Any:
    """Whether a row holds a segment of a group at another slot than `but`; none is of group -1."""
    if group < 0:
        return False
    for slot in range(row_starts[row], row_starts[row + 1]):  # noqa: SIM110 (Numba compiles no generators)
        if slot != but and groups[slots[slot]] == group:
            return True
    return False


@jit
def group_slots(
    first: int,
    last: int,
    slots: NDArray[np.uint32],
    extents: NDArray[np.int32],
    out_groups: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
) -> None:
    """Group the slots first..last-1 by the extent of what they hold: (max_len + 2,) all zero, and (last - first,)."""
    for slot in range(first, last):
        out_groups[extents[slots[slot]]] += 1
    for extent in range(1, len(out_groups)):
        out_groups[extent] += out_groups[extent - 1]
    for slot in range(last - 1, first - 1, -1):
        extent = extents[slots[slot]]
        out_groups[extent] -= 1
        out_slots[out_groups[extent]] = slot


@jit
def swap_clashes(
    clashes: NDArray[np.int64],
    by_extent: NDArray[np.int64],
    grouped: NDArray[np.uint32],
    row_starts: NDArray[np.int64],
    groups: NDArray[np.int32],
    extents: NDArray[np.int32],
    most_looks: int,
    seed: np.uint64,
    stream: int,
    out_slots: NDArray[np.uint32],
) -> Any:
    """Swap segments that clash with others of equal extent, so that neither clashes in its new row.

    Args:
        clashes: (clashes,) slots.
        by_extent: (max_len + 2,) where each extent begins in `grouped`.
        grouped: the slots that may be swapped with, by extent.
        row_starts: (packs + 1,)
        groups: (numbers,) the group of each segment, -1 for none.
        extents: (numbers,) the extent of each segment.
        most_looks: slots that are looked at in all.
        seed: of the pack.
        stream: of the draws.
        out_slots: (segments,) segment numbers.

    Returns:
        The slots that still clash.
    """
    key = stream_key(seed, SWAPS, stream)
    left = np.empty(len(clashes), np.int64)
    size = 0
    looks = np.int64(0)
    for i in range(len(clashes)):
        slot = clashes[i]
        row = row_of(slot, row_starts)
        group = groups[out_slots[slot]]
        if not is_in(group, row, slot, out_slots, row_starts, groups):
            continue
        extent = extents[out_slots[slot]]
        begin = by_extent[extent]
        number = by_extent[extent + 1] - begin
        tries = min(number, LOOKED_AT, most_looks - looks)
        offset = draw_below(key, i, number) if number > 0 else np.int64(0)
        is_swapped = False
        for step in range(tries):
            looks += 1
            other = np.int64(grouped[begin + (offset + step) % number])
            other_group = groups[out_slots[other]]
            # most are refused by the row at hand, before the other one is looked for
            if is_in(other_group, row, slot, out_slots, row_starts, groups):
                continue
            other_row = row_of(other, row_starts)
            if other_row == row or is_in(group, other_row, other, out_slots, row_starts, groups):
                continue
            out_slots[slot], out_slots[other] = out_slots[other], out_slots[slot]
            is_swapped = True
            break
        if not is_swapped:
            left[size] = slot
            size += 1
    return left[:size].copy()


@jit
def exchange_clashes(
    clashes: NDArray[np.int64],
    row_starts: NDArray[np.int64],
    groups: NDArray[np.int32],
    extents: NDArray[np.int32],
    most_sums: int,
    seed: np.uint64,
    out_slots: NDArray[np.uint32],
) -> Any:
    """Exchange a segment that clashes, and another of its row, for two of another row that take the same place.

    Full rows of ten segments make thousands of such choices, so nearly any two rows have one. Arguments are those of
    `swap_clashes`; `most_sums` limits the sums that are looked at in all, a row counting as DEEPEST at the least.
    Returns the slots that still clash.
    """
    packs = len(row_starts) - 1
    left = np.empty(len(clashes), np.int64)
    size = 0
    sums = np.int64(0)
    for i in range(len(clashes)):
        slot = clashes[i]
        row = row_of(slot, row_starts)
        group = groups[out_slots[slot]]
        if not is_in(group, row, slot, out_slots, row_starts, groups):
            continue
        key = stream_key(seed, EXCHANGES, i)
        is_done = False
        for step in range(LOOKED_AT):
            if is_done or sums >= most_sums:
                break
            other_row = draw_below(key, step, packs)
            sums += DEEPEST
            if other_row == row or is_in(group, other_row, -1, out_slots, row_starts, groups):
                continue
            sums += min(DEEPEST, row_starts[row + 1] - row_starts[row]) * min(
                DEEPEST * DEEPEST, (row_starts[other_row + 1] - row_starts[other_row]) ** 2
            )
            is_done = _exchange(slot, row, other_row, row_starts, groups, extents, out_slots)
        if not is_done:
            left[size] = slot
            size += 1
    return left[:size].copy()


@jit
def _exchange(
    slot: int,
    row: int,
    other_row: int,
    row_starts: NDArray[np.int64],
    groups: NDArray[np.int32],
    extents: NDArray[np.int32],
    out_slots: NDArray[np.uint32],
) -> Any:
    """Exchange a slot and another of its row for two of another row, if a pair fits; whether one did."""
    extent = extents[out_slots[slot]]
    others = np.empty(DEEPEST, np.int64)
    first = row_starts[other_row]
    depth = min(DEEPEST, row_starts[other_row + 1] - first)
    for i in range(depth):
        others[i] = extents[out_slots[first + i]]
    for partner in range(row_starts[row], min(row_starts[row + 1], row_starts[row] + DEEPEST)):
        if partner == slot:
            continue
        place = extent + extents[out_slots[partner]]
        for i in range(depth):
            for j in range(i):
                if others[i] + others[j] != place:
                    continue
                one, two = first + i, first + j
                out_slots[slot], out_slots[one] = out_slots[one], out_slots[slot]
                out_slots[partner], out_slots[two] = out_slots[two], out_slots[partner]
                if not (
                    _clashes(slot, row, out_slots, row_starts, groups)
                    or _clashes(partner, row, out_slots, row_starts, groups)
                    or _clashes(one, other_row, out_slots, row_starts, groups)
                    or _clashes(two, other_row, out_slots, row_starts, groups)
                ):
                    return True
                out_slots[slot], out_slots[one] = out_slots[one], out_slots[slot]
                out_slots[partner], out_slots[two] = out_slots[two], out_slots[partner]
    return False


@jit
def _clashes(
    slot: int,
    row: int,
    slots: NDArray[np.uint32],
    row_starts: NDArray[np.int64],
    groups: NDArray[np.int32],
) -> Any:
    """Whether a row holds another segment of the group of the one at a slot."""
    return is_in(groups[slots[slot]], row, slot, slots, row_starts, groups)
