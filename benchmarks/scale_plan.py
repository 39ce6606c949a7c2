"""The plan of a corpus that is too large for this machine: the real code on documents of made-up lengths.

The driver does everything that it does in a pack: it marks blocks, deals them to partitions, looks at the note of every
task and makes the last step. Of the tasks of a stage, the first ones run; their notes stand in for those of the others.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from bench_plan import PeakMemory
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.engine import Engine, Result, Watched
from packer.notes import Note, Notes, note_of
from packer.options import PackOptions
from packer.plan.partitions import BLOCK_PLACE, BlockMarker
from packer.plan.permute import draw_bits
from packer.plan.rows import PIECE
from packer.planning.packable_segments import Planning, SegmentReader
from packer.planning.partition_plan import PartitionPlan
from packer.planning.partitioning import Survey, plan_partitions, survey

MEDIAN, SIGMA, LONGEST = 245, 1.0, 20_000
"""Lengths are log-normal, about 400 tokens on average."""

ROW_BYTES = 8
"""Bytes of a token in a shard: input_ids and labels."""

_QUANTILES = 1 << 16
_GROUP = 1 << 6  # documents that are added to blocks together where there are too many to make them all


def _quantiles() -> NDArray[np.int32]:
    """Return lengths at equal steps of their distribution."""
    random = np.random.default_rng(0)
    drawn = np.sort(random.lognormal(np.log(MEDIAN), SIGMA, 64 * _QUANTILES))[32::64]
    return np.clip(drawn, 1, LONGEST).astype(np.int32)


@jit
def _draw_lengths(first: int, quantiles: NDArray[np.int32], out: NDArray[np.int32]) -> None:
    for i in range(len(out)):
        out[i] = quantiles[draw_bits(np.uint64(1), first + i) >> np.uint64(48)]


@dataclass(frozen=True, kw_only=True)
class MadeUpReader(SegmentReader):
    """A reader of documents whose lengths are hashes of their numbers."""

    quantiles: NDArray[np.int32] = field(default_factory=_quantiles)

    def read_lengths(self, ranges: NDArray[np.int64]) -> NDArray[np.int32]:
        """Make up the lengths of the documents of some ranges."""
        lengths = np.empty(int(np.diff(ranges).sum()), np.int32)
        done = 0
        for first, last in ranges.tolist():
            _draw_lengths(first, self.quantiles, lengths[done : done + last - first])
            done += last - first
        return lengths


class StandIns(Notes):
    """Notes in a folder; those of the first tasks of a stage stand in for all others."""

    def __init__(self, folder: Path, most: int, *, rereads: bool = True) -> None:
        self._folder, self._most = folder, most
        self._read = self._note if rereads else cache(self._note)
        self.bytes: dict[str, list[int]] = defaultdict(list)
        self.pieces: dict[str, list[int]] = defaultdict(list)
        self.left: dict[str, list[int]] = defaultdict(list)

    def load(self, name: str) -> Note | None:
        """Read the note that stands in for this one."""
        stage, _, number = name.rpartition("-")
        return self._read(self._folder / (f"{stage}-{int(number) % self._most}" if number.isdecimal() else name))

    @staticmethod
    def _note(path: Path) -> Note | None:
        return note_of(path.read_bytes()) if path.is_file() else None

    def save(self, name: str, note: Note, *, lasting: bool = False) -> None:
        """Write a note, and count its bytes and the segments that it has in rows."""
        stage, content = name.rpartition("-")[0], note.to_bytes()
        self.bytes[stage].append(len(content))
        self.pieces[stage].append(len(note.arrays.get("pieces", ())))
        self.left[stage].append(note.arrays["left"].nbytes if "left" in note.arrays else 0)
        (self._folder / name).write_bytes(content)


@dataclass(frozen=True, kw_only=True)
class FirstTasks(Engine):
    """An engine that runs the first tasks of a stage, and then looks at the notes of all."""

    most: int
    """Tasks of a stage that run."""

    ran: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def run(
        self, task: Callable[[int], Result], numbers: Sequence[int], watched: Watched[Result] | None = None
    ) -> Iterator[Result]:
        """Run tasks in threads, and measure them."""
        begun, stage = time.process_time(), getattr(task, "stage", "")
        yield from super().run(task, numbers)
        self.ran[stage] += len(numbers)
        self.seconds[stage] += time.process_time() - begun

    def assigned(self, tasks: Sequence[int], done: Callable[..., Any]) -> Iterator[list[int]]:
        """Yield the first tasks; the notes of all are then looked at, as a rank looks at those of others."""
        begun = [task for task in tasks if task < self.most]
        if begun:
            yield begun
        assert not list(super().assigned(tasks, done))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanFigures:
    """What a plan costs, and what its shards read. What was not run in full is extrapolated."""

    documents: int
    tokens: int
    rows: int
    shards: int
    partitions: int
    blocks: int
    blocks_each: float
    """Blocks of a partition, on average."""

    ranges: int
    """Runs of adjacent documents that are read for the shards of partitions."""

    pool_rows: int
    """Rows that are made of leftovers."""

    pool_segments: int
    """Segments in these rows."""

    value_notes: int
    """Notes in which the values of leftovers travel, at most: one for each that leaves some over and each that takes
    them. Those that are empty are not written."""

    values_tokens: float
    """Tokens in these notes: those of the pool, and once more for each region that passes them on."""

    values_pieces: float
    """Pieces in these notes."""

    regions: int
    """Notes of regions, which say who takes the leftovers."""

    region_bytes: float
    """Size of these notes."""

    above: int
    """Rows above the lower bound."""

    survey_seconds: float
    """CPU seconds to look through all lengths, without reading them."""

    survey_ran: float
    """Share of the documents that were."""

    task_seconds: float
    """CPU seconds of all tasks of the plan."""

    tasks: int
    tasks_ran: int
    driver_seconds: float
    """CPU seconds of the driver beside the tasks, with the notes of all of them."""

    note_bytes: int
    """Size of all notes."""

    last_bytes: int
    """Bytes of the leftovers that the last step packs as a whole."""

    memory: int
    """Largest RssAnon of the driver while it planned, in bytes, beside what it took before."""


def made_up_survey(
    reader: MadeUpReader, options: PackOptions, *, rows_per_shard: int, most: int, threads: int
) -> tuple[Survey, float]:
    """Survey the documents; return the survey, and the CPU seconds that it takes.

    Of more than `most` documents, the first ones are surveyed. Histogram and counts of the others are multiples, and
    their blocks are marked in groups of documents.
    """
    begun = time.process_time()
    if reader.documents <= most:
        found = survey(Planning(reader=reader, rows_per_shard=rows_per_shard, engine=Engine(workers=threads)))
        return found, time.process_time() - begun
    few = MadeUpReader(documents=most, options=options, quantiles=reader.quantiles)
    found = survey(Planning(reader=few, rows_per_shard=rows_per_shard, engine=Engine(workers=threads)))
    seconds = time.process_time() - begun
    times = -(-reader.documents // most)
    account = found.account
    for _ in range(times - 1):
        account += found.account
    marker = BlockMarker(max(1, min(BLOCK_PLACE, rows_per_shard * options.max_len // 256)))
    place = account.tokens_packed / reader.documents * _GROUP
    random = np.random.default_rng(0)
    left = reader.documents // _GROUP
    while left:
        count = min(left, 1 << 20)
        marker.add(random.normal(place, 3 * place / _GROUP**0.5, count).astype(np.int64), documents_each=_GROUP)
        left -= count
    if reader.documents % _GROUP:
        marker.add(np.array([place], np.int64), documents_each=reader.documents % _GROUP)
    all_of_them = Survey(
        account=account, segments=found.segments * times, histogram=found.histogram * times, blocks=marker.finish()
    )
    return all_of_them, seconds * times


def _count_value_notes(plan: PartitionPlan) -> int:
    """Count the notes with values: for each shard of the pool and all whose pieces it takes, and for each region."""
    for_regions = sum(len(stage.rows) for stage in plan.stages[:-1])
    for_shards = (
        len(plan.stages[part.level - 1].numbers(part.region))
        for shard in plan.pool_numbers.tolist()
        for part in plan.pool_parts(shard)
    )
    return for_regions + sum(for_shards)


def plan_at_scale(
    documents: int,
    *,
    max_len: int,
    shard_size: int,
    threads: int,
    most_surveyed: int,
    most_tasks: int,
    rereads: bool = True,
) -> PlanFigures:
    """Plan once with the code of `packer pack`.

    Args:
        documents: number of documents.
        max_len: length of a row.
        shard_size: bytes of a shard.
        threads: tasks at a time.
        most_surveyed: documents whose lengths are looked at; of more, a multiple of these.
        most_tasks: tasks that run, if a stage has more.
        rereads: read a note from its file each time that it is asked for, as packing does; otherwise once.
    """
    options = PackOptions(max_len=max_len, shard_size=shard_size, algorithm="mixed")
    rows_per_shard = shard_size // (ROW_BYTES * max_len)
    assert documents % min(documents, most_surveyed) == 0
    few = MadeUpReader(documents=1_000_000, options=options)  # compiles the kernels
    first = Planning(reader=few, rows_per_shard=100)
    plan_partitions(first, survey(first))
    reader = MadeUpReader(documents=documents, options=options)
    with PeakMemory() as before:
        pass
    with tempfile.TemporaryDirectory() as folder, PeakMemory() as peak:
        surveyed, survey_seconds = made_up_survey(
            reader, options, rows_per_shard=rows_per_shard, most=most_surveyed, threads=threads
        )
        notes, engine = (
            StandIns(Path(folder), most_tasks, rereads=rereads),
            FirstTasks(workers=threads, most=most_tasks),
        )
        begun = time.process_time()
        planning = Planning(reader=reader, rows_per_shard=rows_per_shard, notes=notes, engine=engine)
        plan = plan_partitions(planning, surveyed)
        seconds = time.process_time() - begun
        shards = len(plan.shard_rows)
    partitions, cut = len(plan.own_rows), plan.job.partitions
    (drawn, *_), counts = (stage.name for stage in plan.stages), {stage.name: len(stage.rows) for stage in plan.stages}
    times = {stage: count / engine.ran[stage] for stage, count in counts.items()}
    sample = range(min(most_tasks, partitions))
    pool_segments = round(sum(sum(notes.pieces[stage]) * times[stage] for stage in counts))
    left = sum(sum(notes.left[stage]) * times[stage] for stage in counts) / PIECE.itemsize
    last = max((stage for stage in counts if "-level" in stage), default=drawn)
    return PlanFigures(
        documents=documents,
        tokens=surveyed.account.tokens,
        rows=plan.totals.rows,
        shards=shards,
        partitions=partitions,
        blocks=len(surveyed.blocks),
        blocks_each=len(surveyed.blocks) / partitions,
        ranges=sum(len(cut.ranges(number)) for number in sample) * partitions // len(sample),
        pool_rows=plan.totals.pool_rows,
        pool_segments=pool_segments,
        value_notes=_count_value_notes(plan),
        values_tokens=left * plan.totals.pool_rows * max_len / max(1, pool_segments),
        values_pieces=left,
        regions=sum(len(stage.rows) for stage in plan.stages[1:]),
        region_bytes=sum(sum(notes.bytes[stage.name]) * times[stage.name] for stage in plan.stages[1:]),
        above=plan.totals.rows - plan.totals.lower_bound,
        survey_seconds=survey_seconds,
        survey_ran=min(1.0, most_surveyed / documents),
        task_seconds=sum(engine.seconds[stage] * times[stage] for stage in counts),
        tasks=sum(counts.values()),
        tasks_ran=engine.ran.total(),
        driver_seconds=seconds - sum(engine.seconds.values()),
        note_bytes=round(sum(sum(notes.bytes[stage]) * times[stage] for stage in counts)),
        last_bytes=round(sum(notes.left[last]) * times[last]),
        memory=peak.bytes - before.bytes,
    )
