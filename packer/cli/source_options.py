"""The source of `pack`, `stats` and `compare`: a dataset, or a mixture of several."""

from __future__ import annotations

from typing import Annotated

import click

from packer.errors import OptionError
from packer.options import Option
from packer.options.option import MIXTURES
from packer.paths import PathList

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
    mixture = [_path_and_weight(source) for source in sources]
    return [path for path, _ in mixture], tuple(weight for _, weight in mixture)


def lengths_and_column(lengths: str) -> tuple[tuple[str], str | None]:
    """Split FILE:COLUMN at the last colon; a .npy file has no columns."""
    path, colon, column = lengths.rpartition(":")
    if lengths.endswith(".npy"):
        return (lengths,), None
    if not colon or not column or "/" in column:
        raise OptionError(f"--lengths is {lengths!r}: name the column as well, as in data.parquet:num_tokens")
    return (path,), column


def _path_and_weight(source: str) -> tuple[str, float]:
    """Split PATH:WEIGHT at the last colon; a path may have more."""
    path, colon, weight = source.rpartition(":")
    if not colon:
        return source, 1.0
    try:
        return path, float(weight)
    except ValueError:
        raise OptionError(f"--source {source}: {weight!r} is not a weight; write PATH:WEIGHT, as in web:0.7") from None
