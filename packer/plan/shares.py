"""Deal patterns to partitions: each takes packs of the global solution that its own segments can fill.

First every partition takes an even share of each pattern; then each in turn takes the remaining packs that it can still
fill. The packs and segments left over are shared out among regions of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_helper, jit_if_large
from packer.algorithms.patterns import Patterns
from packer.plan.permute import draw_below, stream_key
from packer.random_purposes import DEAL_ROTATION


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Packs of a partition."""

    given: NDArray[np.int32]
    """Shape (entries,): number of the pattern that is given; a pattern may have two entries."""

    packs: NDArray[np.int64]
    """Shape (entries,): number of packs of this pattern."""

    left: NDArray[np.int64]
    """Shape (max_len + 1,): number of segments of every extent that are in none of the packs."""

    @property
    def rows(self) -> int:
        """Number of packs."""
        return int(self.packs.sum())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the share as compact arrays for a note; `from_arrays` reads them back."""
        kinds = np.flatnonzero(self.left)
        return {"given": self.given, "packs": self.packs, "left_extents": kinds, "left_counts": self.left[kinds]}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], max_len: int) -> Share:
        """Create a share from what `arrays` returns."""
        left = np.zeros(max_len + 1, np.int64)
        left[arrays["left_extents"]] = arrays["left_counts"]
        return cls(given=arrays["given"], packs=arrays["packs"], left=left)


def even_share(
    histogram: NDArray[np.int64], patterns: Patterns, *, partition: int, partitions: int, most_rows: int, seed: int
) -> Share:
    """Give a partition its even share of every pattern, up to what its own segments can fill.

    Of 7 packs and 3 partitions, one partition takes 3 and two take 2. Which one takes more differs from pattern to
    pattern, so that no partition gets all the odd packs.

    Args:
        histogram: (max_len + 1,) segments of the partition, by extent.
        patterns: global solution.
        partition: number of the partition.
        partitions: number of partitions.
        most_rows: largest number of rows of the partition.
        seed: seed of the rotation.
    """
    quotas = np.empty(len(patterns.counts), np.int64)
    _even_quotas(patterns.counts, partition, partitions, np.uint64(seed), quotas)
    left = histogram.copy()
    given, packs = _take(patterns.offsets, patterns.extents, quotas, most_rows, left)
    return Share(given=given, packs=packs, left=left)


def further_share(share: Share, patterns: Patterns, out_left: NDArray[np.int64], *, most_rows: int) -> Share:
    """Give a partition the packs that it can still fill of those that no partition has, and take them from `out_left`.

    Args:
        share: packs that the partition has.
        patterns: global solution.
        out_left: (patterns,) packs of each pattern that no partition has.
        most_rows: largest number of rows of the partition in all.
    """
    left = share.left.copy()
    given, packs = _take(patterns.offsets, patterns.extents, out_left, most_rows - share.rows, left)
    out_left[given] -= packs
    return Share(given=np.concatenate([share.given, given]), packs=np.concatenate([share.packs, packs]), left=left)


@jit_if_large
def _even_quotas(
    counts: NDArray[np.int64], partition: int, partitions: int, seed: np.uint64, out: NDArray[np.int64]
) -> None:
    for pattern in range(len(counts)):
        first = draw_below(stream_key(seed, DEAL_ROTATION, pattern), 0, partitions)
        step = (partition - first) % partitions
        out[pattern] = counts[pattern] // partitions + (step < counts[pattern] % partitions)


@jit_if_large
def _take(
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    quotas: NDArray[np.int64],
    most_rows: int,
    out_histogram: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Take packs of each pattern, up to its quota, while segments last; return (pattern numbers, packs of each)."""
    given = np.empty(len(quotas), np.int32)
    given_packs = np.empty(len(quotas), np.int64)
    size = 0
    room = np.int64(most_rows)
    for pattern in range(len(quotas)):
        if quotas[pattern] == 0:
            continue
        packs = min(
            quotas[pattern], room, _filled_packs(out_histogram, extents, offsets[pattern], offsets[pattern + 1])
        )
        if packs == 0:
            continue
        room -= packs
        for e in range(offsets[pattern], offsets[pattern + 1]):
            out_histogram[extents[e]] -= packs
        given[size], given_packs[size] = pattern, packs
        size += 1
    return given[:size].copy(), given_packs[:size].copy()


@jit_helper
def _filled_packs(histogram: NDArray[np.int64], extents: NDArray[np.int32], first: int, last: int) -> Any:
    """Return how often segments can fill the pattern extents[first:last], whose extents are in descending order."""
    packs = np.int64(1) << 62
    begin = first
    while begin < last:
        end = begin
        while end < last and extents[end] == extents[begin]:
            end += 1
        packs = min(packs, histogram[extents[begin]] // (end - begin))
        if packs == 0:
            break
        begin = end
    return packs
