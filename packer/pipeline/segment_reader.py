"""Documents by number: lengths and segments of any part of a source, without holding those of the whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.gather import lengths_of
from packer.options import PackOptions
from packer.pipeline.apply_options import cut_lengths_of
from packer.pipeline.read_documents import Documents
from packer.pipeline.turns import split_at_turns
from packer.pipeline.untrained import without_untrained
from packer.plan import Segments
from packer.sources import TokenTable

CHUNK = 1 << 19
"""Documents that a pass over all of them looks at together; even, so that pairs are not separated."""

_LOOKED_UP = 1 << 18  # documents


class SegmentReader(Protocol):
    """Cuts the documents of a source, which are known by their numbers. Can be pickled."""

    @property
    def documents(self) -> int:
        """The number of documents."""

    def segments(self, ranges: NDArray[np.int64], *, threads: int = 1) -> Segments:
        """Cut the documents of some ranges, one after the other, as the options say.

        Args:
            ranges: (ranges, 2) the first document of each and the one after its last, ascending.
            threads: to look through the lengths with.
        """


def chunks(reader: SegmentReader) -> range:
    """The first document of every chunk."""
    return range(0, reader.documents, CHUNK)


def read_chunk(reader: SegmentReader, first: int) -> Segments:
    """Cut the documents of the chunk that begins with document `first`."""
    return reader.segments(np.array([[first, min(first + CHUNK, reader.documents)]]))


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthsReader:
    """Documents known by their lengths alone: an array, in memory or mapped from a file."""

    lengths: NDArray[np.int32]
    """(documents,) tokens of each."""

    options: PackOptions
    """How they are cut."""

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.lengths)

    def segments(self, ranges: NDArray[np.int64], *, threads: int = 1) -> Segments:
        """Cut the documents of some ranges; see `SegmentReader`."""
        parts = [self.lengths[first:last] for first, last in ranges]
        lengths = np.array(parts[0]) if len(parts) == 1 else np.concatenate([np.zeros(0, np.int32), *parts])
        return cut_lengths_of(
            self.options, lengths, threads=threads, first_document=int(ranges[0, 0]) if len(ranges) else 0
        )


@dataclass(frozen=True, kw_only=True)
class MappedDocuments:
    """Documents of a mapped source and their columns by address; addresses hold in one process and are not pickled."""

    documents: Documents
    """Every document, checked."""

    @cached_property
    def table(self) -> TokenTable:
        """The columns of all documents, made on first use; `lengths` is empty."""
        return self.documents.table()

    def __getstate__(self) -> dict[str, Any]:
        return {"documents": self.documents}


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceReader:
    """The documents of a mapped source, whose lengths are looked up where they lie."""

    mapped: MappedDocuments
    """The documents."""

    options: PackOptions
    """How they are cut."""

    @property
    def documents(self) -> int:
        """The number of documents."""
        return self.mapped.documents.identity.documents

    def segments(self, ranges: NDArray[np.int64], *, threads: int = 1) -> Segments:
        """Cut the documents of some ranges; see `SegmentReader`.

        Raises:
            SourceError: a document is longer than max_len, cannot be split at turns, or has nothing to train, and the
                options make that an error.
        """
        lengths = self._lengths(ranges)
        first = int(ranges[0, 0]) if len(ranges) else 0
        segments = cut_lengths_of(self.options, lengths, threads=threads, first_document=first)
        if self.options.split_at == "tokens" and self.options.untrained == "keep":
            return segments
        documents = documents_of(ranges, np.arange(len(lengths)))
        table = self.mapped.table
        part = replace(table, lengths=lengths, lists=lists_of(table, documents), first_document=0)

        def describe(local: int) -> str:
            return self.mapped.documents.describe(int(documents[local]))

        segments = split_at_turns(segments, part, self.options, describe)
        return without_untrained(segments, part, self.options, describe)

    def _lengths(self, ranges: NDArray[np.int64]) -> NDArray[np.int32]:
        """Look up the lengths of documents, some at a time: 4 bytes each are held, and not their 8-byte numbers."""
        table = self.mapped.table
        lengths = np.empty(int(np.diff(ranges).sum()), np.int32)
        done = 0
        for begin, end in ranges.tolist():
            for first in range(begin, end, _LOOKED_UP):
                documents = np.arange(first, min(first + _LOOKED_UP, end))
                out = lengths[done : done + len(documents)]
                lengths_of(table.input_ids.addresses, lists_of(table, documents), out)
                done += len(documents)
        return lengths


def documents_of(ranges: NDArray[np.int64], local: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Number documents of some ranges in the whole source: ranges [[3, 5], [9, 11]], local [0, 2, 3] -> [3, 9, 10]."""
    counts = np.diff(ranges).reshape(-1)
    ends = np.cumsum(counts)
    at = np.searchsorted(ends, local, side="right")
    found: NDArray[np.int64] = ranges[:, 0][at] + local - (ends - counts)[at]
    return found


def lists_of(table: TokenTable, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The list of the table's columns that each of these documents is."""
    return documents if table.lists is None else table.lists[documents].astype(np.int64)
