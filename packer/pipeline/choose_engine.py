"""Choose who runs the tasks of a pack: one process, or one of several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from packer.engine import Engine, OneProcess
from packer.errors import PackerError
from packer.output.packed_output import PackedOutput
from packer.paths import PathList
from packer.pipeline.read_documents import SourceLike
from packer.ranks import FOLDER, RankOf, Ranks, SignsOfLife
from packer.shards.manifest import is_packed


def refuse_with_ranks(source: SourceLike | Sequence[SourceLike], *, sync: bool, overwrite: bool) -> None:
    """Raise a PackerError for what several processes cannot do together."""
    if overwrite:
        raise PackerError("--overwrite cannot be used with --ranks: remove the output first, or choose another")
    if not sync:
        raise PackerError(
            "--ranks needs synced files, because each rank relies on those of the others: do not switch syncing off"
        )
    for each in source if isinstance(source, (list, tuple)) else [source]:
        if not isinstance(each, str | Path | PathList):
            raise PackerError("a dataset in memory cannot be packed by several ranks: save it, and name its folder")


@contextmanager
def chosen_engine(claimed: PackedOutput, place: RankOf | None, workers: int, timeout: float) -> Iterator[Engine]:
    """Yield the engine that decides which tasks this process runs."""
    if place is None:
        yield OneProcess(workers=workers)
        return
    engine = Ranks(
        rank=place.rank,
        ranks=place.ranks,
        workers=workers,
        signs=SignsOfLife(folder=claimed.work / FOLDER, patience=timeout),
        is_complete=partial(is_packed, claimed.out),
    )
    with engine.present():
        yield engine
