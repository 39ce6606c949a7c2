"""Values of the pieces that partitions and regions leave over, which travel in notes to the tasks that pack them.

    shard of a partition ──▶ values ──▶ shards of the pool
                                │
                                └──▶ region ──▶ values ──▶ shards of the pool, made of what regions left over ...

In object storage, a shard of the pool would need a small request for each of its segments. The task that writes the
shard of a partition has read the blocks around the pieces that it leaves over, so it copies their values into
a note. A region reads the notes of its partitions, and copies the values of what it leaves over itself into another
note. Values that are in no note, or in a damaged one, are read from the source: the rows do not depend on the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.engine import Engine
from packer.gather import Spans, is_remote
from packer.notes import Note, run_stage
from packer.pipeline.partition_plan import PartitionPlan
from packer.pipeline.regions import PoolStage, load
from packer.pipeline.segment_reader import MappedDocuments
from packer.plan.pieces import Located, Shards, pieces_of
from packer.shards.row_format import RowFormat
from packer.shards.segment_values import SegmentValues
from packer.stores.temporary_files import temporary_memory

Copy: TypeAlias = Callable[[Located, NDArray[np.int64], SegmentValues], None]
"""Function that copies the values of segments from the source to these places. Can be pickled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftoverValues:
    """Notes with the values of leftovers; can be pickled."""

    plan: PartitionPlan
    """Plan of the shards."""

    row_format: RowFormat
    """Format of the rows."""

    labels: bool
    """Whether the source has labels."""

    @property
    def own_shards(self) -> int:
        """Number of the shards of partitions, which leave values; those of the pool, which need them, follow."""
        return self.plan.own_shards

    def left_by(self, shard: int) -> Located:
        """Return the pieces that the partition of a shard leaves over."""
        stage = self.plan.stages[0].below.stage
        return _located(load(self.plan.notes, f"{stage}-{self.plan.partition_of(shard)}").arrays["left"])

    def save(self, shard: int, copy: Copy) -> None:
        """Note the values of the pieces that the partition of a shard leaves over.

        Raises:
            SourceError: a token or label of the source is out of range.
        """
        left = self.left_by(shard)
        values = self._room(left)
        copy(left, _places(left), values)
        name = f"{_values(self.plan.stages[0].below.stage)}-{self.plan.partition_of(shard)}"
        self.plan.notes.save(name, _note(left, values))

    def pass_on(self, engine: Engine, copy: Copy) -> None:
        """Note the values of the pieces that regions leave over, level by level, from those left over below.

        Raises:
            SourceError: a token or label of the source is out of range.
        """
        wanted = {stage.below.stage for stage in self.plan.stages}
        for stage in self.plan.stages:
            if stage.name in wanted:
                task = partial(self.passed_on, stage, copy)
                run_stage(self.plan.notes, _values(stage.name), range(len(stage.below)), task, engine=engine)

    def passed_on(self, stage: PoolStage, copy: Copy, region: int) -> Note:
        """Return a note with the values of the pieces that a region leaves over: a task."""
        left = _located(load(self.plan.notes, stage.names[region]).arrays["left"])
        values = self._room(left)
        self._collect(left, [(stage, region)], copy, values)
        return _note(left, values)

    def collected(self, shard: int, segments: Located, copy: Copy) -> SegmentValues:
        """Return the values of all segments of a shard of the pool, which lie in temporary files.

        Raises:
            SourceError: a token or label of the source is out of range.
            PackerError: the disk of temporary files is full.
        """
        values = self._room(segments, temporary_memory)
        self._collect(segments, [(part.stage, part.region) for part in self.plan.pool_parts(shard)], copy, values)
        return values

    def _room(self, segments: Located, memory: Callable[[int], Any] = bytearray) -> SegmentValues:
        tokens = int(segments.lengths.sum())
        return SegmentValues.empty(tokens, self.row_format, labels=self.labels, memory=memory)

    def _collect(
        self, segments: Located, regions: Sequence[tuple[PoolStage, int]], copy: Copy, out: SegmentValues
    ) -> None:
        """Write the values of segments that were left over in some regions, one segment after the other."""
        places, finder = _places(segments), _Finder(segments)
        missing = np.ones(len(places), bool)
        names = [
            f"{_values(stage.below.stage)}-{number}"
            for stage, region in regions
            for number in stage.below.numbers(region)
        ]
        for note in self.plan.notes.load_all(names):
            if note is None:
                continue
            pieces = _located(note.arrays["pieces"])
            here, found = finder.find(pieces)
            source = SegmentValues.from_arrays(note.arrays).columns(pieces.starts, pieces.lengths)
            out.fill(source, Spans(here, pieces.starts[here], pieces.lengths[here], places[found]))
            missing[found] = False
        if missing.any():
            copy(_some(segments, missing), places[missing], out)


def leftover_values(mapped: MappedDocuments, shards: Shards, row_format: RowFormat) -> LeftoverValues | None:
    """Return the notes with the values of leftovers, if they save requests.

    Args:
        mapped: documents that are packed.
        shards: plan of the shards; only partitions leave pieces over.
        row_format: format of the rows.
    """
    table = mapped.table
    if row_format.index_only or not isinstance(shards, PartitionPlan):
        return None
    if not shards.pool_packs or not is_remote(table.input_ids):
        return None
    return LeftoverValues(plan=shards, row_format=row_format, labels=table.labels is not None)


class _Finder:
    """Finds pieces among segments by document and first token.

    Args:
        segments: segments to find, no two with the same document and first token.
    """

    def __init__(self, segments: Located) -> None:
        self._documents = np.unique(segments.documents)
        keys = self._keys(np.searchsorted(self._documents, segments.documents), segments.starts)
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]

    def find(self, pieces: Located) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of these pieces are among the segments, and which segments they are."""
        if not len(self._sorted):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        of_document = np.minimum(np.searchsorted(self._documents, pieces.documents), len(self._documents) - 1)
        keys = self._keys(of_document, pieces.starts)
        places = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        here = np.flatnonzero((self._documents[of_document] == pieces.documents) & (self._sorted[places] == keys))
        return here, self._order[places[here]]

    @staticmethod
    def _keys(of_document: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a number for each piece; the starts, and the number of documents of a shard, are below 2**31."""
        keys: NDArray[np.int64] = of_document << 31 | starts
        return keys


def _values(stage: str) -> str:
    """Return the name of the stage of the notes with the values of what another stage leaves over."""
    return f"{stage}-values"


def _note(pieces: Located, values: SegmentValues) -> Note:
    named = pieces_of(pieces.documents, pieces.starts, pieces.lengths)
    return Note(facts={}, arrays={"pieces": named, **values.arrays()})


def _located(pieces: NDArray[Any]) -> Located:
    """Return pieces, an array of PIECE, as the segments of a single row."""
    documents, starts, lengths = (pieces[name].astype(np.int64) for name in ("document", "start", "length"))
    return Located(documents=documents, starts=starts, lengths=lengths, row_starts=np.array([0, len(pieces)]))


def _some(segments: Located, chosen: NDArray[np.bool_]) -> Located:
    documents, starts, lengths = (each[chosen] for each in (segments.documents, segments.starts, segments.lengths))
    return Located(documents=documents, starts=starts, lengths=lengths, row_starts=np.array([0, len(documents)]))


def _places(segments: Located) -> NDArray[np.int64]:
    """Return the index of the first value of each segment, where they lie one after the other."""
    places: NDArray[np.int64] = np.cumsum(segments.lengths) - segments.lengths
    return places
