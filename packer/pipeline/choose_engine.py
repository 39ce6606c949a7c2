"""Choose who runs the tasks of a pack: this process, one of several ranks, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from packer.engine import Engine, Threads
from packer.errors import OptionError
from packer.options.command_options import EngineOptions
from packer.output.unfinished_pack import UnfinishedPack
from packer.paths import PathList
from packer.pipeline.read_documents import SourceLike
from packer.ranks import RankOf, Ranks, rank_of
from packer.shards.manifest import is_packed
from packer.signs_of_life import SignsOfLife
from packer.stores import AnyPath, is_remote


def chosen_rank(
    options: EngineOptions,
    source: SourceLike | Sequence[SourceLike],
    output: str | AnyPath | None,
    *,
    sync: bool,
    overwrite: bool,
    remedy: str = "remove the output first, or choose another",
) -> RankOf | None:
    """Return which rank this process is; None if it claims the output alone, which is not possible in object storage.

    Args:
        options: options of the engine.
        source: source of the pack.
        output: output of the pack.
        sync: whether files are synced.
        overwrite: whether an output may be replaced.
        remedy: what to do instead, for the message.

    Raises:
        OptionError: options exclude each other, or cannot be used by several processes.
    """
    place = rank_of(options.rank, options.ranks)
    if options.ray_address is not None and options.engine != "ray":
        raise OptionError(f"--ray-address {options.ray_address} is for --engine ray")
    if place is not None and options.engine == "ray":
        raise OptionError("--engine ray and --ranks exclude each other: Ray divides the work itself")
    if place is None and options.engine == "threads":
        return RankOf(rank=0, ranks=1) if is_remote(output) else None
    name = "--ranks" if place is not None else "--engine ray"
    if overwrite and place is not None:
        raise OptionError(f"--overwrite cannot be used with {name}: {remedy}")
    if not sync and not is_remote(output):  # where nothing is synced
        raise OptionError(
            f"{name} needs synced files, because processes rely on those of others: do not switch syncing off"
        )
    if _is_in_memory(source):
        raise OptionError(f"a dataset in memory cannot be packed with {name}: save it, and name its folder")
    return place


def _is_in_memory(source: object) -> bool:
    """Whether a source, or one of several, is not a path."""
    if isinstance(source, (list, tuple)):
        return any(map(_is_in_memory, source))
    return not isinstance(source, str | Path | PathList)


@contextmanager
def chosen_engine(
    claimed: UnfinishedPack,
    options: EngineOptions,
    place: RankOf | None,
    workers: int,
    is_complete: Callable[[], bool] | None = None,
) -> Iterator[Engine]:
    """Yield the engine that runs the tasks.

    Args:
        claimed: output.
        options: options of the engine.
        place: rank of this process; None if it claims the output alone.
        workers: number of threads, or of the cores of a Ray cluster that is started here.
        is_complete: whether another process has completed the output; by default, whether its manifest is there.
    """
    is_alone = options.ranks is None
    signs = SignsOfLife(folder=claimed.signs, patience=options.rank_timeout, is_alone=is_alone)
    is_complete = is_complete or partial(is_packed, claimed.out)
    if options.engine == "ray":
        from packer.ray_engine import ray_engine

        showing = signs.shown(0, is_complete) if claimed.is_shared else nullcontext()
        with showing, ray_engine(options.ray_address, workers) as on_ray:
            yield on_ray
    elif place is None:
        yield Threads(workers=workers)
    else:
        ranked = Ranks(rank=place.rank, ranks=place.ranks, workers=workers, signs=signs, is_complete=is_complete)
        with ranked.present():
            yield ranked
