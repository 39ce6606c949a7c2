"""Permutations from a counter-based generator: a hash of seed, purpose and index.

Permutations determine the bytes on disk, so no new version of a library may change them. A draw depends only on its key
and index, so any worker can compute any part of a stream.

Each use of randomness has a number, its purpose, which is part of its key. Draws for different purposes are
independent, even with the same seed. These numbers must never change: they determine the bytes of packed datasets, and
the order of rows and the masks of training runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large

# the packer
EQUAL_LENGTHS = 2  # the order of segments of equal extent, within a partition
ROWS = 3  # the order of rows
SEGMENTS_IN_ROW = 4  # the order of segments within a row
BLOCKS = 10  # the partition of each block of documents
DRAWING = 11  # the order in which the segments of a partition are drawn
HOLDOUT = 17  # the hash of a document's content, which decides whether it is held out

# the loader
ROW_ORDER = 5  # the order of rows in an epoch
MASKS = 6  # the tokens that a masked language model predicts, and their replacements

LANES = 14  # the lane of each shard
LANE_SHARDS = 15  # the order of the shards of a lane in an epoch
LANE_ROWS = 16  # the order of the rows in a window of a lane
COMBINED = 18  # a dataset that is combined with others, and its order of shards in each pass over its rows
COMBINED_ROWS = 19  # the order of the rows within a shard of such a dataset

# reports
SHOWN_ROWS = 13  # the rows that a report shows

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53
_ROUNDS = 8


@jit_if_large
def mixed(value: np.uint64) -> np.uint64:
    """Mix 64 bits, uint64 to uint64, with the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value = (value ^ (value >> np.uint64(30))) * _FACTOR_1
    value = (value ^ (value >> np.uint64(27))) * _FACTOR_2
    mixed_bits: np.uint64 = value ^ (value >> np.uint64(31))
    return mixed_bits


@jit_if_large
def stream_key(seed: int | np.uint64, purpose: int, stream: int | np.int64) -> np.uint64:
    """Return the key, uint64, of the draws for a purpose and one of its streams (partition, extent, ...).

    Hand it on as np.uint64(key): where the caller runs as plain Python, but this kernel is compiled, it returns int.
    """
    key = mixed(np.uint64(seed) + _GOLDEN)
    key = mixed(key ^ (np.uint64(purpose) * _GOLDEN))
    return mixed(key ^ (np.uint64(stream) * _FACTOR_1))


def key_of(seed: int, purpose: int, stream: int) -> np.uint64:
    """Return `stream_key` as np.uint64; a compiled kernel returns int."""
    key: np.uint64 = np.uint64(stream_key(np.uint64(seed), purpose, np.uint64(stream)))
    return key


@jit_if_large
def draw_bits(key: np.uint64, index: int | np.int64) -> np.uint64:
    """Return draw `index` of a stream: 64 bits, uint64. No two draws of a stream are equal."""
    return mixed(key + np.uint64(index) * _GOLDEN)


def hashes_of(key: np.uint64 | NDArray[np.uint64], numbers: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Return `draw_bits` for each number. `key` is a scalar or an array with one key per number."""
    return mixed_all(key + numbers.astype(np.uint64) * _GOLDEN)


def mixed_all(out: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply `mixed` to each value of an array in place; return the array."""
    for shift, factor in ((30, _FACTOR_1), (27, _FACTOR_2), (31, np.uint64(1))):
        out ^= out >> np.uint64(shift)
        out *= factor
    return out


@jit_if_large
def draw_below(key: np.uint64, index: int, limit: int) -> np.int64:
    """Return draw `index` of a stream as an integer from 0 to limit - 1, uniform up to 2**-53 * limit."""
    bits = draw_bits(key, index)
    drawn: np.int64 = np.int64(np.float64(bits >> np.uint64(11)) * _UNIT * np.float64(limit))
    return drawn


@jit_if_large
def permute(out: NDArray[Any], first: int, last: int, key: np.uint64) -> None:
    """Permute out[first:last] in place with one draw per element (Fisher and Yates)."""
    for i in range(last - first - 1, 0, -1):
        j = draw_below(key, i, i + 1)
        out[first + i], out[first + j] = out[first + j], out[first + i]


def permute_all(out: NDArray[Any], key: np.uint64) -> None:
    """Permute an array in place."""
    permute(out, 0, len(out), key)


@jit_if_large
def permute_runs(starts: NDArray[np.int64], key: np.uint64, purpose: int, first: int, out: NDArray[Any]) -> None:
    """Permute each run out[starts[i]:starts[i + 1]] in place, with the draws of stream `first + i`."""
    for run in range(len(starts) - 1):
        if starts[run + 1] - starts[run] > 1:
            permute(out, starts[run], starts[run + 1], np.uint64(stream_key(key, purpose, first + run)))


def permuted_all(indices: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the images of indices under permutations of 0 to size - 1. The running time does not depend on the sizes.

    The arrays have the same shape: indices[i] is permuted among sizes[i] indices with keys[i]. Each permutation is a
    Feistel network on the next power of 4, repeated until the result is below the size (Black and Rogaway, "Ciphers
    with Arbitrary Finite Domains", 2002).
    """
    bits = np.ones(len(indices), np.int64)
    while (is_less := np.int64(1) << (2 * bits) < sizes).any():
        bits += is_less
    mask = (np.int64(1) << bits) - 1
    places: NDArray[np.int64] = indices.copy()
    walking = np.arange(len(indices))
    while len(walking):
        width, low_bits, key = bits[walking], mask[walking], keys[walking]
        high, low = places[walking] >> width, places[walking] & low_bits
        for step in range(_ROUNDS):
            drawn = (hashes_of(key, low * _ROUNDS + step) >> np.uint64(1)).astype(np.int64)
            high, low = low, high ^ (drawn & low_bits)
        places[walking] = (high << width) | low
        walking = walking[places[walking] >= sizes[walking]]
    return places
