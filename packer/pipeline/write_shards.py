"""Make and write the shards of a plan. The bytes of a shard depend only on the source, the plan and its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.engines.engine import Engine, run_tasks
from packer.errors import SourceError
from packer.json_records import REMEDY, ShardEntry
from packer.loader.row_order import order_for_readers
from packer.output.unfinished_output import Output
from packer.plan.rows import Plan
from packer.progress import Progress, TaskSums
from packer.shards.files import all_shard_names, shard_name, shard_number
from packer.shards.located_rows import LocatedRows
from packer.shards.row_format import RowFormat
from packer.shards.writer import BadTokenError, Counts, KeptValues, TokenColumns, build_batch, write_shard
from packer.signals import raise_if_interrupted
from packer.sources.documents import reading
from packer.sources.source import Documents, Watch
from packer.token_memory.token_column import fetched_spans


@dataclass(frozen=True, kw_only=True, slots=True)
class RowMaker:
    """Makes rows of documents; the bytes are the same in any process. Can be pickled.

    Raises SourceError if a token or label of the source is out of range.
    """

    documents: Documents
    row_format: RowFormat

    def batches(self, rows: LocatedRows) -> Iterator[tuple[pa.RecordBatch, Counts]]:
        """Yield the record batches of the given rows in order, each with its counts."""
        columns, lists = self._read(rows)
        kept, schema, segments = self._kept(rows), self.row_format.schema, 0
        for first, last in self.row_format.batches(len(rows)):
            part = rows.part(first, last)
            own = lists[segments : segments + len(part.values)]
            segments += len(part.values)
            raise_if_interrupted()
            try:
                yield build_batch(part, own, columns, kept, self.row_format, schema)
            except BadTokenError as bad:
                document, start, length = part.values[bad.segment].tolist()
                values = columns[bad.column].values_at(int(own[bad.segment]), start, length)
                label, largest = bad.column == "labels", self.row_format.largest_id
                fault = self.documents.value_fault(document, start, values, label=label, largest=largest)
                raise SourceError(f"{fault}; {REMEDY}") from bad

    def _read(self, rows: LocatedRows) -> tuple[TokenColumns, NDArray[np.int64]]:
        """Return (columns with the values of the rows' segments in memory, index of each segment's list in them)."""
        columns = self.documents.table.token_columns(self.row_format)
        with reading(self.documents.source.name):
            return fetched_spans(columns, rows.documents, rows.starts, rows.lengths)

    def _kept(self, rows: LocatedRows) -> KeptValues:
        """Return the values of the rows' documents in kept columns."""
        if not self.row_format.kept:
            return KeptValues(lists=np.empty(0, np.int64), values={})
        lists, extra = np.unique(rows.documents), self.documents.table.extra
        return KeptValues(lists=lists, values={name: extra[name].at(lists) for name in self.row_format.kept})


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMaker(RowMaker):
    """Everything that determines the bytes of the shards."""

    plan: Plan

    ranks: int | None = None
    """Number of consecutive rows that get similar work, for ranks that read in order; None keeps the plan's order."""

    def batches_of(self, shard: int) -> Iterator[tuple[pa.RecordBatch, Counts]]:
        """Yield the record batches of a shard in order, each with its counts."""
        rows = self.plan.rows(shard)
        if self.ranks is not None:
            squares = np.append(0, np.cumsum(rows.lengths**2))
            first = int(self.plan.shard_starts[shard])
            rows = rows.chosen(order_for_readers(np.diff(squares[rows.row_starts]), first=first, ranks=self.ranks))
        return self.batches(rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTask:
    """Writes and commits single shards. Can be pickled: any process may write a shard, even a second time."""

    claimed: Output
    watch: Watch
    maker: ShardMaker
    shards: int

    def __call__(self, shard: int) -> ShardEntry:
        """Write a shard and return its entry."""
        self.watch.check_again()
        name, schema = shard_name(shard, self.shards), self.maker.row_format.schema
        with self.claimed.store.temporary(name) as temporary:
            entry = write_shard(temporary, batches=self.maker.batches_of(shard), schema=schema, name=name)
            self.claimed.commit(temporary, entry)
        return entry


def write_shards(
    claimed: Output, maker: ShardMaker, shard_size: int, watch: Watch, engine: Engine, progress: Progress
) -> list[ShardEntry]:
    """Write the shards that an interrupted run did not write. Returns the entries of all shards.

    Progress is reported as "check", in bytes of existing shards, and as "write", in tokens of shards that this process
    wrote.
    """
    totals, row_format, count = maker.plan.totals, maker.row_format, len(maker.plan.shard_starts) - 1
    claimed.check_disk(row_format.bytes_of(totals.rows, totals.segments), shard_size, engine.workers)
    task = ShardTask(claimed=claimed, maker=maker, watch=watch, shards=count)
    names = all_shard_names(count)
    entries = {} if engine.is_shared else _intact_shards(claimed, names, engine.workers, progress)
    report = TaskSums(lambda rows: progress("write", rows * row_format.max_len, totals.rows * row_format.max_len))
    report(-1, sum(entry.rows for entry in entries.values()))

    def written(asked: Sequence[int]) -> list[int]:
        if engine.is_shared:
            entries.update(claimed.committed([names[shard] for shard in asked if names[shard] not in entries]))
        return [shard for shard in asked if names[shard] in entries]

    for entry in engine.run_missing(task, range(count), written, report):
        entries[entry.file] = entry
        report(shard_number(entry.file), entry.rows)
    watch.check()
    return [entries[name] for name in names]


def _intact_shards(claimed: Output, names: list[str], workers: int, progress: Progress) -> dict[str, ShardEntry]:
    """Return entries by name of the shards that were committed before and still match their hash."""
    committed = [*claimed.committed(names).values()]
    done, total = 0, sum(entry.bytes for entry in committed)
    intact = {}

    def check(entry: ShardEntry) -> tuple[ShardEntry, bool]:
        return entry, claimed.is_intact(entry)

    for entry, is_intact in run_tasks(check, committed, workers):
        done += entry.bytes
        progress("check", done, total)
        if is_intact:
            intact[entry.file] = entry
    return intact
