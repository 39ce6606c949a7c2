"""Options that several commands have, and the source that they name: a dataset, or a mixture of several."""

from __future__ import annotations

from typing import Annotated

import click

from packer.errors import OptionError
from packer.options import Option
from packer.options.option import GENERAL, MIXTURES, READING
from packer.paths import PathList

AsJson = Annotated[bool, Option("Print JSON instead of text.", GENERAL, flags=("--json",))]
Verbose = Annotated[bool, Option("Print every figure of the summary, also zeros.", GENERAL, flags=("-v", "--verbose"))]
BatchSize = Annotated[
    int, Option("Documents per optimizer step in training without packing.", GENERAL, least=1, metavar="N")
]
PackedSources = Annotated[
    tuple[str, ...],
    Option(
        "Dataset that was packed. Repeat it, in order, for all sources of a mixture, for all paths of a source, "
        "and for what was appended.",
        READING,
        flags=("--source",),
        metavar="DATASET",
    ),
]
MixtureSources = Annotated[
    tuple[str, ...],
    Option(
        "Source of a mixture, instead of DATASET; its weight is 1 by default.",
        MIXTURES,
        flags=("--source",),
        metavar="PATH:WEIGHT",
    ),
]


def source_of(dataset: tuple[str, ...]) -> str | PathList:
    """Return a path as it is, and several as one source."""
    return dataset[0] if len(dataset) == 1 else PathList(dataset)


def sources_and_weights(
    dataset: tuple[str, ...], sources: tuple[str, ...]
) -> tuple[str | PathList | list[str], tuple[float, ...]]:
    """Return (the source, ()), or (the sources of a mixture, their weights)."""
    if bool(dataset) == bool(sources):
        raise click.UsageError("Give a DATASET, or a mixture of several with --source PATH:WEIGHT.")
    if dataset:
        return source_of(dataset), ()
    paths, weights = [], []
    for source in sources:
        path, colon, weight = source.rpartition(":")  # a path may have colons
        try:
            weights.append(float(weight) if colon else 1.0)
        except ValueError:
            remedy = "write PATH:WEIGHT, as in web:0.7"
            raise OptionError(f"--source {source}: {weight!r} is not a weight; {remedy}") from None
        paths.append(path if colon else source)
    return paths, tuple(weights)
