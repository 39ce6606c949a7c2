"""Rows of a dataset in an endless order, from which an epoch takes the next ones: pass after pass over all rows.

Each pass has its own permutation: the shards in random order, the rows of a shard in random order, and the beginning
moved to the end, up to a random place, so that every row is equally likely to be anywhere. Few shards are read at a
time, and memory grows with the shards only.

Example: shards of 2 and 3 rows in the order 4 2 3 | 1 0, moved by 1 place -> 2 3 1 0 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer.loader.row_order import sorted_by_draw
from packer.permute import draw_bits, hashes_of, key_of, permuted_all
from packer.random_purposes import COMBINED, COMBINED_ROWS

_KEPT = 16  # passes whose order of shards is kept


class RowStream:
    """Rows of a dataset, given the rows of its shards; `key` is that of all draws, or None for the order on disk."""

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

    def pieces(self, first: int, last: int) -> NDArray[np.int64]:
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
