"""Documents in the order in which one pass over the files yields them, for comparison with rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.facts import SourceIdentity
from packer.inputs.token_tables import TokenTable
from packer.plan.mixture_shares import BLOCK
from packer.sources.corpus import Corpus, count_rejected
from packer.sources.segment_index import own_documents
from packer.sources.survey import IdentityCounter, survey_corpus

_TOGETHER = 1 << 20  # documents of a table, copies included


class SourceOrder:
    """Documents that are packed, numbered in the order of their sources, with the copies of a document together.

    Example: source 0 has documents a and b, and b is taken twice; source 1 has c, which is not taken, and d. Then a, b,
    b, d are documents 0 to 3, and one pass over the sources yields them in this order. Nothing is held per document.

    A mixture is read once before, to know what is taken; a single source is taken once, as a whole.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._survey = None if corpus.recipe is None else survey_corpus(corpus)
        self.mixture = () if self._survey is None else self._survey.identity.mixture
        """Sources of a mixture, and counts of what is taken of each; empty for a single source."""
        self._takes = None if self._survey is None else self._survey.takes
        self._firsts = np.zeros(1, np.int64) if self._survey is None else self._survey.origins().firsts
        self._seen = IdentityCounter(corpus.parts[0])  # of a single source

    @property
    def documents(self) -> int | None:
        """Number of documents; None if it is known only after reading."""
        if self._survey is not None:
            return self._survey.identity.documents
        [source] = self._corpus.parts
        if source.indices is not None:
            return len(source.indices)
        rows = [count for count in source.rows if count is not None]
        return sum(rows) if len(rows) == len(source.rows) else None

    def tables(self) -> Iterator[TokenTable]:
        """Yield all documents in order, in tables of bounded memory that list a document once per copy."""
        if self._takes is None:
            for table in self._corpus.parts[0].tables():
                yield table
                self._seen.add(table.lengths)
            return
        for part, take, first_of_source in zip(self._corpus.parts, self._takes, self._firsts[:-1], strict=True):
            step = max(1, _TOGETHER // (take.copies + 1))
            done = int(first_of_source)
            for table in part.tables():
                for first in range(0, len(table.lengths), step):
                    last = min(first + step, len(table.lengths))
                    times = take.times(table.first_document + first, table.first_document + last)
                    lists = table.lists_of(np.arange(first, last))
                    if times.any():
                        yield replace(
                            table,
                            lengths=np.repeat(table.lengths[first:last], times),
                            lists=np.repeat(lists, times),
                            first_document=done,
                        )
                    done += int(times.sum())

    def numbers(self, segments: Mapping[str, NDArray[np.integer]]) -> NDArray[np.int64]:
        """Return the number of the document of each segment; one past the last for documents that are not taken."""
        if self._takes is None:
            return own_documents(segments)
        source_ids, doc_ids, copies = (segments[name] for name in ("source_ids", "doc_ids", "copy"))
        numbers = np.full(len(doc_ids), self._firsts[-1])
        for source, take in enumerate(self._takes):
            population = take.sample.population
            here = np.flatnonzero((source_ids == source) & (doc_ids >= 0) & (doc_ids < population) & (copies >= 0))
            documents = doc_ids[here].astype(np.int64)
            ranks, is_sampled = take.sample.ranks(documents)
            found = self._firsts[source] + documents * take.copies + ranks + copies[here]
            is_taken = copies[here] < take.copies + is_sampled
            numbers[here[is_taken]] = found[is_taken]
        return numbers

    def rejected(self) -> dict[str, int]:
        """Count the rejected documents by reason, with every copy; call this after reading `tables` to the end."""
        return count_rejected(self._corpus.parts, self._takes)

    def describe(self, document: int) -> str:
        """Return the name of a document for messages: "document 17 (rows.jsonl line 18)", and " of code, copy 0"."""
        if self._takes is None:
            return self._corpus.parts[0].describe(document)
        source = int(np.searchsorted(self._firsts, document, side="right")) - 1
        take, number = self._takes[source], document - int(self._firsts[source])
        before = take.sample.before[:-1] + np.arange(len(take.sample.before) - 1) * BLOCK * take.copies
        block = int(np.searchsorted(before, number, side="right")) - 1
        first = block * BLOCK
        ends = before[block] + np.cumsum(take.times(first, min(first + BLOCK, take.sample.population)))
        at = int(np.searchsorted(ends, number, side="right"))
        copy = number - int(ends[at - 1] if at else before[block])
        where = self._corpus.parts[source].describe(first + at)
        return f"{where} of {self._corpus.names[source]}, copy {copy}"

    def identity(self) -> SourceIdentity:
        """Return the identity of the source; call this after reading `tables` to the end."""
        return self._seen.identity() if self._survey is None else self._survey.identity
