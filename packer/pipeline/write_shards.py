"""Make and write the shards of a plan. The bytes of a shard depend only on the source, the plan and its number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.engines.engine import Engine, run_tasks
from packer.errors import SourceError
from packer.json_records import REMEDY, ShardEntry
from packer.loader.row_order import order_for_readers
from packer.output.unfinished_output import Output
from packer.plan.rows import Plan
from packer.progress import Progress, TaskSums
from packer.shards.files import all_shard_names, shard_name
from packer.shards.located_rows import LocatedRows
from packer.shards.row_format import RowFormat
from packer.shards.writer import BadTokenError, CopiedRows, KeptValues, TokenColumns, copy_rows, write_shard
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

    def copied(self, rows: LocatedRows) -> Iterator[CopiedRows]:
        """Copy the tokens of the given rows. Yields the rows of each record batch in order."""
        columns, lists = self._read(rows)
        kept, segments = self._kept(rows), 0
        for first, last in self.row_format.batches(len(rows)):
            part = rows.part(first, last)
            own = lists[segments : segments + len(part.values)]
            segments += len(part.values)
            raise_if_interrupted()
            try:
                yield copy_rows(part, own, columns, kept, self.row_format)
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

    def parts_of(self, shards: range) -> Iterator[Iterable[CopiedRows]]:
        """Yield the rows of each shard, divided into record batches. Several shards have one batch together."""
        rows, row = [*map(self._rows, shards)], 0
        if len(rows) == 1:
            yield self.copied(rows[0])
            return
        (together,) = self.copied(LocatedRows.joined(rows))
        for each in rows:
            yield [together.part(row, row + len(each), self._kept(each))]
            row += len(each)

    def _rows(self, shard: int) -> LocatedRows:
        """Make the rows of a shard, in the order in which they are written."""
        rows = self.plan.rows(shard)
        if self.ranks is not None:
            squares = np.append(0, np.cumsum(rows.lengths**2))
            first = int(self.plan.shard_starts[shard])
            rows = rows.chosen(order_for_readers(np.diff(squares[rows.row_starts]), first=first, ranks=self.ranks))
        return rows


MOST_TASKS = 512
"""Approximate number of tasks above which a task writes several shards, if these fit into one record batch together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTask:
    """Writes and commits `together` shards. Can be pickled: any process may run a task, even a second time."""

    claimed: Output
    watch: Watch
    maker: ShardMaker
    shards: int
    together: int

    @classmethod
    def of(cls, claimed: Output, watch: Watch, maker: ShardMaker) -> ShardTask:
        """Return the task that writes the shards of a plan."""
        sizes = np.diff(maker.plan.shard_starts)
        together = min(len(sizes) // MOST_TASKS, maker.row_format.batch_rows // int(sizes.max()))
        return cls(claimed=claimed, watch=watch, maker=maker, shards=len(sizes), together=max(1, together))

    def __call__(self, task: int) -> tuple[int, list[ShardEntry]]:
        """Write the shards of a task. Returns its number and the entries of its shards."""
        self.watch.check_again()
        row_format, written = self.maker.row_format, dict[Path, ShardEntry]()
        shards = range(self.shards)[task * self.together :][: self.together]
        with ExitStack() as stack:
            for shard, parts in zip(shards, self.maker.parts_of(shards), strict=True):
                name = shard_name(shard, self.shards)
                temporary = stack.enter_context(self.claimed.store.temporary(name))
                written[temporary] = write_shard(temporary, parts=parts, row_format=row_format, name=name)
            self.claimed.commit(task, written)
        return task, [*written.values()]


def write_shards(
    claimed: Output, maker: ShardMaker, shard_size: int, watch: Watch, engine: Engine, progress: Progress
) -> list[ShardEntry]:
    """Write the shards that an interrupted run did not write. Returns the entries of all shards.

    Progress is reported as "check", in bytes of existing shards, and as "write", in tokens of shards that this process
    wrote.
    """
    totals, row_format = maker.plan.totals, maker.row_format
    claimed.check_disk(row_format.bytes_of(totals.rows, totals.segments), shard_size, engine.workers)
    task = ShardTask.of(claimed, watch, maker)
    all_names = all_shard_names(task.shards)
    firsts = range(0, task.shards, task.together)
    names = {number: all_names[first : first + task.together] for number, first in enumerate(firsts)}
    entries = {} if engine.is_shared else _intact_shards(claimed, names, engine.workers, progress)
    report = TaskSums(lambda rows: progress("write", rows * row_format.max_len, totals.rows * row_format.max_len))
    report(-1, sum(entry.rows for each in entries.values() for entry in each))

    def written(asked: Sequence[int]) -> list[int]:
        if engine.is_shared:
            entries.update(claimed.committed({task: names[task] for task in asked if task not in entries}))
        return [task for task in asked if task in entries]

    for number, made in engine.run_missing(task, range(len(names)), written, report):
        entries[number] = made
        report(number, sum(entry.rows for entry in made))
    watch.check()
    return [entry for number in names for entry in entries[number]]


def _intact_shards(
    claimed: Output, names: Mapping[int, Sequence[str]], workers: int, progress: Progress
) -> dict[int, list[ShardEntry]]:
    """Return the entries of the shards of tasks that were committed before, if all still match their hashes."""
    committed = claimed.committed(names)
    done, total = 0, sum(entry.bytes for each in committed.values() for entry in each)
    intact = {}

    def check(task: int) -> tuple[int, bool]:
        return task, all(map(claimed.is_intact, committed[task]))

    for task, is_intact in run_tasks(check, [*committed], workers):
        done += sum(entry.bytes for entry in committed[task])
        progress("check", done, total)
        if is_intact:
            intact[task] = committed[task]
    return intact
