"""Locations of documents in their files, for messages and for the list of rejected records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray


class Places(Protocol):
    """Locations of the documents of an input, for messages; can be pickled."""

    def place(self, row: int) -> str:
        """Return the location of a document, such as "rows.jsonl line 18"."""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Locations in a file whose documents are numbered, such as "rows.parquet row 17"."""

    name: str
    first_row: int = 0
    indices: NDArray[Any] | None = None
    """Index in the file of each document; None if they are in the order of the file."""

    def place(self, row: int) -> str:
        """Return the location of a document."""
        return f"{self.name} row {self.number(row)}"

    def number(self, row: int) -> int:
        """Return the number of a document in its file, counted from 0."""
        row += self.first_row
        return row if self.indices is None else int(self.indices[row])
