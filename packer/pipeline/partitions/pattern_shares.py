"""Share out the packs of the solver's patterns that remain after the even shares: to partitions, then to regions.

Partitions take packs one after the other, so that no pack is taken twice. This needs only histograms, and shares are
noted, so nothing is held per partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.notes import Note, Notes
from packer.pipeline.partitions.regions import Regions, load
from packer.plan.shares import Share, further_share

_ANY_NUMBER = 1 << 62  # of rows


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
