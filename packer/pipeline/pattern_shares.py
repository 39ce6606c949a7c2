"""Who takes which packs of the solver's patterns, beyond the even shares: partitions, then regions of what these leave.

Packs are given out in turn, since nobody may take what another has taken. Only histograms are looked at, and every
share is noted, so that nothing is held for each partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.notes import Note, Notes
from packer.pipeline.regions import Regions, load
from packer.plan.shares import Share, further_share

_ANY_NUMBER = 1 << 62  # of rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """What each partition takes: an even share, and what it still fills of the packs that are left."""

    even: Regions
    """Stage of the even shares, a task for each partition."""

    further: str
    """Stage of what partitions take beside them, a note for each region; see `share_further`."""

    def share(self, partition: int) -> Share:
        """Both shares of a partition; what they leave of its segments is not looked up."""
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
    """Give every partition, in turn, what it still fills of the patterns beside its even share, and note it by region.

    In the note of a region, partition p of it has given[offsets[p]:offsets[p + 1]] and as many packs.

    Args:
        shares: where even shares are noted, and these are going to be.
        patterns: the global solution.
        max_len: the capacity of a row.
        most_rows: rows that a partition may have in all.

    Returns:
        Packs of each pattern that nobody took: int64, shape (patterns,).
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
    """Give every region, in turn, what the segments fill that all shares in it left, and note it.

    Args:
        below: stage of the shares below.
        patterns: the global solution.
        out_left: (patterns,) packs of each pattern that nobody has taken; those that regions take are subtracted.
        max_len: the capacity of a row.
        stage: stage of the shares of regions.
    """
    for region in range(len(below)):
        left = np.zeros(max_len + 1, np.int64)
        for note in below.notes_of(region):
            left[note.arrays["left_extents"]] += note.arrays["left_counts"]
        nothing = Share(given=np.zeros(0, np.int32), packs=np.zeros(0, np.int64), left=left)
        share = further_share(nothing, patterns, out_left, most_rows=_ANY_NUMBER)
        _keep(below.notes, f"{stage}-{region}", Note(facts={}, arrays=share.arrays()))


def _keep(notes: Notes, name: str, note: Note) -> None:
    """Save a note that may be there from before, the same."""
    if notes.load(name) is None:
        notes.save(name, note)
