"""Plan to shards: each shard a pure function of the source, the plan and its number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.executors import run_tasks
from packer.gather import NO_LOSS, TokenColumn
from packer.pipeline.watching import Watch
from packer.plan import Plan, Segments
from packer.progress import Progress
from packer.shards.columns import RowFormat
from packer.shards.kept import KeptValues
from packer.shards.manifest import ShardEntry, shard_name
from packer.shards.writer import BadTokenError, Counts, RowBlock, SourceColumns, build_batch, write_shard
from packer.sources import Source, TokenTable, value_message
from packer.sources.mixture import Origins
from packer.workspace import Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMaker:
    """All that the bytes of the shards depend on."""

    source: Source
    """Named in messages."""

    table: TokenTable
    """The documents, by address."""

    segments: Segments
    """What was made of them."""

    plan: Plan
    """Which segment stands where."""

    row_format: RowFormat
    """What a row looks like."""

    origins: Origins | None
    """Which document of which source each document is; None where there is one source."""

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.plan.shard_rows) - 1

    def batches(self, shard: int) -> Iterator[tuple[pa.RecordBatch, Counts]]:
        """Yield (record batch, what is in it) of a shard, in order.

        Raises:
            SourceError: a token or label of the source is out of range.
        """
        first, last = self.plan.shard_rows[shard : shard + 2]
        columns, kept, schema = self._columns(), self._kept(int(first), int(last)), self.row_format.schema
        for begin, end in self.row_format.batches(int(first), int(last)):
            block = self.block(begin, end)
            try:
                yield build_batch(block, columns, kept, self.row_format, schema)
            except BadTokenError as bad:
                raise SourceError(self._explain(bad, block)) from bad

    def block(self, first_row: int, last_row: int) -> RowBlock:
        """Look up the segments of rows first_row..last_row-1."""
        row_starts = self.plan.row_starts[first_row : last_row + 1]
        documents, starts, lengths = self.segments.locate(self.plan.slots[row_starts[0] : row_starts[-1]])
        sources, ids, copies = (None, documents, None) if self.origins is None else self.origins.of(documents)
        return RowBlock(
            lists=self._lists(documents),
            documents=ids,
            source_ids=sources,
            copies=copies,
            starts=starts,
            lengths=lengths,
            extents=self.segments.extents_of(lengths),
            context=self.segments.context_of(starts),
            row_starts=row_starts - row_starts[0],
        )

    def _columns(self) -> SourceColumns:
        kept = {name: TokenColumn.from_arrow(self.table.extra[name].chunks) for name in self.row_format.kept_tokens}
        return SourceColumns(input_ids=self.table.input_ids, labels=self.table.labels, kept_tokens=kept)

    def _kept(self, first_row: int, last_row: int) -> KeptValues:
        """Look up the kept columns of the documents of rows first_row..last_row-1."""
        if not self.row_format.kept:
            return KeptValues(lists=np.empty(0, np.int64), values={})
        first, last = self.plan.row_starts[[first_row, last_row]]
        documents, _, _ = self.segments.locate(self.plan.slots[first:last])
        return KeptValues.of({name: self.table.extra[name] for name in self.row_format.kept}, self._lists(documents))

    def _lists(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """The list of the source's columns that each document is."""
        return documents if self.table.rows is None else self.table.rows[documents].astype(np.int64)

    def _explain(self, bad: BadTokenError, block: RowBlock) -> str:
        """Name the document, position and value that is no token id."""
        column = self.table.input_ids if bad.column == "input_ids" else self.table.labels
        assert column is not None
        start = int(block.starts[bad.segment])
        values = column.list_at(int(block.lists[bad.segment])).slice(start, int(block.lengths[bad.segment]))
        allowed = (NO_LOSS,) if bad.column == "labels" else ()
        position, value = next(
            (place, value)
            for place, value in enumerate(values.to_pylist())
            if not 0 <= value < 2**31 and value not in allowed
        )
        document = int(block.documents[bad.segment])
        if self.origins is None or block.source_ids is None:
            where = self.source.describe(document)
        else:
            where = self.origins.describe(int(block.source_ids[bad.segment]), document)
        name = self.source.columns.labels if bad.column == "labels" else self.source.columns.input_ids
        return f"{where}: {value_message(name, value, start + position, label=bad.column == 'labels')}"


def write_shards(
    claimed: Workspace, maker: ShardMaker, watch: Watch, workers: int, progress: Progress
) -> list[ShardEntry]:
    """Write the shards that are not there yet, while the watched files stay as they are; return the entries of all."""
    names = [shard_name(shard, maker.shards) for shard in range(maker.shards)]
    entries = _intact_shards(claimed, names, workers, progress)
    total = len(maker.plan.row_starts) - 1
    done = sum(entry.rows for entry in entries.values())
    counting = threading.Lock()
    max_len, schema = maker.row_format.max_len, maker.row_format.schema

    def counted(shard: int, go_on: Callable[[], None]) -> Iterator[tuple[pa.RecordBatch, Counts]]:
        nonlocal done
        for batch, counts in maker.batches(shard):
            go_on()
            yield batch, counts
            with counting:
                done += batch.num_rows
                progress("write", done * max_len, total * max_len)

    def write(shard: int, go_on: Callable[[], None]) -> ShardEntry:
        name = names[shard]
        watch.check()
        with claimed.temporary(name) as temporary:
            batches = counted(shard, go_on)
            entry = write_shard(temporary, batches=batches, schema=schema, name=name, sync=claimed.sync)
            claimed.commit(temporary, entry)
        return entry

    missing = [shard for shard in range(maker.shards) if names[shard] not in entries]
    for entry in run_tasks(write, missing, workers):
        entries[entry.file] = entry
    return [entries[name] for name in names]


def _intact_shards(claimed: Workspace, names: list[str], workers: int, progress: Progress) -> dict[str, ShardEntry]:
    """The entries of the shards that were committed before and still match their hash, by name."""
    noted = [entry for name in names if (entry := claimed.committed(name)) is not None]
    done, total = 0, sum(entry.bytes for entry in noted)
    intact = {}

    def check(entry: ShardEntry, go_on: Callable[[], None]) -> tuple[ShardEntry, bool]:
        return entry, claimed.is_intact(entry)

    for entry, is_intact in run_tasks(check, noted, workers):
        done += entry.bytes
        progress("check", done, total)
        if is_intact:
            intact[entry.file] = entry
    return intact
