"""Deal the solver's patterns to partitions, each of which takes packs that its own segments can fill, then to regions.

First every partition takes an even share of each pattern; then each in turn takes the remaining packs that it can still
fill. The packs and segments left over are shared out among regions of partitions. This needs only histograms, and
shares are saved, so nothing is held per partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.exact_fill import packs_left
from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Patterns
from packer.algorithms.permute import DEAL_ROTATION, draw_below, stream_key
from packer.engines.checkpoints import Checkpoint, Checkpoints


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternShare:
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
        """Return the share as compact arrays for a checkpoint; `from_arrays` reads them back."""
        kinds = np.flatnonzero(self.left)
        return {"given": self.given, "packs": self.packs, "left_extents": kinds, "left_counts": self.left[kinds]}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], max_len: int) -> PatternShare:
        """Create a share from what `arrays` returns."""
        left = np.zeros(max_len + 1, np.int64)
        left[arrays["left_extents"]] = arrays["left_counts"]
        return cls(given=arrays["given"], packs=arrays["packs"], left=left)


def even_share(
    histogram: NDArray[np.int64], patterns: Patterns, *, partition: int, partitions: int, most_rows: int, seed: int
) -> PatternShare:
    """Give a partition its even share of every pattern, up to what its own segments, a histogram, can fill.

    Of 7 packs and 3 partitions, one partition takes 3 and two take 2. Which one takes more differs from pattern to
    pattern, so that no partition gets all the odd packs.
    """
    quotas = np.empty(len(patterns.counts), np.int64)
    _even_quotas(patterns.counts, partition, partitions, np.uint64(seed), quotas)
    left = histogram.copy()
    given, packs = _take(patterns.offsets, patterns.extents, quotas, most_rows, left)
    return PatternShare(given=given, packs=packs, left=left)


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
        first, last = offsets[pattern], offsets[pattern + 1]
        packs = min(quotas[pattern], room, packs_left(out_histogram, extents[first:last], last - first))
        if packs == 0:
            continue
        room -= packs
        for e in range(first, last):
            out_histogram[extents[e]] -= packs
        given[size], given_packs[size] = pattern, packs
        size += 1
    return given[:size].copy(), given_packs[:size].copy()


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternShares:
    """Packs that the tasks of a stage take, saved by region."""

    checkpoints: Checkpoints

    name: str
    """Name of the checkpoints, each of which has the packs of a region; see `deal`."""

    size: int
    """Tasks per region."""

    even: str | None = None
    """Stage in which partitions saved even shares, which they take besides; None for the shares of regions."""

    def of(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the packs of a task: the numbers of the patterns, and the packs of each."""
        further = self.checkpoints.read(f"{self.name}-{number // self.size}").arrays
        first, last = further["offsets"][number % self.size :][:2]
        given, packs = further["given"][first:last], further["packs"][first:last]
        if self.even is not None:
            own = self.checkpoints.read(f"{self.even}-{number}").arrays
            given, packs = np.concatenate([own["given"], given]), np.concatenate([own["packs"], packs])
        return given, packs

    def deal(
        self,
        before: Iterator[PatternShare],
        patterns: Patterns,
        out_left: NDArray[np.int64],
        *,
        max_len: int,
        most_rows: int = 1 << 62,
    ) -> int:
        """Give every task, in turn, further packs that it can fill, and save them by region; return how many there are.

        `before` yields what tasks have, and `out_left`, shape (patterns,), has the packs that nobody has; those
        that are given are subtracted. In the checkpoint of a region, its task number t has given[offsets[t]:offsets[t
        + 1]] and the same part of packs. The histogram is of what all its tasks leave over.
        """
        region = 0
        while some := list(islice(before, 1)):
            given, packs, offsets, left_over = [], [], [0], np.zeros(max_len + 1, np.int64)
            for share in chain(some, islice(before, self.size - 1)):
                left = share.left.copy()
                new, counts = _take(patterns.offsets, patterns.extents, out_left, most_rows - share.rows, left)
                out_left[new] -= counts
                given.append(new)
                packs.append(counts)
                offsets.append(offsets[-1] + len(new))
                left_over += left
            name = f"{self.name}-{region}"
            if self.checkpoints.load(name) is None:  # otherwise, an interrupted run has left the same one
                of_region = PatternShare(given=np.concatenate(given), packs=np.concatenate(packs), left=left_over)
                self.checkpoints.save(
                    name, Checkpoint(facts={}, arrays={**of_region.arrays(), "offsets": np.array(offsets)})
                )
            region += 1
        return region


def saved_shares(checkpoints: Checkpoints, stage: str, count: int, max_len: int) -> Iterator[PatternShare]:
    """Yield the shares that the tasks of a stage, or regions, have saved."""
    for checkpoint in checkpoints.read_all([f"{stage}-{number}" for number in range(count)]):
        yield PatternShare.from_arrays(checkpoint.arrays, max_len)
