"""Regions: the tasks of a stage, some hundreds together, so that no task reads the notes of more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packer.notes import Note, Notes


@dataclass(frozen=True, kw_only=True, slots=True)
class Regions:
    """The notes of a stage whose tasks have run: region r has those of tasks r * size to (r + 1) * size - 1."""

    notes: Notes
    """Where they are."""

    stage: str
    """Name of the stage."""

    count: int
    """Tasks of the stage."""

    size: int
    """Tasks of a region."""

    def __len__(self) -> int:
        """The number of regions."""
        return -(-self.count // self.size)

    def notes_of(self, region: int) -> Iterator[Note]:
        """Yield the notes of a region, in order."""
        for number in range(region * self.size, min((region + 1) * self.size, self.count)):
            yield load(self.notes, f"{self.stage}-{number}")


def load(notes: Notes, name: str) -> Note:
    """Load the note of a task that has run."""
    note = notes.load(name)
    assert note is not None, name
    return note
