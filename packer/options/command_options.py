"""The options of everything that writes a folder. They do not affect the bytes of a packed dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from packer.errors import OptionError
from packer.options.choices import EngineName
from packer.options.option import OUTPUT, RANKS, Option
from packer.options.values import as_ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions:
    """Options of everything that writes a folder."""

    output: Annotated[
        Path | None,
        Option(
            "Folder to write.", OUTPUT, flags=("-o", "--output"), default_words="the name of the input with an ending"
        ),
    ] = None
    workers: Annotated[
        int | None,
        Option("Number of threads.", OUTPUT, least=1, metavar="N", default_words="the number of available cores"),
    ] = None
    sync: Annotated[
        bool,
        Option(
            "Call fsync for every file and folder.",
            OUTPUT,
            off="Skip fsync: faster, but not safe against a power failure.",
        ),
    ] = True
    overwrite: Annotated[bool, Option("Replace an existing output as soon as the new one is complete.", OUTPUT)] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Options that say who does the work. They do not change the bytes."""

    engine: Annotated[
        EngineName,
        Option("Where tasks run: in threads on this machine, or on a Ray cluster with the same storage.", RANKS),
    ] = "threads"
    ray_address: Annotated[
        str | None,
        Option(
            "Address of the Ray cluster; auto is the cluster that this machine belongs to.",
            RANKS,
            metavar="ADDRESS",
            default_words="a cluster of this machine alone",
        ),
    ] = None
    rank: Annotated[
        int | None,
        Option("Number of this process, from 0, if several pack into one folder.", RANKS, least=0, metavar="R"),
    ] = None
    ranks: Annotated[
        str | None,
        Option(
            "Number of these processes; env reads both numbers from the variables of torchrun, Slurm or SkyPilot.",
            RANKS,
            metavar="N",
            convert=as_ranks,
        ),
    ] = None
    rank_timeout: Annotated[
        float,
        Option("Seconds without a heartbeat after which other ranks take over.", RANKS, least=0.1, metavar="SECONDS"),
    ] = 30.0

    def __post_init__(self) -> None:
        if self.ray_address is not None and self.engine != "ray":
            raise OptionError(f"--ray-address {self.ray_address} is for --engine ray")
