"""Options that several commands have, such as their source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from packer.options import Option
from packer.options.option import GENERAL, OUTPUT, READING
from packer.stores.paths import PathList

AsJson = Annotated[bool, Option("Print JSON instead of text.", GENERAL, flags=("--json",))]
BatchSize = Annotated[int, Option("Documents per optimizer step in training without packing.", GENERAL, least=1)]
DataParallel = Annotated[
    int | None,
    Option(
        "Data-parallel ranks: show how long they wait for each other, each training on one row at a time.",
        GENERAL,
        least=1,
    ),
]
Accumulation = Annotated[
    int | None,
    Option("Rows of each of these ranks in an optimizer step.", GENERAL, least=1, default_words="1"),
]
ModelSize = Annotated[
    str | None,
    Option(
        "Weights of their model, as in 70B, or its config: a folder, a config.json or a Hub id.",
        GENERAL,
        default_words="7B",
    ),
]
PackedSources = Annotated[
    tuple[str, ...],
    Option(
        "Dataset that was packed. Repeat it, in order, for all paths of a source.",
        READING,
        flags=("--source",),
        metavar="DATASET",
    ),
]
Report = Annotated[
    Path | None, Option("HTML file to write: a report with plots, which needs no network.", OUTPUT, metavar="FILE.html")
]


def source_of(dataset: tuple[str, ...]) -> str | PathList:
    """Return a path as it is, and several as one source; a UsageError if there is none."""
    if not dataset:
        raise click.UsageError("Give a DATASET.")
    return dataset[0] if len(dataset) == 1 else PathList(dataset)
