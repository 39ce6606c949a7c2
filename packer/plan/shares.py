"""Patterns to partitions: each takes those of the global solution that its own segments fill.

First every partition takes an even share of each pattern, then, in turn, whatever is left that it still fills. What is
left of both, patterns and segments, is for all partitions together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.algorithms.patterns import Patterns
from packer.plan.permute import draw_below, stream_key
from packer.random_purposes import DEAL_ROTATION


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The packs that a partition is given."""

    given: NDArray[np.int32]
    """Shape (patterns given,): which patterns; one may come twice."""

    packs: NDArray[np.int64]
    """Shape (patterns given,): how many packs of each."""

    left: NDArray[np.int64]
    """Shape (max_len + 1,): segments of every extent that the packs do not take."""

    @property
    def rows(self) -> int:
        """All packs."""
        return int(self.packs.sum())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The share as arrays of its size, for a note; `from_arrays` reads them back."""
        kinds = np.flatnonzero(self.left)
        return {"given": self.given, "packs": self.packs, "left_extents": kinds, "left_counts": self.left[kinds]}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], max_len: int) -> Share:
        """Read a share back."""
        left = np.zeros(max_len + 1, np.int64)
        left[arrays["left_extents"]] = arrays["left_counts"]
        return cls(given=arrays["given"], packs=arrays["packs"], left=left)


def even_share(
    histogram: NDArray[np.int64], patterns: Patterns, *, partition: int, partitions: int, most_rows: int, seed: int
) -> Share:
    """Give a partition its even share of every pattern, as far as its own segments fill it.

    Of 7 packs and 3 partitions, one takes 3 and two take 2: that begins at another partition for every pattern, so
    that no partition gets all the odd ones.

    Args:
        histogram: (max_len + 1,) the segments of the partition, by extent.
        patterns: the global solution.
        partition: its number.
        partitions: how many there are.
        most_rows: rows that it may have.
        seed: of the rotation.
    """
    quotas = np.empty(len(patterns.counts), np.int64)
    _even_quotas(patterns.counts, partition, partitions, np.uint64(seed), quotas)
    left = histogram.copy()
    given, packs = _take(patterns.offsets, patterns.extents, quotas, most_rows, left)
    return Share(given=given, packs=packs, left=left)


def further_share(share: Share, patterns: Patterns, out_left: NDArray[np.int64], *, most_rows: int) -> Share:
    """Give a partition what it still fills of the packs that nobody has taken, and take them from `out_left`.

    Args:
        share: what it has.
        patterns: the global solution.
        out_left: (patterns,) packs of each pattern that nobody has taken.
        most_rows: rows that it may have in all.
    """
    left = share.left.copy()
    given, packs = _take(patterns.offsets, patterns.extents, out_left, most_rows - share.rows, left)
    out_left[given] -= packs
    return Share(given=np.concatenate([share.given, given]), packs=np.concatenate([share.packs, packs]), left=left)


@jit
def _even_quotas(
    counts: NDArray[np.int64], partition: int, partitions: int, seed: np.uint64, out: NDArray[np.int64]
) -> None:
    for pattern in range(len(counts)):
        first = draw_below(stream_key(seed, DEAL_ROTATION, pattern), 0, partitions)
        step = (partition - first) % partitions
        out[pattern] = counts[pattern] // partitions + (step < counts[pattern] % partitions)


@jit
def _take(
    offsets: NDArray[np.int64],
    extents: NDArray[np.int32],
    quotas: NDArray[np.int64],
    most_rows: int,
    out_histogram: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Take packs of each pattern, up to its quota, as segments last; returns patterns and packs."""
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


@jit
def _filled_packs(histogram: NDArray[np.int64], extents: NDArray[np.int32], first: int, last: int) -> Any:
    """How often a partition's segments fill the pattern extents[first:last], in descending order."""
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
