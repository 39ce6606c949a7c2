"""Which document of which source each document of a mixture is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.sources.source import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Origins:
    """Which document of which source each document of a mixture is."""

    parts: tuple[Source, ...]
    """The sources."""

    names: tuple[str, ...]
    """Their names."""

    firsts: NDArray[np.int64]
    """Shape (sources + 1,): source s has the numbers firsts[s]..firsts[s + 1] - 1 in `numbers`."""

    numbers: NDArray[Any]
    """Shape (documents,): each document as a number in all sources, one after the other."""

    copies: NDArray[Any]
    """Shape (documents,): which repetition it is."""

    def of(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(source_ids, doc_ids, copy) of documents of the mixture."""
        numbers = self.numbers[documents].astype(np.int64)
        sources = np.searchsorted(self.firsts, numbers, side="right") - 1
        return sources, numbers - self.firsts[sources], self.copies[documents].astype(np.int64)

    def describe(self, source: int, document: int) -> str:
        """Name a document of a source for a message: "document 17 (rows.jsonl line 18) of code"."""
        return f"{self.parts[source].describe(document)} of {self.names[source]}"
