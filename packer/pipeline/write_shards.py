"""Write the shards of a plan that an interrupted run has not written."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from packer.engine import Engine, run_tasks, without
from packer.facts import ShardEntry
from packer.output.unfinished_pack import UnfinishedPack
from packer.pipeline.shard_maker import Batches, ShardMaker
from packer.pipeline.watch_source import Watch
from packer.progress import Progress
from packer.shards.file_names import all_shard_names, shard_name
from packer.shards.writer import write_shard


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTask:
    """Writes and commits single shards. Can be pickled: any process can write a shard, even a second time."""

    claimed: UnfinishedPack
    """Unfinished output."""

    makers: Sequence[ShardMaker]
    """Maker of the shards of each generation."""

    watch: Watch
    """Source files, which must not change."""

    ends: Sequence[int]
    """Number of shards up to the end of each generation, which is part of their names."""

    def __call__(self, shard: int, observe: Callable[[Batches], Batches] = iter) -> ShardEntry:
        """Write a shard, and return its entry.

        Args:
            shard: number of the shard.
            observe: function through which all record batches pass, unchanged.

        Raises:
            SourceError: a token or label of the source is out of range, or a source file changed.
            OSError: the disk is full, or writing fails.
        """
        self.watch.check_again()
        generation = bisect_right(self.ends, shard)
        first = self.ends[generation - 1] if generation else 0
        name, maker = shard_name(shard, self.ends[generation]), self.makers[generation]
        schema = maker.row_format.schema
        with self.claimed.temporary(name) as temporary:
            batches = observe(maker.batches(shard - first))
            entry = write_shard(temporary, batches=batches, schema=schema, name=name, sync=self.claimed.store.sync)
            self.claimed.commit(temporary, entry)
        return entry


def write_shards(
    claimed: UnfinishedPack, makers: Sequence[ShardMaker], watch: Watch, engine: Engine, progress: Progress
) -> list[ShardEntry]:
    """Write the shards that an interrupted run has not written; return the entries of all shards.

    Progress is reported as "check", in bytes of existing shards, and as "write", in tokens that this process wrote.

    Args:
        claimed: unfinished output.
        makers: maker of the shards of each generation; a new pack has one, the only one that may have leftovers.
        watch: source files.
        engine: decides which shards this process writes.
        progress: callback.
    """
    rows_of = [maker.plan.shard_rows for maker in makers]
    ends = list(accumulate(map(len, rows_of)))
    task = ShardTask(claimed=claimed, makers=makers, watch=watch, ends=ends)
    shard_rows, names = [rows for each in rows_of for rows in each], all_shard_names(*ends)
    maker = makers[0]
    entries = {} if engine.is_shared else _intact_shards(claimed, names, engine.workers, progress)
    total = sum(shard_rows)
    done = sum(entry.rows for entry in entries.values())
    counting = threading.Lock()
    max_len = maker.row_format.max_len

    def counted(batches: Batches, raise_if_cancelled: Callable[[], None]) -> Batches:
        nonlocal done
        for built, counts in batches:
            raise_if_cancelled()
            yield built, counts
            with counting:
                done += sum(batch.num_rows for batch in built)
                progress("write", done * max_len, total * max_len)

    def write(shard: int, raise_if_cancelled: Callable[[], None]) -> ShardEntry:
        return task(shard, lambda batches: counted(batches, raise_if_cancelled))

    def written(asked: Sequence[int]) -> list[int]:
        if engine.is_shared:
            entries.update(claimed.committed([names[shard] for shard in asked if names[shard] not in entries]))
        return [shard for shard in asked if names[shard] in entries]

    def write_some(shards: Sequence[int]) -> None:
        nonlocal done
        for missing in engine.assigned(shards, written):
            for entry in engine.run(task, missing, write):
                entries[entry.file] = entry
                if not engine.is_local:
                    done += entry.rows
                    progress("write", done * max_len, total * max_len)

    if maker.leftovers is None:
        write_some(range(len(shard_rows)))
    else:
        pool = maker.leftovers.plan.pool_numbers.tolist()
        write_some(without(range(len(shard_rows)), pool))
        if len(written(pool)) < len(pool):
            maker.leftovers.pass_on(engine, maker.copy_values)
        write_some(pool)
    return [entries[name] for name in names]


def _intact_shards(
    claimed: UnfinishedPack, names: list[str], workers: int, progress: Progress
) -> dict[str, ShardEntry]:
    """Return the entries of shards that were committed before and still match their hash, by name."""
    committed = [*claimed.committed(names).values()]
    done, total = 0, sum(entry.bytes for entry in committed)
    intact = {}

    def check(entry: ShardEntry, raise_if_cancelled: Callable[[], None]) -> tuple[ShardEntry, bool]:
        return entry, claimed.is_intact(entry)

    for entry, is_intact in run_tasks(check, committed, workers):
        done += entry.bytes
        progress("check", done, total)
        if is_intact:
            intact[entry.file] = entry
    return intact
