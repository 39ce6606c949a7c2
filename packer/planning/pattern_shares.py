"""Deal the solver's patterns to partitions, each of which takes packs that its own segments can fill, then to regions.

First every partition takes an even share of each pattern; then each in turn takes the remaining packs that it can still
fill. The packs and segments left over are shared out among regions of partitions. This needs only histograms, and
shares are noted, so nothing is held per partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.exact_fill import packs_left
from packer.algorithms.jit import jit_if_large
from packer.algorithms.patterns import Patterns
from packer.notes import Note, Notes
from packer.plan.permute import draw_below, stream_key
from packer.planning.regions import Regions, load
from packer.random_purposes import DEAL_ROTATION

_ANY_NUMBER = 1 << 62  # of rows


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
class Shares:
    """Packs that each partition takes: its even share, and further packs that its segments can fill."""

    even: Regions
    """Stage that noted the even shares, with a task per partition."""

    further: str
    """Stage of the further packs, with a note per region; see `share_further`."""

    def share(self, partition: int) -> Share:
        """Return all packs of a partition, without the histogram of its leftovers."""
        even = load(self.even.notes, f"{self.even.stage}-{partition}")
        region, number = divmod(partition, self.even.size)
        further = load(self.even.notes, f"{self.further}-{region}")
        first, last = further.arrays["offsets"][number : number + 2]
        return Share(
            given=np.concatenate([even.arrays["given"], further.arrays["given"][first:last]]),
            packs=np.concatenate([even.arrays["packs"], further.arrays["packs"][first:last]]),
            left=np.zeros(0, np.int64),
        )


def share_further(shares: Shares, patterns: Patterns, *, max_len: int, most_rows: int) -> NDArray[np.int64]:
    """Give every partition, in turn, further packs that it can fill, and note them by region.

    In the note of a region, its partition p has given[offsets[p]:offsets[p + 1]] and packs[offsets[p]:offsets[p + 1]].

    Args:
        shares: stages of the shares; the even ones have been noted.
        patterns: global solution.
        max_len: length of a row.
        most_rows: largest number of rows of a partition.

    Returns:
        Packs of each pattern that no partition took: int64, shape (patterns,).
    """
    even = shares.even
    left: NDArray[np.int64] = patterns.counts.copy()
    for region in range(len(even)):
        for note in even.notes_of(region):
            left[note.arrays["given"]] -= note.arrays["packs"]
    for region in range(len(even)):
        histogram = np.zeros(max_len + 1, np.int64)
        given, packs, offsets = [], [], [0]
        for note in even.notes_of(region):
            before = Share.from_arrays(note.arrays, max_len)
            share = further_share(before, patterns, left, most_rows=most_rows)
            given.append(share.given[len(before.given) :])
            packs.append(share.packs[len(before.given) :])
            offsets.append(offsets[-1] + len(given[-1]))
            histogram += share.left
        of_region = Share(given=np.concatenate(given), packs=np.concatenate(packs), left=histogram)
        arrays = {**of_region.arrays(), "offsets": np.array(offsets)}
        _keep(even.notes, f"{shares.further}-{region}", Note(facts={}, arrays=arrays))
    return left


def share_with_regions(
    below: Regions, patterns: Patterns, out_left: NDArray[np.int64], *, max_len: int, stage: str
) -> None:
    """Give every region, in turn, the packs that its leftovers can fill, and note them.

    Args:
        below: stage that noted the shares below, with histograms of their leftovers.
        patterns: global solution.
        out_left: (patterns,) packs of each pattern that are not taken yet; packs that regions take are subtracted.
        max_len: length of a row.
        stage: name of the stage of these shares.
    """
    for region in range(len(below)):
        left = np.zeros(max_len + 1, np.int64)
        for note in below.notes_of(region):
            left[note.arrays["left_extents"]] += note.arrays["left_counts"]
        nothing = Share(given=np.zeros(0, np.int32), packs=np.zeros(0, np.int64), left=left)
        share = further_share(nothing, patterns, out_left, most_rows=_ANY_NUMBER)
        _keep(below.notes, f"{stage}-{region}", Note(facts={}, arrays=share.arrays()))


def _keep(notes: Notes, name: str, note: Note) -> None:
    """Save a note, unless an interrupted run has left the same one."""
    if notes.load(name) is None:
        notes.save(name, note)
