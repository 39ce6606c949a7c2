"""Read lengths and segments of any range of documents, without holding those of the whole source."""

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
from packer.pipeline.segments.packable_segments import cut_table
from packer.plan.located_rows import documents_of
from packer.plan.segments import Segments
from packer.sources.documents import TokenTable

CHUNK = 1 << 19
"""Documents cut together in a pass over all of them; even, so that pairs are not separated."""

_READ_TOGETHER = 1 << 18  # documents whose lengths are looked up together


class SegmentReader(Protocol):
    """Cuts ranges of documents into segments. Can be pickled."""

    @property
    def documents(self) -> int:
        """Number of documents."""

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of some ranges, one range after the other.

        Args:
            ranges: (ranges, 2) first document of each range and the one after its last, ascending.
        """


def chunks(reader: SegmentReader) -> range:
    """Return the first document of every chunk."""
    return range(0, reader.documents, CHUNK)


def read_chunk(reader: SegmentReader, first: int) -> Segments:
    """Cut the documents of the chunk that begins with document `first`."""
    return reader.segments(np.array([[first, min(first + CHUNK, reader.documents)]]))


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthsReader:
    """Reader of documents of which only the lengths are known."""

    lengths: NDArray[np.int32]
    """(documents,) tokens of each document, in memory or mapped from a file."""

    options: PackOptions
    """Options of the pack, which say how documents are cut."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of some ranges; see `SegmentReader`."""
        parts = [self.lengths[first:last] for first, last in ranges]
        lengths = np.array(parts[0]) if len(parts) == 1 else np.concatenate([np.zeros(0, np.int32), *parts])
        return cut_lengths_of(self.options, lengths, first_document=int(ranges[0, 0]) if len(ranges) else 0)


@dataclass(frozen=True, kw_only=True)
class MappedDocuments:
    """Documents of a mapped source and the addresses of their columns, which are not pickled but computed again."""

    documents: Documents
    """All documents, checked."""

    @cached_property
    def table(self) -> TokenTable:
        """Columns of all documents, by address; `lengths` is empty."""
        return self.documents.table()

    def __getstate__(self) -> dict[str, Any]:
        return {"documents": self.documents}


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceReader:
    """Reader of a mapped source, whose lengths are looked up in the mapped files."""

    mapped: MappedDocuments
    """Documents of the source."""

    options: PackOptions
    """Options of the pack, which say how documents are cut."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.mapped.documents.identity.documents

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of some ranges; see `SegmentReader`.

        Raises:
            SourceError: a document is too long, cannot be split at turns, or has an untrained segment, and the options
                make that an error.
        """
        lengths = self._lengths(ranges)
        first = int(ranges[0, 0]) if len(ranges) else 0
        if self.options.split_at == "tokens" and self.options.untrained == "keep":
            return cut_lengths_of(self.options, lengths, first_document=first)
        documents = documents_of(ranges, np.arange(len(lengths)))
        table = self.mapped.table
        part = replace(table, lengths=lengths, lists=table.lists_of(documents), first_document=0)

        def describe(local: int) -> str:
            return self.mapped.documents.describe(int(documents[local]))

        return cut_table(part, self.options, describe, first_document=first)

    def _lengths(self, ranges: NDArray[np.int64]) -> NDArray[np.int32]:
        """Look up the lengths of documents, a part at a time, because their numbers take twice as many bytes."""
        table = self.mapped.table
        lengths = np.empty(int(np.diff(ranges).sum()), np.int32)
        done = 0
        for begin, end in ranges.tolist():
            for first in range(begin, end, _READ_TOGETHER):
                documents = np.arange(first, min(first + _READ_TOGETHER, end))
                out = lengths[done : done + len(documents)]
                lengths_of(table.input_ids.addresses, table.lists_of(documents), out)
                done += len(documents)
        return lengths
