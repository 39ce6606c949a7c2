"""Which document of which source each document of a mixture is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.plan.mixture_shares import Take
from packer.sources.source import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Origins:
    """The documents of a mixture: numbered source by source, and within a source as `Take` numbers them.

    Nothing is held for each of them, unless they are put in another order.
    """

    parts: tuple[Source, ...]
    """The sources."""

    names: tuple[str, ...]
    """Their names."""

    takes: tuple[Take, ...]
    """What is taken of each source."""

    firsts: NDArray[np.int64]
    """Shape (sources + 1,): source s has the documents firsts[s]..firsts[s + 1] - 1 of the mixture."""

    first_lists: NDArray[np.int64]
    """Shape (sources + 1,): source s has the lists first_lists[s]..first_lists[s + 1] - 1 of all sources."""

    order: NDArray[Any] | None
    """Shape (documents,): the documents in another order, by number; None for their own order."""

    @classmethod
    def of_takes(
        cls, parts: tuple[Source, ...], names: tuple[str, ...], takes: Sequence[Take], order: NDArray[Any] | None = None
    ) -> Origins:
        """Number what is taken of some sources, which have been read to their end."""
        lists = [sum(count or 0 for count in part.rows) for part in parts]
        return cls(
            parts=parts,
            names=names,
            takes=tuple(takes),
            firsts=np.cumsum([0, *(take.documents for take in takes)], dtype=np.int64),
            first_lists=np.cumsum([0, *lists], dtype=np.int64),
            order=order,
        )

    def of(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(source_ids, doc_ids, copy) of documents of the mixture, in any order: each int64, shape (documents,)."""
        numbers = documents if self.order is None else self.order[documents].astype(np.int64)
        sources = np.searchsorted(self.firsts, numbers, side="right") - 1
        ids, copies = np.empty_like(numbers), np.empty_like(numbers)
        for source in np.flatnonzero(np.bincount(sources, minlength=len(self.parts))):
            here = sources == source
            ids[here], copies[here] = self.takes[source].locate(numbers[here] - self.firsts[source])
        return sources, ids, copies

    def __getitem__(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """The list of all sources, one after the other, that each document is: as `TokenTable.rows` is asked for it."""
        sources, ids, _ = self.of(documents)
        lists = self.first_lists[sources] + ids
        for source, part in enumerate(self.parts):
            if part.indices is not None:
                here = sources == source
                lists[here] = self.first_lists[source] + part.indices[ids[here]].astype(np.int64)
        return lists

    def describe(self, source: int, document: int) -> str:
        """Name a document of a source for a message: "document 17 (rows.jsonl line 18) of code"."""
        return f"{self.parts[source].describe(document)} of {self.names[source]}"
