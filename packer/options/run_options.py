"""The options of everything that writes a folder. They do not affect the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from packer.errors import OptionError
from packer.options.choices import EngineName
from packer.options.option import OUTPUT, RANKS, Option, check_options
from packer.options.values import as_ranks
from packer.progress import Progress, silent
from packer.stores import RemotePath

WRITING = ("pack", "append", "tokenize", "materialize", "export")
PACKING = ("pack", "append", "materialize")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where an output is written, who does the work, and what it may replace."""

    output: Annotated[
        Path | RemotePath | str | None,
        Option(
            "Folder to write.",
            OUTPUT,
            flags=("-o", "--output"),
            default_words="the name of the input with an ending",
            commands=("pack", "tokenize", "materialize", "export", "demo"),
        ),
    ] = None
    workers: Annotated[
        int | None,
        Option(
            "Number of threads.",
            OUTPUT,
            least=1,
            metavar="N",
            default_words="the number of available cores",
            commands=(*WRITING, "verify"),
        ),
    ] = None
    sync: Annotated[
        bool,
        Option(
            "Call fsync for every file and folder.",
            OUTPUT,
            off="Skip fsync: faster, but not safe against a power failure.",
            commands=WRITING,
        ),
    ] = True
    overwrite: Annotated[
        bool, Option("Replace an existing output as soon as the new one is complete.", OUTPUT, commands=WRITING)
    ] = False
    engine: Annotated[
        EngineName,
        Option(
            "Where tasks run: in threads on this machine, or on a Ray cluster with the same storage.",
            RANKS,
            commands=(*PACKING, "verify"),
        ),
    ] = "threads"
    ray_address: Annotated[
        str | None,
        Option(
            "Address of the Ray cluster; auto is the cluster that this machine belongs to.",
            RANKS,
            metavar="ADDRESS",
            default_words="a cluster of this machine alone",
            commands=(*PACKING, "verify"),
        ),
    ] = None
    rank: Annotated[
        int | None,
        Option(
            "Number of this process, from 0, if several pack into one folder.",
            RANKS,
            least=0,
            metavar="R",
            commands=PACKING,
        ),
    ] = None
    ranks: Annotated[
        str | None,
        Option(
            "Number of these processes; env reads both numbers from the variables of torchrun, Slurm or SkyPilot.",
            RANKS,
            metavar="N",
            convert=as_ranks,
            commands=PACKING,
        ),
    ] = None
    rank_timeout: Annotated[
        float,
        Option(
            "Seconds without a heartbeat after which other ranks take over.",
            RANKS,
            least=0.1,
            metavar="SECONDS",
            commands=PACKING,
        ),
    ] = 30.0
    progress: Progress = silent
    """Callback, called as `progress(stage, done, total)` in every stage."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.ray_address is not None and self.engine != "ray":
            raise OptionError(f"--ray-address {self.ray_address} is for --engine ray")
