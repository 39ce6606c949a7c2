"""Values of the pieces that partitions and regions leave over, passed in notes to the tasks that pack them.

    shard of a partition ──values──▶ shards of the pool
              │
              └──values──▶ region ──values──▶ shards of the pool
                             │
                             └──values──▶ region of regions ...

From object storage, a shard of the pool would need a small request for each of its segments. The task that writes the
shard of a partition has read the blocks with the pieces that it leaves over, so it copies their values into notes: one
for each shard of the pool that takes some of the pieces, and one for the region, which has the others. A region that
leaves pieces over does the same. Values that are in no note, or in a damaged one, are read from the source:
the rows do not depend on the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.engine import Engine
from packer.gather import Spans, is_remote
from packer.notes import Note, run_stage
from packer.plan.rows import Plan
from packer.planning.partition_plan import PartitionPlan
from packer.planning.regions import PoolStage, load
from packer.shards.row_format import RowFormat
from packer.shards.segment_values import SegmentValues
from packer.sources.corpus import Documents
from packer.stores.temporary_files import temporary_memory

Copy: TypeAlias = Callable[[NDArray[Any], NDArray[np.int64], SegmentValues], None]
"""Function that copies the values of segments from the source to these places. Can be pickled."""

_REGION = -1  # in place of a shard of the pool: the region that leaves a piece over
_RECENT = 2  # notes of regions that are kept in memory: the shards of a region are written one after the other


@dataclass(frozen=True, kw_only=True)
class LeftoverValues:
    """Notes with the values of leftovers. Can be pickled."""

    plan: PartitionPlan
    """Plan of the shards."""

    row_format: RowFormat
    """Format of the rows."""

    labels: bool
    """Whether the source has labels."""

    @property
    def _partitions(self) -> str:
        """Name of the stage in which partitions left pieces over."""
        return self.plan.stages[0].below.stage

    def left_by(self, shard: int) -> NDArray[Any]:
        """Return the pieces that the partition of a shard leaves over."""
        return self._left(self._partitions, self.plan.partition_of(shard))

    def save(self, shard: int, left: NDArray[Any], copy: Copy) -> None:
        """Note the values of the pieces that the partition of a shard leaves over.

        Args:
            shard: number of the shard.
            left: what `left_by` returned.
            copy: reads the source.

        Raises:
            SourceError: a token or label of the source is out of range.
        """
        partition = self.plan.partition_of(shard)
        for_region = self._deal(self.plan.stages[0], partition, left, partial(_copy_all, copy))
        if len(for_region.arrays["pieces"]):
            self.plan.notes.save(f"{_stage(self._partitions, _REGION)}-{partition}", for_region)

    def pass_on(self, engine: Engine, copy: Copy) -> None:
        """Note the values of all other pieces: those of partitions without a shard, then of regions, level by level.

        Raises:
            SourceError: a token or label of the source is out of range.
        """
        without_shard = np.flatnonzero(self.plan.own_rows == 0).tolist()
        self._run(self._partitions, without_shard, partial(self.left_over, copy), engine)
        for stage, above in pairwise(self.plan.stages):
            self._run(stage.name, range(len(stage.below)), partial(self.passed_on, stage, above, copy), engine)

    def left_over(self, copy: Copy, partition: int) -> Note:
        """Note the values of the pieces that a partition leaves over; return the note for the region."""
        left = self._left(self._partitions, partition)
        return self._deal(self.plan.stages[0], partition, left, partial(_copy_all, copy))

    def passed_on(self, stage: PoolStage, above: PoolStage, copy: Copy, region: int) -> Note:
        """Note the values of the pieces that a region leaves over; return the note for the region above.

        Args:
            stage: stage of the region.
            above: stage whose regions take the pieces.
            copy: reads values that are in no note.
            region: number of the region.
        """
        left = self._left(stage.name, region)
        return self._deal(above, region, left, partial(self._collect, [(stage, region)], _REGION, copy))

    def collected(self, shard: int, segments: NDArray[Any], copy: Copy) -> SegmentValues:
        """Return the values of all segments of a shard of the pool, in memory mapped from temporary files.

        Raises:
            SourceError: a token or label of the source is out of range.
            PackerError: the disk of temporary files is full.
        """
        values = self._room(segments, temporary_memory)
        self._collect(
            [(part.stage, part.region) for part in self.plan.pool_parts(shard)], shard, copy, segments, values
        )
        return values

    def _deal(
        self, stage: PoolStage, number: int, left: NDArray[Any], fill: Callable[[NDArray[Any], SegmentValues], None]
    ) -> Note:
        """Save a note for each shard of the pool that takes some of the pieces left over; return that for the region.

        Task `number` of the stage below left them over. `fill` writes the values of pieces, one after the other.
        """
        region = self._recent(stage.names[number // stage.below.size])
        here, found = _Finder(left).find(region.arrays["pieces"])
        rows = np.searchsorted(region.arrays["row_starts"], here, side="right") - 1
        takers = np.full(len(left), _REGION)
        takers[found] = self.plan.pool_shards(stage, number // stage.below.size, rows)
        order = np.argsort(takers, kind="stable")
        left, takers = left[order], takers[order]
        values = self._room(left)
        fill(left, values)
        ends = np.append(_places(left), left["length"].sum(dtype=np.int64))
        notes = {}
        for taker in [_REGION, *np.unique(takers).tolist()]:
            first, last = np.searchsorted(takers, [taker, taker + 1])
            arrays = {"pieces": left[first:last], **values.arrays(ends[first], ends[last])}
            notes[f"{_stage(stage.below.stage, taker)}-{number}"] = Note(facts={}, arrays=arrays)
        for_region = notes.pop(f"{_stage(stage.below.stage, _REGION)}-{number}")
        self.plan.notes.save_all(notes)
        return for_region

    def _left(self, stage: str, number: int) -> NDArray[Any]:
        """Return the pieces that a task of a stage leaves over."""
        return load(self.plan.notes, f"{stage}-{number}").arrays["left"]

    def _run(self, left_by: str, numbers: Sequence[int], task: Callable[[int], Note], engine: Engine) -> None:
        """Run tasks that return notes for regions."""
        if len(numbers):
            run_stage(self.plan.notes, _stage(left_by, _REGION), numbers, task, engine=engine)

    def _collect(
        self,
        regions: Sequence[tuple[PoolStage, int]],
        taker: int,
        copy: Copy,
        segments: NDArray[Any],
        out: SegmentValues,
    ) -> None:
        """Write the values of segments that were left over below some regions, one after the other."""
        places, finder = _places(segments), _Finder(segments)
        missing = np.ones(len(places), bool)
        names = [
            f"{_stage(stage.below.stage, taker)}-{number}"
            for stage, region in regions
            for number in stage.below.numbers(region)
        ]
        for note in self.plan.notes.load_all(names):
            if note is None:
                continue
            pieces = note.arrays["pieces"]
            here, found = finder.find(pieces)
            starts, lengths = pieces["start"].astype(np.int64), pieces["length"].astype(np.int64)
            source = SegmentValues.from_arrays(note.arrays).columns(starts, lengths)
            out.fill(source, Spans(here, starts[here], lengths[here], places[found]))
            missing[found] = False
        if missing.any():
            copy(segments[missing], places[missing], out)

    def _room(self, segments: NDArray[Any], memory: Callable[[int], Any] = bytearray) -> SegmentValues:
        tokens = int(segments["length"].sum(dtype=np.int64))
        return SegmentValues.empty(tokens, self.row_format, labels=self.labels, memory=memory)

    @cached_property
    def _recent(self) -> Callable[[str], Note]:
        """Function that loads the note of a region."""
        return lru_cache(maxsize=_RECENT)(partial(load, self.plan.notes))

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "row_format": self.row_format, "labels": self.labels}


def leftover_values(documents: Documents, plan: Plan, row_format: RowFormat) -> LeftoverValues | None:
    """Return the notes with the values of leftovers, if they save requests.

    Args:
        documents: documents that are packed.
        plan: plan of the rows; only partitions leave pieces over.
        row_format: format of the rows.
    """
    table = documents.table
    if row_format.index_only or not isinstance(plan, PartitionPlan):
        return None
    if not plan.totals.pool_rows or not is_remote(table.input_ids):
        return None
    return LeftoverValues(plan=plan, row_format=row_format, labels=table.labels is not None)


class _Finder:
    """Finds pieces among segments by document and first token.

    Args:
        segments: segments to find, no two with the same document and first token.
    """

    def __init__(self, segments: NDArray[Any]) -> None:
        self._documents = np.unique(segments["document"])
        keys = self._keys(np.searchsorted(self._documents, segments["document"]), segments["start"])
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]

    def find(self, pieces: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of these pieces are among the segments, and which segments they are."""
        if not len(self._sorted):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        of_document = np.minimum(np.searchsorted(self._documents, pieces["document"]), len(self._documents) - 1)
        keys = self._keys(of_document, pieces["start"])
        places = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        here = np.flatnonzero((self._documents[of_document] == pieces["document"]) & (self._sorted[places] == keys))
        return here, self._order[places[here]]

    @staticmethod
    def _keys(of_document: NDArray[np.int64], starts: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return a number for each piece; the starts, and the number of documents of a shard, are below 2**31."""
        keys: NDArray[np.int64] = of_document << 31 | starts
        return keys


def _places(pieces: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of the first token of each piece if they lie one after the other: shape (pieces,)."""
    places: NDArray[np.int64] = np.cumsum(pieces["length"], dtype=np.int64) - pieces["length"]
    return places


def _copy_all(copy: Copy, segments: NDArray[Any], out: SegmentValues) -> None:
    """Copy the values of segments, one after the other."""
    copy(segments, _places(segments), out)


def _stage(left_by: str, taker: int) -> str:
    """Return the name of the stage of the notes with values that `taker`, a shard of the pool or _REGION, takes."""
    return f"{left_by}-values" if taker == _REGION else f"{left_by}-values-{taker}"
