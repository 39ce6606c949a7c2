"""Jobs, which name an output and claim it for one process, one of several ranks or a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from packer.engines.engine import Engine, available_workers
from packer.engines.ranks import FinishedElsewhere, Heartbeats, RankOf, Ranks, rank_of
from packer.errors import OptionError, PackerError
from packer.options import RunOptions
from packer.output.claim import claim
from packer.output.unfinished_output import PACKED, Output, Request
from packer.shards.manifest import is_packed
from packer.sources.find_source import SourceLike
from packer.sources.formats import ending_of
from packer.sources.number_columns import ARRAY, is_array_file
from packer.stores import AnyPath, RemotePath, any_path, is_remote
from packer.stores.hub import called
from packer.stores.paths import PathList, split_configuration

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True, slots=True)
class Written(Generic[Record]):
    """Result of a function that writes an output."""

    record: Record
    """Record of the output, such as the manifest of a packed dataset."""

    output: AnyPath
    """Folder of the output."""

    found_complete: bool = False
    """Whether a matching output already existed."""

    checked: str = ""
    """Description of what was checked, if a matching output already existed."""

    finished_elsewhere: bool = False
    """Whether another process wrote the record."""

    notes: tuple[str, ...] = ()
    """Lines for the summary, in addition to the record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job(RunOptions):
    """Options and rank for writing a dataset. They do not change its bytes."""

    as_rank: RankOf | None = None
    """Rank of this process, set by `for_output`; None if only this process claims a local output."""

    def for_output(self, source: SourceLike, output: str | AnyPath | None) -> Job:
        """Return the job for an output, with its rank. Raises an OptionError if options exclude each other."""
        rank = rank_of(self.ranks)
        if rank is not None and self.uses_ray:
            raise OptionError("--engine ray and --ranks exclude each other: Ray divides the work itself")
        if rank is not None or self.uses_ray:
            name = "--ranks" if rank is not None else "--engine ray"
            if self.overwrite and rank is not None:
                raise OptionError(f"--overwrite cannot be used with {name}: remove the output first, or choose another")
            if not self.sync and not is_remote(output):
                raise OptionError(
                    f"{name} needs synced files, because processes rely on those of others: do not switch syncing off"
                )
            if not isinstance(source, str | Path | PathList):
                raise OptionError(f"a dataset in memory cannot be packed with {name}: save it, and name its folder")
        elif is_remote(output):
            rank = RankOf(0, 1)
        return replace(self, as_rank=rank)

    def alone(self) -> AbstractContextManager[Engine]:
        """Return a context manager of an engine for a single process: threads of this process, or a Ray cluster."""
        workers = self.workers or available_workers()
        if self.uses_ray:
            from packer.engines.ray_engine import ray_engine

            return ray_engine(self.engine.partition(":")[2] or None, workers)
        return nullcontext(Engine(workers=workers))


@contextmanager
def claimed(
    out: AnyPath, request: Request, job: Job, *, is_answered: Callable[[], bool]
) -> Iterator[tuple[Output, Engine]]:
    """Claim the folder of a packed dataset, to begin or resume it, for one process, several ranks or a Ray cluster.

    Yields the output and the engine that builds it. is_answered: function that returns whether a complete dataset is
    the requested one. Raises `FinishedElsewhere` if another rank completes it.
    """
    rank, is_complete = job.as_rank, partial(is_packed, out)
    try:
        with ExitStack() as stack:
            output = stack.enter_context(claim(out, PACKED, request, job, shared=rank is not None))
            heartbeats = Heartbeats(store=output.store, is_alone=job.ranks is None)
            if output.is_shared:
                stack.enter_context(heartbeats.shown(rank.rank if rank else 0, is_complete))
            if rank is None:
                engine = stack.enter_context(job.alone())
            else:
                workers = job.workers or available_workers()
                engine = Ranks(**rank._asdict(), workers=workers, heartbeats=heartbeats, is_complete=is_complete)
            yield output, engine
    except (FinishedElsewhere, OSError, PackerError) as error:
        # The rank that completes a dataset removes files that other ranks may be reading; these then raise errors of
        # these types. Any other error is a bug.
        if rank is not None and is_answered():
            raise FinishedElsewhere from None
        if isinstance(error, FinishedElsewhere):
            raise PackerError(
                f"{out} was finished by another packer, with other options or from another source: choose another "
                "--output"
            ) from None
        raise


def name_after(source: SourceLike, suffix: str, split: str | None) -> Path:
    """Name an output after the source, its configuration and its split, if any: rows.jsonl.gz -> rows-packed-4096.

    The output is next to the source, or in the current folder for a source on the Hub or in object storage. Its name
    depends only on the path, so a repeated command finds its output, even if other files have appeared. rows.jsonl and
    rows.parquet therefore have the same output name, and one of them needs --output. Raises a PackerError for several
    paths or a dataset in memory, which have no name.
    """
    if isinstance(source, PathList):
        raise OptionError(f"{source} have no common name: name the output with --output")
    if not isinstance(source, str | Path):
        raise PackerError("a dataset in memory has no name: name the output with output=...")
    if is_remote(source):
        return Path(name_after(any_path(source).name, suffix, split).name)  # in the current folder
    place, config = split_configuration(source)
    path = Path(place)
    if path.name in ("", ".."):
        path = path.resolve()
    near = called(path)
    ending = ARRAY if is_array_file(path) else ending_of(near.name)
    name = near.name if path.is_dir() else near.name.removesuffix(ending)
    folder = near.parent if path.exists() else Path()  # for a Hub id, the current folder
    return folder / "-".join(filter(None, (name, config, split, suffix)))


def refuse_inside(source: SourceLike, out: AnyPath) -> None:
    """Raise a PackerError for an output inside a source, because a repeated command would read it as source files."""
    if isinstance(source, PathList):
        for each in source.paths:
            refuse_inside(each, out)
        return
    if isinstance(out, RemotePath):
        places = (str(source), split_configuration(str(source))[0]) if is_remote(source) else ()
        if any(f"{out}/".startswith(f"{any_path(place)}/") for place in places):
            raise PackerError(f"{out} is inside the source {source}: choose an --output next to it")
        return
    if not isinstance(source, str | Path) or is_remote(source):
        return
    folder, _ = split_configuration(source)
    if Path(folder).is_dir() and Path(os.path.realpath(folder)) in Path(os.path.realpath(out)).parents:
        raise PackerError(f"{out} is inside the source {source}: choose an --output next to it")
