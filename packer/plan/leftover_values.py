"""Values of the pieces that partitions and regions leave over, passed in checkpoints to the tasks that pack them.

    shard of a partition ──values──▶ shards of the pool
              │
              └──values──▶ region ──values──▶ shards of the pool
                             │
                             └──values──▶ region of regions ...

From object storage, a shard of the pool would need a small request for each of its segments. The task that writes the
shard of a partition has read the blocks with the pieces that it leaves over, so it copies their values into
checkpoints: one for each shard of the pool that takes some of the pieces, and one for the region, which has the
others. A region that leaves pieces over does the same. Values that are in no checkpoint, or in a damaged one, are
read from the source:
the rows do not depend on the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.checkpoints import Checkpoint, run_stage
from packer.engine import Engine
from packer.plan.partition_tasks import PartitionPlan, Stage
from packer.plan.rows import Plan
from packer.shards.row_format import RowFormat
from packer.shards.writer import Values, as_columns, copy_values, empty_values
from packer.sources.read_documents import Documents
from packer.stores.local_files import temporary_memory
from packer.token_memory import Spans, lies_in_store

Copy: TypeAlias = Callable[[NDArray[Any], NDArray[np.int64], Values], None]
"""Function that copies the values of segments from the source to these places. Can be pickled."""

_VALUES = "values of "  # begins the names of the arrays of values
_REGION = -1  # in place of a shard of the pool: the region that leaves a piece over


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftoverValues:
    """Checkpoints with the values of leftovers. Can be pickled."""

    plan: PartitionPlan
    row_format: RowFormat

    labels: bool
    """Whether the source has labels."""

    def left_by(self, shard: int) -> NDArray[Any] | None:
        """Return the pieces that a partition leaves over if this is its first shard, which saves their values."""
        part = self.plan.own_part(shard)
        return None if part.begin else self.plan.stages[0].checkpoint(part.number).arrays["left"]

    def save(self, shard: int, left: NDArray[Any], copy: Copy) -> None:
        """Save the values of the pieces that the partition of a shard leaves over, which `left_by` returned."""
        partition = self.plan.own_part(shard).number
        for_region = self._deal(0, partition, left, copy)
        if len(for_region.arrays["pieces"]):
            self.plan.checkpoints.save(f"{_stage(self.plan.stages[0], _REGION)}-{partition}", for_region)

    def pass_on(self, engine: Engine, copy: Copy) -> None:
        """Save the values of all other pieces: those of partitions without a shard, then of regions, level by level."""
        for level, stage in enumerate(self.plan.stages[:-1]):
            numbers = np.arange(len(stage.rows)) if level else np.flatnonzero(stage.rows == 0)
            if len(numbers):
                task = partial(self.passed_on, level, copy)
                run_stage(self.plan.checkpoints, _stage(stage, _REGION), numbers.tolist(), task, engine=engine)

    def passed_on(self, level: int, copy: Copy, number: int) -> Checkpoint:
        """Save the values of the pieces that a task of stage `level` leaves over; return the one for the region."""
        return self._deal(level, number, self.plan.stages[level].checkpoint(number).arrays["left"], copy)

    def collected(self, shard: int, segments: NDArray[Any], copy: Copy) -> Values:
        """Return the values of all segments of a shard of the pool, in memory mapped from temporary files.

        A token or label that is out of range is a SourceError; a full disk of temporary files is a PackerError.
        """
        values = self._room(segments, temporary_memory)
        regions = [(part.level, part.number) for part in self.plan.pool_parts(shard)]
        self._collect(regions, shard, copy, segments, values)
        return values

    def _deal(self, level: int, number: int, left: NDArray[Any], copy: Copy) -> Checkpoint:
        """Save a checkpoint for each shard of the pool that takes pieces left over; return that for the region.

        Task `number` of stage `level` left them over.
        """
        stage, region = self.plan.stages[level], number // self.plan.stages[level].size
        packed = self.plan.stages[level + 1].checkpoint(region).arrays
        _, here, found = np.intersect1d(_keys(packed["pieces"]), _keys(left), assume_unique=True, return_indices=True)
        rows = np.searchsorted(packed["row_starts"], here, side="right") - 1
        takers = np.full(len(left), _REGION)
        takers[found] = self.plan.pool_shards(level + 1, region, rows)
        order = np.argsort(takers, kind="stable")
        left, takers = left[order], takers[order]
        values = self._room(left)
        if level:
            self._collect([(level, number)], _REGION, copy, left, values)
        else:
            copy(left, _places(left), values)
        ends = np.append(_places(left), left["length"].sum(dtype=np.int64))
        checkpoints = {}
        for taker in [_REGION, *np.unique(takers).tolist()]:
            first, last = np.searchsorted(takers, [taker, taker + 1])
            arrays = {f"{_VALUES}{name}": each[ends[first] : ends[last]] for name, each in values.items()}
            arrays["pieces"] = left[first:last]
            checkpoints[f"{_stage(stage, taker)}-{number}"] = Checkpoint(facts={}, arrays=arrays)
        for_region = checkpoints.pop(f"{_stage(stage, _REGION)}-{number}")
        self.plan.checkpoints.save_all(checkpoints)
        return for_region

    def _collect(
        self, regions: Sequence[tuple[int, int]], taker: int, copy: Copy, segments: NDArray[Any], out: Values
    ) -> None:
        """Write the values of segments that were left over below regions, (level, number), one after the other."""
        if not len(segments):
            return
        places, keys = _places(segments), _keys(segments)
        order = np.argsort(keys)
        missing = np.ones(len(places), bool)
        below = [(self.plan.stages[level - 1], region) for level, region in regions]
        names = [f"{_stage(stage, taker)}-{number}" for stage, region in below for number in stage.numbers(region)]
        for checkpoint in self.plan.checkpoints.load_all(names):
            if checkpoint is None:
                continue
            pieces = checkpoint.arrays["pieces"]
            found = order[np.searchsorted(keys, _keys(pieces), sorter=order) % len(order)]
            here = np.flatnonzero(keys[found] == _keys(pieces))
            starts, lengths = pieces["start"].astype(np.int64), pieces["length"].astype(np.int64)
            values = {name.removeprefix(_VALUES): each for name, each in checkpoint.arrays.items() if name != "pieces"}
            spans = Spans(here, starts[here], lengths[here], places[found[here]])
            copy_values(as_columns(values, starts, lengths), spans, out)
            missing[found[here]] = False
        if missing.any():
            copy(segments[missing], places[missing], out)

    def _room(self, segments: NDArray[Any], memory: Callable[[int], Any] = bytearray) -> Values:
        tokens = int(segments["length"].sum(dtype=np.int64))
        return empty_values(tokens, self.row_format, labels=self.labels, memory=memory)


def leftover_values(documents: Documents, plan: Plan, row_format: RowFormat) -> LeftoverValues | None:
    """Return the checkpoints with the values of leftovers, if they save requests; only partitions leave pieces over."""
    table = documents.table
    if row_format.index_only or not isinstance(plan, PartitionPlan):
        return None
    if not plan.totals.pool_rows or not lies_in_store(table.input_ids):
        return None
    return LeftoverValues(plan=plan, row_format=row_format, labels=table.labels is not None)


def _keys(pieces: NDArray[Any]) -> NDArray[np.complex128]:
    """Return (document, start) of each piece as a complex number: sorted by document first, and exact below 2**53."""
    keys: NDArray[np.complex128] = pieces["document"] + 1j * pieces["start"]
    return keys


def _places(pieces: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of the first token of each piece if they lie one after the other: shape (pieces,)."""
    places: NDArray[np.int64] = np.cumsum(pieces["length"], dtype=np.int64) - pieces["length"]
    return places


def _stage(left_by: Stage, taker: int) -> str:
    """Return the name of the stage whose checkpoints have the values that `taker`, a shard or _REGION, takes."""
    return f"{left_by.name}-values" if taker == _REGION else f"{left_by.name}-values-{taker}"
