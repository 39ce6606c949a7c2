"""Regions: groups of some hundred tasks of a stage, whose notes one task of the next stage reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.notes import Note, Notes


@dataclass(frozen=True, kw_only=True, slots=True)
class Regions:
    """A stage whose tasks have run: region r has tasks r * size to (r + 1) * size - 1."""

    notes: Notes
    """Store of the notes."""

    stage: str
    """Name of the stage."""

    count: int
    """Number of tasks of the stage."""

    size: int
    """Tasks per region; the last region may have fewer."""

    def __len__(self) -> int:
        """Return the number of regions."""
        return -(-self.count // self.size)

    def numbers(self, region: int) -> range:
        """Return the tasks of a region."""
        return range(region * self.size, min((region + 1) * self.size, self.count))

    def notes_of(self, region: int) -> Iterator[Note]:
        """Yield the notes of a region, in order."""
        names = [f"{self.stage}-{number}" for number in self.numbers(region)]
        for name, note in zip(names, self.notes.load_all(names), strict=True):
            assert note is not None, name
            yield note


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolStage:
    """A stage that made rows of leftovers, a task for each region of the stage below."""

    name: str
    """Name of the stage."""

    below: Regions
    """Stage that left the pieces over."""

    rows: NDArray[np.int64]
    """Shape (regions below,): number of rows that were made in each."""

    @property
    def names(self) -> list[str]:
        """Names of the notes, in order."""
        return [f"{self.name}-{region}" for region in range(len(self.below))]


def load(notes: Notes, name: str) -> Note:
    """Load the note of a task that has run."""
    note = notes.load(name)
    assert note is not None, name
    return note
