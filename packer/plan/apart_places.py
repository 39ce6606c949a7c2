"""Numba kernels that place segments in rows that hold nothing of their group."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.algorithms.open_packs import (
    BELOW,
    CHAIN,
    COUNT,
    NONE,
    ONE,
    SEGMENTS,
    ZERO,
    OpenPacks,
    detach,
    next_key,
    push,
)
from packer.plan.apart_kernels import is_in
from packer.plan.group_kernels import no_packs
from packer.plan.permute import REPAIRED_SEGMENTS, permute, stream_key

ROWS_LOOKED_AT = 64
"""Rows that are looked at for a segment, and as many new ones again."""


@jit
def take_out(
    clashes: NDArray[np.int64],
    out_row_starts: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
    out_numbers: NDArray[np.uint32],
) -> None:
    """Close the gaps that the slots `clashes`, ascending, leave; write what they held to `out_numbers`."""
    end = 0
    clash = 0
    first = out_row_starts[0]
    for row in range(len(out_row_starts) - 1):
        for slot in range(first, out_row_starts[row + 1]):
            if clash < len(clashes) and clashes[clash] == slot:
                out_numbers[clash] = out_slots[slot]
                clash += 1
            else:
                out_slots[end] = out_slots[slot]
                end += 1
        first = out_row_starts[row + 1]
        out_row_starts[row + 1] = end


@jit
def _takes(
    row: int,
    group: int,
    masks: NDArray[np.uint64],
    is_exact: bool,
    slots: NDArray[np.uint32],
    row_starts: NDArray[np.int64],
    added: NDArray[np.int64],
    links: NDArray[np.int64],
    numbers: NDArray[np.uint32],
    groups: NDArray[np.int32],
) -> Any:
    """Whether a row, old or new, holds nothing of a group; `masks` says so at once of most."""
    if group < 0 or masks[row] & (ONE << np.uint64(group & 63)) == ZERO:
        return True
    if is_exact:
        return False
    if row < len(row_starts) - 1 and is_in(group, row, -1, slots, row_starts, groups):
        return False
    i = added[row]
    while i != NONE:
        if groups[numbers[i]] == group:
            return False
        i = links[i]
    return True


@jit
def _add(out: OpenPacks, key: int, row: int) -> None:
    """Lay a row on the stack of its key; what it lies on knows it, in the column CHAIN, that chains are not kept in."""
    top = out.tops[key]
    push(out, key, row)
    if top != NONE:
        out.groups[top, CHAIN] = row


@jit
def _remove(out: OpenPacks, key: int, row: int) -> None:
    """Take a row out of the stack of its key, wherever in it it lies."""
    if out.tops[key] == row:
        detach(out, key, 1, 0)
        return
    above, below = out.groups[row, CHAIN], out.groups[row, BELOW]
    out.groups[above, BELOW] = below
    if below != NONE:
        out.groups[below, CHAIN] = above


@jit
def place_apart(
    numbers: NDArray[np.uint32],
    slots: NDArray[np.uint32],
    row_starts: NDArray[np.int64],
    groups: NDArray[np.int32],
    extents: NDArray[np.int32],
    max_len: int,
    limit: int,
    count: int,
    out_rows: NDArray[np.int64],
) -> int:
    """Find rows for segments: the fullest that takes one and holds nothing of its group, or a new one.

    The fullest ROWS_LOOKED_AT rows with room are looked at, then, in turn, new rows that none of the group was offered.

    Args:
        numbers: (segments,) to be placed, the longest first.
        slots: segment numbers in the rows there are.
        row_starts: (packs + 1,)
        groups: (numbers,) the group of each segment, -1 for none.
        extents: (numbers,) the extent of each segment.
        max_len: tokens of a row.
        limit: the most segments in a row.
        count: the number of groups.
        out_rows: (segments,) the row of each.

    Returns:
        How many rows there are then.
    """
    packs = len(row_starts) - 1
    most = packs + len(numbers)
    open_rows = no_packs(max_len + 1, most)
    rooms = np.full(most, max_len)
    masks = np.zeros(most, np.uint64)  # bit g % 64: the row holds a segment of a group g
    is_exact = count <= 64
    for row in range(packs):
        for slot in range(row_starts[row], row_starts[row + 1]):
            rooms[row] -= extents[slots[slot]]
            group = np.int64(groups[slots[slot]])
            if group >= 0:
                masks[row] |= ONE << np.uint64(group & 63)
        open_rows.groups[row, COUNT] = 1
        open_rows.groups[row, SEGMENTS] = row_starts[row + 1] - row_starts[row]
        if rooms[row] > 0 and open_rows.groups[row, SEGMENTS] < limit:
            _add(open_rows, rooms[row], row)
    added = np.full(most, NONE)  # to each row: the last, linked to those before it
    links = np.full(len(numbers), NONE)
    offered = np.full(count + 1, packs)  # of each group: the first new row that it was not offered
    rows = packs
    for i in range(len(numbers)):
        extent = extents[numbers[i]]
        group = np.int64(groups[numbers[i]])
        chosen = NONE
        looks = 0
        room = next_key(open_rows, extent)
        while room <= max_len and chosen == NONE and looks < ROWS_LOOKED_AT:
            row = open_rows.tops[room]
            while row != NONE and looks < ROWS_LOOKED_AT:
                looks += 1
                if _takes(row, group, masks, is_exact, slots, row_starts, added, links, numbers, groups):
                    chosen = row
                    break
                row = open_rows.groups[row, BELOW]
            room = next_key(open_rows, room + 1)
        turn = offered[group]  # of no group: the last
        while chosen == NONE and room <= max_len and turn < rows and looks < 2 * ROWS_LOOKED_AT:
            looks += 1
            if (
                rooms[turn] >= extent
                and open_rows.groups[turn, SEGMENTS] < limit
                and _takes(turn, group, masks, is_exact, slots, row_starts, added, links, numbers, groups)
            ):
                chosen = turn
            turn += 1
            offered[group] = turn
        if chosen == NONE:
            chosen = rows
            open_rows.groups[chosen, COUNT] = 1
            rows += 1
        else:
            _remove(open_rows, rooms[chosen], chosen)
        rooms[chosen] -= extent
        if group >= 0:
            masks[chosen] |= ONE << np.uint64(group & 63)
        open_rows.groups[chosen, SEGMENTS] += 1
        if rooms[chosen] > 0 and open_rows.groups[chosen, SEGMENTS] < limit:
            _add(open_rows, rooms[chosen], chosen)
        links[i] = added[chosen]
        added[chosen] = i
        out_rows[i] = chosen
    return rows


@jit
def join_rows(
    order: NDArray[np.int64],
    slots: NDArray[np.uint32],
    row_starts: NDArray[np.int64],
    numbers: NDArray[np.uint32],
    rows: NDArray[np.int64],
    seed: np.uint64,
    out_row_starts: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
) -> None:
    """Write rows anew, with what was added to them: row r on disk is row `order[r]`.

    Each is permuted: of the segments of a group that were in a row, the first has stayed.

    Args:
        order: (rows,)
        slots: segment numbers in the rows there were.
        row_starts: (packs + 1,)
        numbers: (segments,) added.
        rows: (segments,) to which row each.
        seed: of the pack.
        out_row_starts: (rows + 1,) all zero.
        out_slots: (all segments,)
    """
    packs = len(row_starts) - 1
    firsts = np.full(len(order), NONE)
    links = np.empty(len(numbers), np.int64)
    for i in range(len(numbers)):
        links[i] = firsts[rows[i]]
        firsts[rows[i]] = i
    end = 0
    for row in range(len(order)):
        old = order[row]
        begin = end
        if old < packs:
            for slot in range(row_starts[old], row_starts[old + 1]):
                out_slots[end] = slots[slot]
                end += 1
        i = firsts[old]
        while i != NONE:
            out_slots[end] = numbers[i]
            end += 1
            i = links[i]
        permute(out_slots, begin, end, stream_key(seed, REPAIRED_SEGMENTS, row))
        out_row_starts[row + 1] = end
