"""Cut any range of documents into segments, without holding those of the whole source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.checkpoints import Checkpoints
from packer.engine import DecodePool, Engine
from packer.manifest_fields import Account
from packer.options import RowOptions
from packer.plan.cutting import cut_lengths_of, cut_table, require_segments
from packer.plan.segments import Segments, documents_in
from packer.progress import Progress, silent
from packer.sources.read_documents import Documents
from packer.token_memory import lengths_of

CHUNK = 1 << 19
"""Documents cut together in a pass over all of them."""


_READ_TOGETHER = 1 << 18  # documents whose lengths are looked up together


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentReader:
    """Cuts ranges of documents into segments. Can be pickled."""

    options: RowOptions
    documents: int

    source: Documents | None = None
    """Documents of a mapped source; None if only their lengths are known."""

    lengths: NDArray[np.int32] | None = None
    """(documents,) tokens of each document, in memory or mapped; None if they are looked up in the source."""

    def segments(self, ranges: NDArray[np.int64]) -> Segments:
        """Cut the documents of some ranges, (first document, one after the last), one range after the other.

        `ranges` is int64, of shape (ranges, 2), ascending. Raises a SourceError for a document that the options forbid.
        """
        lengths = self.read_lengths(ranges)
        if self.source is None or not self.options.reads_to_cut:
            return cut_lengths_of(self.options, lengths, ranges)
        source, documents = self.source, documents_in(ranges, np.arange(len(lengths)))
        part = replace(source.table, lengths=lengths, lists=source.table.lists_of(documents), first_document=0)
        return cut_table(part, self.options, lambda local: source.describe(int(documents[local])), ranges)

    def all_segments(self) -> Segments:
        """Cut all documents; raise a SourceError if nothing is left to pack, and as `segments` does."""
        lengths = self.lengths
        if lengths is None:
            lengths = self.read_lengths(np.array([[0, self.documents]]))
        if self.source is None or not self.options.reads_to_cut:
            segments = cut_lengths_of(self.options, lengths)
        else:
            segments = cut_table(replace(self.source.table, lengths=lengths), self.options, self.source.describe)
        require_segments(segments.account, int(segments.histogram.sum()), self.options)
        return segments

    def read_lengths(self, ranges: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the lengths of the documents of some ranges: int32, in their order."""
        lengths, done = np.empty(int(np.diff(ranges).sum()), np.int32), 0
        for begin, end in ranges.tolist():
            for first in range(begin, end, _READ_TOGETHER):  # their numbers take twice as many bytes
                documents = np.arange(first, min(first + _READ_TOGETHER, end))
                out = lengths[done : done + len(documents)]
                if self.lengths is not None:
                    out[:] = self.lengths[documents]
                elif self.source is not None:
                    table = self.source.table
                    lengths_of(table.input_ids.addresses, table.lists_of(documents), out)
                done += len(documents)
        return lengths


class Chunk(NamedTuple):
    """Consecutive documents of a pass over all of them."""

    account: Account
    segments: Segments
    histogram: NDArray[np.int64]
    values: NDArray[Any]
    """What the function of `each_chunk` makes of the segments."""


def each_chunk(reader: SegmentReader, values_of: Callable[[Segments], NDArray[Any]], threads: int) -> Iterator[Chunk]:
    """Cut all documents, chunk by chunk in some threads, and yield the chunks in order."""

    def read(first: int) -> Chunk:
        segments = reader.segments(np.array([[first, min(first + CHUNK, reader.documents)]]))
        return Chunk(segments.account, segments, segments.histogram, values_of(segments))

    with closing(DecodePool(threads)) as pool:
        yield from pool.in_order(read, range(0, reader.documents, CHUNK))


@dataclass(frozen=True, kw_only=True, slots=True)
class Planning:
    """Documents to plan, and what runs the tasks of the plan."""

    reader: SegmentReader

    rows_per_shard: int
    """Largest number of rows of a shard."""

    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    """Store of the results of tasks; a task that has left a checkpoint does not run again."""

    engine: Engine = field(default_factory=Engine)
    progress: Progress = silent
