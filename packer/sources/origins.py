"""The source, document and copy that each document to pack comes from."""

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
    """Documents to pack, numbered source by source, and within a source as in `Take`.

    Nothing is held per document, except for another order.
    """

    parts: tuple[Source, ...]
    """Sources."""

    names: tuple[str, ...]
    """Names of the sources; empty for one that is not mixed."""

    takes: tuple[Take, ...]
    """Documents taken of each source."""

    firsts: NDArray[np.int64]
    """First document of each source, shape (sources + 1,): source s has documents firsts[s] to firsts[s + 1] - 1."""

    first_lists: NDArray[np.int64]
    """First list of each source, shape (sources + 1,), where lists are counted across all sources."""

    order: NDArray[Any] | None
    """Another order of the documents, shape (documents,); None for their own."""

    @classmethod
    def of_takes(
        cls, parts: tuple[Source, ...], names: tuple[str, ...], takes: Sequence[Take], order: NDArray[Any] | None = None
    ) -> Origins:
        """Number what is taken of sources that have been read to their end."""
        lists = [sum(count or 0 for count in part.rows) for part in parts]
        return cls(
            parts=parts,
            names=names,
            takes=tuple(takes),
            firsts=np.cumsum([0, *(take.documents for take in takes)], dtype=np.int64),
            first_lists=np.cumsum([0, *lists], dtype=np.int64),
            order=order,
        )

    @property
    def is_mixture(self) -> bool:
        """Whether sources are mixed; if not, every document of the one source is taken once, in its order."""
        return any(self.names)

    def of(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return source_ids, doc_ids and copy of documents in any order: each int64, shape (documents,)."""
        if not self.is_mixture:
            zeros = np.zeros_like(documents)
            return zeros, documents, zeros
        numbers = documents if self.order is None else self.order[documents].astype(np.int64)
        sources = np.searchsorted(self.firsts, numbers, side="right") - 1
        ids, copies = np.empty_like(numbers), np.empty_like(numbers)
        for source in np.flatnonzero(np.bincount(sources, minlength=len(self.parts))):
            here = sources == source
            ids[here], copies[here] = self.takes[source].locate(numbers[here] - self.firsts[source])
        return sources, ids, copies

    def numbers(
        self, sources: NDArray[np.int64], ids: NDArray[np.int64], copies: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the documents with these source_ids, doc_ids and copy, and whether it has each of them.

        This reverses `of` where the documents have their own order.
        """
        assert self.order is None
        numbers, is_taken = np.zeros_like(ids), np.zeros(len(ids), np.bool_)
        for source, take in enumerate(self.takes):
            here = np.flatnonzero(sources == source)
            found, is_taken[here] = take.numbers(ids[here], copies[here])
            numbers[here] = self.firsts[source] + found
        return numbers, is_taken

    def __getitem__(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the list of each document, counted across all sources; used as `TokenTable.lists`."""
        sources, ids, _ = self.of(documents)
        return self.lists_of(sources, ids)

    def lists_of(self, sources: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the list of documents given by their sources and their numbers there: int64, of the same shape."""
        lists = self.first_lists[sources] + ids
        for source, part in enumerate(self.parts):
            if part.indices is not None:
                here = sources == source
                lists[here] = self.first_lists[source] + part.indices[ids[here]].astype(np.int64)
        return lists

    def describe(self, source: int, document: int) -> str:
        """Name a document of a source: "document 17 (rows.jsonl line 18)", with " of code" in a mixture."""
        where = self.parts[source].describe(document)
        return f"{where} of {self.names[source]}" if self.is_mixture else where
