"""Values of the pieces that partitions leave over, passed in checkpoints to the tasks that pack them.

From object storage, a shard of the pool would need a small request for each of its segments. The task that writes the
first shard of a partition has read the blocks with the pieces that the partition leaves over, so it copies their values
into a checkpoint for each shard of the pool that its region makes of them. All others, which are few, are read from the
source: those that a higher region packs, and those in a checkpoint that is missing or damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.engines.checkpoints import Checkpoint
from packer.plan.partition_tasks import PartitionPlan
from packer.plan.rows import Plan
from packer.shards.row_format import RowFormat
from packer.shards.writer import Values, as_columns, copy_values, empty_values
from packer.sources.read_documents import Documents
from packer.stores.local_files import temporary_memory
from packer.token_memory import Spans, lies_in_store

Copy: TypeAlias = Callable[[NDArray[Any], NDArray[np.int64], Values], None]
"""Function that copies the values of segments from the source to these places. Can be pickled."""

_VALUES = "values of "  # begins the names of the arrays of values


class Leftovers(NamedTuple):
    """Pieces that a partition leaves over and its region packs, in the order of the shards that they are in."""

    partition: int
    pieces: NDArray[Any]  # (pieces,) of PIECE
    shards: NDArray[np.int64]  # (pieces,) shard of the pool that has each piece, ascending


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftoverValues:
    """Checkpoints with the values of leftovers. Can be pickled."""

    plan: PartitionPlan
    row_format: RowFormat

    labels: bool
    """Whether the source has labels."""

    def left_by(self, shard: int) -> Leftovers | None:
        """Return what a partition leaves over if this is its first shard, which saves the values."""
        part = self.plan.own_part(shard)
        if part.begin:
            return None
        partitions, regions = self.plan.stages[:2]
        left = partitions.checkpoint(part.number).arrays["left"]
        region = part.number // partitions.size
        packed = regions.checkpoint(region).arrays
        _, here, found = np.intersect1d(_keys(packed["pieces"]), _keys(left), assume_unique=True, return_indices=True)
        rows = np.searchsorted(packed["row_starts"], here, side="right") - 1
        shards = self.plan.pool_shards(region, rows)
        order = np.argsort(shards, kind="stable")
        return Leftovers(part.number, left[found[order]], shards[order])

    def save(self, left: Leftovers, copy: Copy) -> None:
        """Save the values of pieces, in a checkpoint for each shard of the pool."""
        values = self._room(left.pieces)
        copy(left.pieces, _places(left.pieces), values)
        ends = np.append(_places(left.pieces), left.pieces["length"].sum(dtype=np.int64))
        checkpoints = {}
        for shard in np.unique(left.shards).tolist():
            first, last = np.searchsorted(left.shards, [shard, shard + 1])
            arrays = {f"{_VALUES}{name}": each[ends[first] : ends[last]] for name, each in values.items()}
            arrays["pieces"] = left.pieces[first:last]
            checkpoints[self._name(shard, left.partition)] = Checkpoint(facts={}, arrays=arrays)
        self.plan.checkpoints.save_all(checkpoints)

    def collected(self, shard: int, segments: NDArray[Any], copy: Copy) -> Values:
        """Return the values of all segments of a shard of the pool, in memory mapped from temporary files.

        A token or label that is out of range is a SourceError; a full disk of temporary files is a PackerError.
        """
        out, places, keys = self._room(segments, temporary_memory), _places(segments), _keys(segments)
        order, missing = np.argsort(keys), np.ones(len(places), bool)
        regions = [part.number for part in self.plan.pool_parts(shard) if part.level == 1]
        names = [self._name(shard, number) for region in regions for number in self.plan.stages[0].numbers(region)]
        for checkpoint in self.plan.checkpoints.load_all(names):
            if checkpoint is None:
                continue
            pieces = checkpoint.arrays["pieces"]
            starts, lengths = pieces["start"].astype(np.int64), pieces["length"].astype(np.int64)
            values = {name.removeprefix(_VALUES): each for name, each in checkpoint.arrays.items() if name != "pieces"}
            found = order[np.searchsorted(keys, _keys(pieces), sorter=order)]
            spans = Spans(np.arange(len(pieces)), starts, lengths, places[found])
            copy_values(as_columns(values, starts, lengths), spans, out)
            missing[found] = False
        if missing.any():
            copy(segments[missing], places[missing], out)
        return out

    def _name(self, shard: int, partition: int) -> str:
        return f"{self.plan.stages[0].name}-values-{shard}-{partition}"

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
