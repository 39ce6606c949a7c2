"""Random bits from a counter: a hash of seed, purpose and index (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).

Not from `numpy.random`: NumPy may change its streams in any release (NEP 19), and a run that is resumed in a newer
environment must go on as it began. The numpy twin of packer.plan.permute, which imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError

# what a stream of draws is for; packer.plan.permute has 1 to 4
ROW_ORDER = 5
MASKS = 6  # which tokens a masked language model restores, and what they become

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


def check_range(name: str, value: int) -> None:
    """See that a seed or epoch is one.

    Raises:
        PackerError: it is not in 0..2^64-1.
    """
    if not 0 <= value < 2**64:
        raise PackerError(f"{name} is {value}: it is a number from 0 to 2^64 - 1")


def stream_key(seed: int, purpose: int, stream: int) -> np.uint64:
    """Key of the draws for one purpose and one stream of it, an epoch."""
    with np.errstate(over="ignore"):  # scalars warn where arrays wrap around in silence
        key = mixed(np.uint64(seed) + _GOLDEN)
        key = mixed(key ^ (np.uint64(purpose) * _GOLDEN))
        found: np.uint64 = mixed(key ^ (np.uint64(stream) * _FACTOR_1))
    return found


def draws(key: np.uint64 | NDArray[np.uint64], numbers: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """64 random bits for each number of a stream; the key is one for all, or one for each."""
    counters = numbers.astype(np.uint64)
    counters *= _GOLDEN
    counters += key
    found: NDArray[np.uint64] = mixed(counters)
    return found


def mixed(value: Any) -> Any:
    """Mix 64 bits, uint64 to uint64, one or an array."""
    value = (value ^ (value >> np.uint64(30))) * _FACTOR_1
    value = (value ^ (value >> np.uint64(27))) * _FACTOR_2
    return value ^ (value >> np.uint64(31))
