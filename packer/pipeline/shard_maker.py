"""Write the shards of a plan; the bytes of a shard depend only on the source, the plan and its number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from packer.engine import Engine
from packer.errors import SourceError
from packer.executors import run_tasks
from packer.facts.rejection import REMEDY
from packer.gather import held_spans
from packer.labels import NO_LOSS
from packer.output.unfinished_pack import UnfinishedPack
from packer.pipeline.segment_reader import MappedDocuments, lists_of
from packer.pipeline.watch_source import Watch
from packer.plan.pieces import Located, ShardRows
from packer.plan.segments import context_of
from packer.progress import Progress
from packer.shards.kept_columns import KeptValues
from packer.shards.manifest import ShardEntry, shard_name
from packer.shards.row_format import RowFormat
from packer.shards.writer import BadTokenError, Counts, RowBlock, SourceColumns, build_batch, write_shard
from packer.sources import TokenTable, value_message
from packer.sources.documents import reading
from packer.sources.origins import Origins
from packer.stores.mirror import in_use

Batches: TypeAlias = Iterator[tuple[pa.RecordBatch, Counts]]
"""Record batches and their counts."""


class Shards(Protocol):
    """A plan: the rows of each shard. Can be pickled."""

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard; none is empty."""

    def shard(self, number: int) -> ShardRows:
        """Return the rows of a shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMaker:
    """Everything that the bytes of the shards depend on. Can be pickled; makes the same bytes in any process."""

    mapped: MappedDocuments
    """Documents that are packed."""

    shards: Shards
    """Segments of the rows of each shard."""

    row_format: RowFormat
    """Format of the rows."""

    overlap: int
    """Tokens that each piece of a split document repeats from the end of the piece before it."""

    @property
    def table(self) -> TokenTable:
        """Columns of all documents, by address."""
        return self.mapped.table

    @property
    def origins(self) -> Origins | None:
        """Source, document and copy that each document of a mixture comes from; None for a single source."""
        return self.mapped.documents.origins

    def batches(self, shard: int) -> Batches:
        """Yield (record batch, its counts) of a shard, in order.

        Raises:
            SourceError: a token or label of the source is out of range.
        """
        rows = self.shards.shard(shard)
        columns, kept, schema = self._columns(), self._kept(rows), self.row_format.schema
        with self._held(rows, columns):
            for first, last in self.row_format.batches(0, len(rows)):
                block = self.block(rows.located(first, last))
                try:
                    yield build_batch(block, columns, kept, self.row_format, schema)
                except BadTokenError as bad:
                    raise SourceError(self._explain(bad, block)) from bad

    def block(self, rows: Located) -> RowBlock:
        """Return the segments of some rows with everything that the writer needs."""
        sources, ids, copies = (None, rows.documents, None)
        if self.origins is not None:
            sources, ids, copies = self.origins.of(rows.documents)
        align = self.row_format.align
        return RowBlock(
            lists=lists_of(self.table, rows.documents),
            documents=ids,
            source_ids=sources,
            copies=copies,
            starts=rows.starts,
            lengths=rows.lengths,
            extents=rows.lengths if align == 1 else -(-rows.lengths // align) * align,
            context=context_of(rows.starts, self.overlap),
            row_starts=rows.row_starts,
        )

    def _columns(self) -> SourceColumns:
        kept = {name: self.table.extra[name].addresses() for name in self.row_format.kept_tokens}
        return SourceColumns(input_ids=self.table.input_ids, labels=self.table.labels, kept_tokens=kept)

    @contextmanager
    def _held(self, rows: ShardRows, columns: SourceColumns) -> Iterator[None]:
        """Hold what a shard takes of a source in object storage, which is read in as few requests as possible."""
        if not in_use():
            yield
            return
        every = rows.located(0, len(rows))
        read = [column for column in (columns.input_ids, columns.labels, *columns.kept_tokens.values()) if column]
        with (
            reading(self.mapped.documents.source.name),
            held_spans(read, lists_of(self.table, every.documents), every.starts, every.lengths),
        ):
            yield

    def _kept(self, rows: ShardRows) -> KeptValues:
        """Return the values that the documents of a shard have in kept columns."""
        if not self.row_format.kept:
            return KeptValues(lists=np.empty(0, np.int64), values={})
        lists = lists_of(self.table, rows.located(0, len(rows)).documents)
        return KeptValues.of({name: self.table.extra[name] for name in self.row_format.kept}, lists)

    def _explain(self, bad: BadTokenError, block: RowBlock) -> str:
        """Return a message that names the document, position and value that is not a token id."""
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
        source = self.mapped.documents.source
        if self.origins is None or block.source_ids is None:
            where = source.describe(document)
        else:
            where = self.origins.describe(int(block.source_ids[bad.segment]), document)
        name = source.columns.labels if bad.column == "labels" else source.columns.input_ids
        message = value_message(name, value, start + position, label=bad.column == "labels")
        return f"{where}: {message}; {REMEDY}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTask:
    """Writes and commits any shard by itself. Can be pickled: any process can write a shard, even a second time."""

    claimed: UnfinishedPack
    """Unfinished output."""

    maker: ShardMaker
    """Maker of the shards."""

    watch: Watch
    """Source files, which must not change."""

    shards: int
    """Number of shards, which is part of their names."""

    def __call__(self, shard: int, observe: Callable[[Batches], Batches] = iter) -> ShardEntry:
        """Write a shard, and return its entry.

        Args:
            shard: number of the shard.
            observe: function through which all record batches pass, unchanged.

        Raises:
            SourceError: a token or label of the source is out of range, or a source file changed.
            OSError: the disk is full, or writing fails.
        """
        self.watch.check()
        name, schema = shard_name(shard, self.shards), self.maker.row_format.schema
        with self.claimed.temporary(name) as temporary:
            batches = observe(self.maker.batches(shard))
            entry = write_shard(temporary, batches=batches, schema=schema, name=name, sync=self.claimed.sync)
            self.claimed.commit(temporary, entry)
        return entry


def write_shards(
    claimed: UnfinishedPack, maker: ShardMaker, watch: Watch, engine: Engine, progress: Progress
) -> list[ShardEntry]:
    """Write the shards that an interrupted run has not written; return the entries of all shards.

    Progress is reported as "check", in bytes of existing shards, and as "write", in tokens that this process wrote.
    """
    shard_rows = maker.shards.shard_rows
    task = ShardTask(claimed=claimed, maker=maker, watch=watch, shards=len(shard_rows))
    names = [shard_name(shard, len(shard_rows)) for shard in range(len(shard_rows))]
    entries = {} if engine.is_shared else _intact_shards(claimed, names, engine.workers, progress)
    total = sum(shard_rows)
    done = sum(entry.rows for entry in entries.values())
    counting = threading.Lock()
    max_len = maker.row_format.max_len

    def counted(batches: Batches, go_on: Callable[[], None]) -> Batches:
        nonlocal done
        for batch, counts in batches:
            go_on()
            yield batch, counts
            with counting:
                done += batch.num_rows
                progress("write", done * max_len, total * max_len)

    def write(shard: int, go_on: Callable[[], None]) -> ShardEntry:
        return task(shard, lambda batches: counted(batches, go_on))

    def written(asked: Sequence[int]) -> list[int]:
        if engine.is_shared:
            entries.update(claimed.committed([names[shard] for shard in asked if names[shard] not in entries]))
        return [shard for shard in asked if names[shard] in entries]

    for missing in engine.assigned(range(len(shard_rows)), written):
        for entry in engine.run(task, missing, write):
            entries[entry.file] = entry
            if not engine.is_local:
                done += entry.rows
                progress("write", done * max_len, total * max_len)
    return [entries[name] for name in names]


def _intact_shards(
    claimed: UnfinishedPack, names: list[str], workers: int, progress: Progress
) -> dict[str, ShardEntry]:
    """Return the entries of shards that were committed before and still match their hash, by name."""
    committed = [*claimed.committed(names).values()]
    done, total = 0, sum(entry.bytes for entry in committed)
    intact = {}

    def check(entry: ShardEntry, go_on: Callable[[], None]) -> tuple[ShardEntry, bool]:
        return entry, claimed.is_intact(entry)

    for entry, is_intact in run_tasks(check, committed, workers):
        done += entry.bytes
        progress("check", done, total)
        if is_intact:
            intact[entry.file] = entry
    return intact
