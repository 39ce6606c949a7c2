"""Random samples that are not stored: a number belongs to the sample if its hash is below a threshold.

The hash maps numbers one to one to 64 bits, so no two hashes are equal, and taking numbers in ascending order of their
hash is drawing without replacement. It depends only on a key and the number, so that any worker can compute whether a
number belongs to the sample. Only one count per BLOCK numbers is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit, jit_helper
from packer.plan.permute import draw_bits

BLOCK = 1 << 10
"""Numbers per count of members. Finding a member hashes the numbers of its block."""

_BUCKET_BITS = 12
_BUCKET_SHIFT = np.uint64(64 - _BUCKET_BITS)
_CHUNK = 1 << 18  # numbers hashed together


@dataclass(frozen=True, kw_only=True, slots=True)
class HashSample:
    """Sample of the numbers 0 to population - 1: those whose hash is below a threshold."""

    population: int
    """Number of numbers that the sample is drawn from."""

    key: np.uint64
    """Key of the hash; see `packer.plan.permute.key_of`."""

    threshold: np.uint64
    """Threshold below which the hashes of members are; 0 for an empty sample."""

    before: NDArray[np.int64]
    """Shape (blocks + 1,): members before each block of BLOCK numbers, then the number of members."""

    @classmethod
    def of(cls, population: int, key: np.uint64, threshold: np.uint64) -> HashSample:
        """Create a sample; counts the members of every block in one pass over the numbers."""
        before = np.zeros(-(-population // BLOCK) + 1, np.int64)
        if threshold:
            _count_members(population, key, threshold, before)
        return cls(population=population, key=key, threshold=threshold, before=before)

    def __len__(self) -> int:
        return int(self.before[-1])

    def contains(self, first: int, last: int) -> NDArray[np.bool_]:
        """Return which of the numbers first..last - 1 are members: bool, shape (last - first,)."""
        is_member = np.zeros(last - first, np.bool_)
        if len(self):
            _mark_members(first, self.key, self.threshold, is_member)
        return is_member

    def members(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return members by rank, in any order of ranks: of members 3, 7 and 8, ranks [2, 0] are [8, 3]."""
        order = _ascending_order(ranks)
        found = np.empty(len(ranks), np.int64)
        _find_members(ranks if order is None else ranks[order], self.before, self.key, self.threshold, found)
        return found if order is None else _put_back(found, order)

    def ranks(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return (members below each number, whether it is a member).

        With members 3, 7 and 8, the result for 7 is (1, True), and for 5 (1, False).

        Args:
            numbers: int64, from 0 to population - 1, in any order.
        """
        ranks, is_member = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.bool_)
        if not len(self):
            return ranks, is_member
        order = _ascending_order(numbers)
        ascending = numbers if order is None else numbers[order]
        _rank_numbers(ascending, self.before, self.key, self.threshold, ranks, is_member)
        return (ranks, is_member) if order is None else (_put_back(ranks, order), _put_back(is_member, order))


class WeightCounter:
    """Adds up the weights of numbers by the highest bits of their hash, to find a sample of any total weight.

    Args:
        key: key of the hash.
    """

    def __init__(self, key: np.uint64) -> None:
        self.key = key
        self.population = 0
        """Number of numbers that have been added."""
        self._buckets = np.zeros(1 << _BUCKET_BITS, np.int64)

    @property
    def total(self) -> int:
        """Sum of all weights."""
        return int(self._buckets.sum())

    def add(self, weights: NDArray[np.int32]) -> None:
        """Add the next numbers; their weights are at least 0: int32, shape (numbers,)."""
        _add_weights(self.population, weights, self.key, self._buckets)
        self.population += len(weights)

    def nearest(
        self, target: int, weights_of: Callable[[NDArray[np.int64]], NDArray[np.int32]]
    ) -> tuple[np.uint64, int]:
        """Find the threshold of the sample whose weight is nearest to a target, the smaller one if two are.

        Only the numbers of one bucket, about one in 4,096, are weighed again.

        Args:
            target: weight of the sample, from 1 to `total`.
            weights_of: function that returns the weights of ascending numbers.

        Returns:
            The threshold, and the weight of the sample.
        """
        after = np.cumsum(self._buckets)
        bucket = int(np.searchsorted(after, target))
        numbers = self._numbers_in(bucket)
        hashes = np.empty(len(numbers), np.uint64)
        _hash(numbers, self.key, hashes)
        order = np.argsort(hashes)
        weights = weights_of(numbers).astype(np.int64)[order]
        sums = after[bucket] - self._buckets[bucket] + np.cumsum(weights)
        last = int(np.searchsorted(sums, target))
        with_last = int(sums[last])
        without = with_last - int(weights[last])
        is_nearer = with_last - target < target - without
        # Adding 1 overflows only if the sample is the whole population, which is taken as a copy instead.
        threshold = hashes[order[last]] + np.uint64(1) if is_nearer else hashes[order[last]]
        return np.uint64(threshold), with_last if is_nearer else without

    def _numbers_in(self, bucket: int) -> NDArray[np.int64]:
        """Return the numbers whose hash falls into a bucket, ascending: int64."""
        found, room = [], np.empty(_CHUNK, np.int64)
        for first in range(0, self.population, _CHUNK):
            count = _find_in_bucket(first, min(first + _CHUNK, self.population), self.key, bucket, room)
            found.append(room[:count].copy())
        return np.concatenate([np.zeros(0, np.int64), *found])


def _ascending_order(values: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the order that sorts values; None if they ascend already."""
    return None if (values[1:] >= values[:-1]).all() else np.argsort(values)


def _put_back(values: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Undo a reordering: move value i to position order[i]."""
    out = np.empty_like(values)
    out[order] = values
    return out


@jit
def _hash(numbers: NDArray[np.int64], key: np.uint64, out: NDArray[np.uint64]) -> None:
    for i in range(len(numbers)):
        out[i] = draw_bits(key, numbers[i])


@jit
def _add_weights(first: int, weights: NDArray[np.int32], key: np.uint64, out: NDArray[np.int64]) -> None:
    """Add the weights of numbers first, first + 1, ... to their buckets."""
    for i in range(len(weights)):
        out[np.int64(draw_bits(key, first + i) >> _BUCKET_SHIFT)] += weights[i]


@jit
def _find_in_bucket(first: int, last: int, key: np.uint64, bucket: int, out: NDArray[np.int64]) -> int:
    """Write the numbers of first..last - 1 whose hash falls into a bucket; return how many there are."""
    count = 0
    for number in range(first, last):
        if draw_bits(key, number) >> _BUCKET_SHIFT == np.uint64(bucket):
            out[count] = number
            count += 1
    return count


@jit
def _count_members(population: int, key: np.uint64, threshold: np.uint64, out: NDArray[np.int64]) -> None:
    """Write the number of members before each block of BLOCK numbers, then that of all members."""
    members = 0
    for block in range(len(out) - 1):
        out[block] = members
        for number in range(block * BLOCK, min((block + 1) * BLOCK, population)):
            members += draw_bits(key, number) < threshold
    out[-1] = members


@jit
def _mark_members(first: int, key: np.uint64, threshold: np.uint64, out: NDArray[np.bool_]) -> None:
    """Write whether the numbers first, first + 1, ... are members."""
    for i in range(len(out)):
        out[i] = draw_bits(key, first + i) < threshold


@jit
def _find_members(
    ranks: NDArray[np.int64],
    before: NDArray[np.int64],
    key: np.uint64,
    threshold: np.uint64,
    out: NDArray[np.int64],
) -> None:
    """Write the members of ascending ranks; each block is hashed once."""
    block, number, passed = np.int64(-1), np.int64(0), np.int64(0)
    for i in range(len(ranks)):
        if block < 0 or ranks[i] >= before[block + 1]:
            block = _block_of(ranks[i], before)
            number, passed = block * BLOCK, before[block]
        while passed <= ranks[i]:  # a single branch, which the processor predicts well
            passed += draw_bits(key, number) < threshold
            number += 1
        out[i] = number - 1


@jit_helper
def _block_of(rank: int, before: NDArray[np.int64]) -> Any:
    """Return the block of the member with this rank."""
    block, end = np.int64(0), np.int64(len(before) - 1)  # no np.searchsorted, which takes a second to compile
    while end - block > 1:
        middle = (block + end) // 2
        if before[middle] <= rank:
            block = middle
        else:
            end = middle
    return block


@jit
def _rank_numbers(
    numbers: NDArray[np.int64],
    before: NDArray[np.int64],
    key: np.uint64,
    threshold: np.uint64,
    out_ranks: NDArray[np.int64],
    out_is_member: NDArray[np.bool_],
) -> None:
    """Write the ranks of ascending numbers, and whether they are members; each block is hashed once."""
    block, number, rank = np.int64(-1), np.int64(0), np.int64(0)
    for i in range(len(numbers)):
        if block != numbers[i] // BLOCK:
            block = numbers[i] // BLOCK
            number, rank = block * BLOCK, before[block]
        while number < numbers[i]:
            rank += draw_bits(key, number) < threshold
            number += 1
        out_ranks[i] = rank
        out_is_member[i] = draw_bits(key, number) < threshold
