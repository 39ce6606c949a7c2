"""The order of rows, by hashes of seed, purpose and index.

`numpy.random` is not used because NumPy may change its streams in any release (NEP 19), while a run that is resumed in
a newer environment must continue with the same draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.plan.permute import hashes_of, key_of
from packer.random_purposes import ROW_ORDER


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
    40. Without a seed, it is the order on disk. A seed or epoch that is not in 0..2^64-1 is a PackerError.
    """
    for name, value in (("seed", seed), ("epoch", epoch)):
        if value is not None:
            check_range(name, value)
    numbers = np.arange(rows, dtype=np.uint64)
    if seed is None:
        return numbers.astype(np.int64)
    keys = hashes_of(key_of(seed, ROW_ORDER, epoch), numbers)
    # The row number replaces the low bits of its key: no two keys are equal, so that every sort gives the same order.
    low = np.uint64((1 << max(rows - 1, 0).bit_length()) - 1)
    sorted_keys: NDArray[np.uint64] = np.sort((keys & ~low) | numbers)
    order: NDArray[np.int64] = (sorted_keys & low).astype(np.int64)
    return order
