"""Counter-based random bits, and the order of rows by them.

Bits are a hash of seed, purpose and index (SplitMix64; Steele, Lea and Flood, OOPSLA 2014). `numpy.random` is not used
because NumPy may change its streams in any release (NEP 19), while a run that is resumed in a newer environment must
continue with the same draws. This is the NumPy twin of packer.plan.permute, which needs Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.random_purposes import ROW_ORDER

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


def check_range(name: str, value: int) -> None:
    """Raise a PackerError if a seed or an epoch, called `name`, is not a whole number in 0..2^64-1."""
    if not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
        raise PackerError(f"{name} is {value}: it must be a whole number from 0 to 2^64 - 1")


def stream_key(seed: int, purpose: int, stream: int) -> np.uint64:
    """Return the key of the draws for one purpose and one stream, such as an epoch."""
    with np.errstate(over="ignore"):  # NumPy warns about overflow of scalars, though not of arrays
        key = mixed(np.uint64(seed) + _GOLDEN)
        key = mixed(key ^ (np.uint64(purpose) * _GOLDEN))
        found: np.uint64 = mixed(key ^ (np.uint64(stream) * _FACTOR_1))
    return found


def draws(key: np.uint64 | NDArray[np.uint64], numbers: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Return 64 random bits for each number, shaped like `numbers`; `key` is a scalar or one key per number."""
    counters = numbers.astype(np.uint64)
    counters *= _GOLDEN
    counters += key
    found: NDArray[np.uint64] = mixed(counters)
    return found


def mixed(value: Any) -> Any:
    """Mix the 64 bits of a uint64 scalar or of each element of a uint64 array."""
    value = (value ^ (value >> np.uint64(30))) * _FACTOR_1
    value = (value ^ (value >> np.uint64(27))) * _FACTOR_2
    return value ^ (value >> np.uint64(31))


def sorted_by_draw(numbers: NDArray[np.int64], key: np.uint64) -> NDArray[np.int64]:
    """Return the numbers sorted by their draws."""
    ordered: NDArray[np.int64] = numbers[np.argsort(draws(key, numbers), kind="stable")]
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
    keys = draws(stream_key(seed, ROW_ORDER, epoch), numbers)
    # The row number replaces the low bits of its key: no two keys are equal, so that every sort gives the same order.
    low = np.uint64((1 << max(rows - 1, 0).bit_length()) - 1)
    sorted_keys: NDArray[np.uint64] = np.sort((keys & ~low) | numbers)
    order: NDArray[np.int64] = (sorted_keys & low).astype(np.int64)
    return order
