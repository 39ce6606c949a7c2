"""Make and write the shards of a plan. The bytes of a shard depend only on the source, the plan and its number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer.engines.engine import Engine, run_tasks
from packer.errors import SourceError
from packer.json_records import REMEDY, ShardEntry
from packer.loader.row_order import order_for_readers
from packer.output.unfinished_output import Output
from packer.plan.rows import Plan
from packer.progress import Progress, TaskSums
from packer.shards.files import all_shard_names, shard_number
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
        columns: TokenColumns = self.documents.table.token_columns(self.row_format)
        with reading(self.documents.source.name):
            columns, lists = fetched_spans(columns, rows.documents, rows.starts, rows.lengths)
        kept, segments = self._kept(rows), 0
        for first in range(0, len(rows), self.row_format.batch_rows):
            part = rows.part(first, first + self.row_format.batch_rows)
            own = lists[segments : segments + len(part.values)]
            segments += len(part.values)
            raise_if_interrupted()
            try:
                yield copy_rows(part, own, columns, kept, self.row_format)
            except BadTokenError as bad:
                column, segment = bad.args
                document, start, length = part.values[segment].tolist()
                values = columns[column].values_at(int(own[segment]), start, length)
                largest = self.row_format.largest_id
                fault = self.documents.value_fault(document, start, values, label=column == "labels", largest=largest)
                raise SourceError(f"{fault}; {REMEDY}") from bad

    def _kept(self, rows: LocatedRows) -> KeptValues:
        """Return the values of the rows' documents in kept columns."""
        lists = np.unique(rows.documents) if self.row_format.kept else np.empty(0, np.int64)
        extra = self.documents.table.extra
        return KeptValues(lists=lists, values={name: extra[name].at(lists) for name in self.row_format.kept})


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMaker(RowMaker):
    """Everything that determines the bytes of the shards."""

    plan: Plan

    ranks: int | None = None
    """Number of consecutive rows that get similar work, for ranks that read in order; None keeps the plan's order."""

    def parts_of(self, shards: Sequence[int]) -> Iterator[Iterable[CopiedRows]]:
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
    """Writes and commits the shards of a task. Can be pickled: any process may run a task, even a second time."""

    claimed: Output
    watch: Watch
    maker: ShardMaker
    names: Mapping[int, Sequence[str]]
    """File names of the shards of each task."""

    def __call__(self, task: int) -> tuple[int, list[ShardEntry]]:
        """Write the shards of a task. Returns its number and the entries of its shards."""
        self.watch.check_again()
        row_format, names, written = self.maker.row_format, self.names[task], dict[Path, ShardEntry]()
        with ExitStack() as stack:
            for name, parts in zip(names, self.maker.parts_of([*map(shard_number, names)]), strict=True):
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
    sizes = np.diff(maker.plan.shard_starts)
    together = max(1, min(len(sizes) // MOST_TASKS, row_format.batch_rows // int(sizes.max())))
    all_names = all_shard_names(len(sizes))
    names = {at // together: all_names[at : at + together] for at in range(0, len(sizes), together)}
    task = ShardTask(claimed=claimed, watch=watch, maker=maker, names=names)
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
    checks = run_tasks(lambda task: (task, all(map(claimed.is_intact, committed[task]))), [*committed], workers)
    for task, is_intact in checks:
        done += sum(entry.bytes for entry in committed[task])
        progress("check", done, total)
        if not is_intact:
            del committed[task]
    return committed
