"""Options of everything that writes a folder. None of them affects the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packer.options.option import OUTPUT, RANKS, as_engine, as_ranks, check_options, option
from packer.progress import Progress, silent
from packer.stores import RemotePath

WRITING = ("pack", "tokenize", "export")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where to write an output, how to run its tasks, and whether to replace an existing output."""

    output: Path | RemotePath | str | None = option(
        None,
        "Folder to write.",
        OUTPUT,
        flags=("-o", "--output"),
        default_words="the name of the input with a suffix",
        commands=("pack", "tokenize", "export", "demo"),
    )
    workers: int | None = option(
        None,
        "Number of threads.",
        OUTPUT,
        least=1,
        default_words="the number of available cores",
        commands=(*WRITING, "verify"),
    )
    sync: bool = option(
        True,
        "Call fsync for every file and folder.",
        OUTPUT,
        off="Skip fsync: faster, but not safe against a power failure.",
        commands=WRITING,
    )
    overwrite: bool = option(
        False, "Replace an existing output as soon as the new one is complete.", OUTPUT, commands=WRITING
    )
    engine: str = option(
        "threads",
        "Where tasks run: in threads on this machine, or on a Ray cluster with the same storage. ray starts a cluster "
        "on this machine, ray:ADDRESS connects to another cluster, and ray:auto to the cluster of this machine.",
        RANKS,
        metavar="ENGINE",
        convert=as_engine,
        commands=("pack", "verify"),
    )
    ranks: str | None = option(
        None,
        "Number of this process, from 0, and number of processes that pack into one folder, as in 0/4. env reads both "
        "from variables of torchrun, Slurm or SkyPilot.",
        RANKS,
        metavar="R/N",
        convert=as_ranks,
        commands=("pack",),
    )
    progress: Progress = silent
    """Callback, called as `progress(stage, done, total)` in every stage."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def uses_ray(self) -> bool:
        """Whether tasks run on a Ray cluster."""
        return self.engine != "threads"
