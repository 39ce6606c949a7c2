"""What a mixture takes, source by source: for a comparison with rows, which hold it in an order of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.sources.documents import TokenTable
from packer.sources.mixture import Drawn


class TakenInOrder:
    """The documents that a mixture takes, numbered in the order of the sources, the copies of each one after the other.

    Source 0 has documents a and b, b comes twice; source 1 has c, which is not taken, and d: a, b, b, d are 0, 1, 2, 3.
    """

    def __init__(self, drawn: Drawn) -> None:
        self._mixture = drawn.mixture
        self._times = [take.copies + take.sample.astype(np.int64) for take in drawn.takes]
        ends = np.cumsum([take.documents for take in drawn.takes])
        self._firsts = [
            np.cumsum(times) - times + end - take.documents
            for times, end, take in zip(self._times, ends, drawn.takes, strict=True)
        ]
        self._documents = int(ends[-1])

    def tables(self) -> Iterator[TokenTable]:
        """Yield what is taken, in tables of bounded memory that name a document once for each copy."""
        for part, times, firsts in zip(self._mixture.parts, self._times, self._firsts, strict=True):
            for table in part.tables():
                first = table.first_document
                here = times[first : first + len(table.lengths)]
                if not here.any():
                    continue
                rows = np.arange(len(here)) if table.rows is None else table.rows.astype(np.int64)
                yield replace(
                    table,
                    lengths=np.repeat(table.lengths, here),
                    rows=np.repeat(rows, here),
                    first_document=int(firsts[first]),
                )

    def numbers(
        self, source_ids: NDArray[np.integer], doc_ids: NDArray[np.integer], copies: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Number these documents; what is not taken gets the number after the last."""
        numbers = np.full(len(doc_ids), self._documents)
        for source, (times, firsts) in enumerate(zip(self._times, self._firsts, strict=True)):
            is_here = (source_ids == source) & (doc_ids >= 0) & (doc_ids < len(times)) & (copies >= 0)
            is_here[is_here] = copies[is_here] < times[doc_ids[is_here]]
            numbers[is_here] = firsts[doc_ids[is_here]] + copies[is_here]
        return numbers

    def describe(self, document: int) -> str:
        """Name a document for a message: "document 17 (rows.jsonl line 18) of code, copy 0"."""
        source = max(number for number, firsts in enumerate(self._firsts) if firsts[0] <= document)
        firsts = self._firsts[source]
        found = int(np.searchsorted(firsts, document, side="right")) - 1
        where = self._mixture.parts[source].describe(found)
        return f"{where} of {self._mixture.names[source]}, copy {document - int(firsts[found])}"
