"""What `pack`, `stats` and `compare` read: one source or a mixture, and which documents belong together."""

from __future__ import annotations

from typing import Any

import click

from packer.cli.shared import Command, declared
from packer.errors import PackerError

GROUP_MODE_NAMES = ("together", "apart")  # as in packer.plan, which imports numpy; a test compares them


def source_options(command: Command) -> Command:
    """Declare DATASET, and a mixture in its place."""
    options = (
        click.argument("dataset", required=False),
        click.option("--source", "sources", multiple=True, metavar="PATH:WEIGHT",
                     help="In place of DATASET, a source of a mixture; repeat it for each. Without a weight: 1."),
        click.option("--mix-unit", type=click.Choice(["tokens", "epochs"]), default="tokens", show_default=True,
                     help="What weights are: shares of the mixture's tokens, or how often each source is seen."),
        click.option("--mix-tokens", type=click.IntRange(1), metavar="N",
                     help="Tokens of the mixture [default: as many as there are without repeating a source]."),
    )  # fmt: skip
    return declared(command, options)


def group_options(command: Command) -> Command:
    """Declare which documents stay together or apart."""
    options = (
        click.option("--group-by", type=(str, click.Choice(GROUP_MODE_NAMES)), metavar="COLUMN together|apart",
                     help="Rows of one value of COLUMN only, or no two of a value in a row; null is no group."),
        click.option("--pairs", is_flag=True,
                     help="Rows are pairs, chosen_input_ids and rejected_input_ids, which stay together; role is "
                     "kept."),
    )  # fmt: skip
    return declared(command, options)


seed_option = click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Another seed is another packing of as many rows, and another sample for a mixture.",
)


def given_sources(
    dataset: str | None, sources: tuple[str, ...], group_by: tuple[str, str] | None
) -> tuple[str | list[str], dict[str, Any]]:
    """(the source, or those of a mixture, and the options that say their weights and the groups).

    Raises:
        click.UsageError: both or neither of DATASET and --source are given.
        PackerError: what follows the last colon of a --source is no number.
    """
    if (dataset is None) == (not sources):
        raise click.UsageError("Give a DATASET, or several with --source PATH:WEIGHT.")
    mixture = [_weighted(source) for source in sources]
    options: dict[str, Any] = {"weights": tuple(weight for _, weight in mixture)}
    if group_by is not None:
        options["group_by"], options["group_mode"] = group_by
    return dataset if dataset is not None else [path for path, _ in mixture], options


def _weighted(source: str) -> tuple[str, float]:
    """(path, weight) of PATH:WEIGHT; a path may have colons.

    Raises:
        PackerError: what follows the last colon is no number.
    """
    path, colon, weight = source.rpartition(":")
    if not colon:
        return source, 1.0
    try:
        return path, float(weight)
    except ValueError:
        raise PackerError(f"--source {source}: {weight!r} is no weight; write PATH:WEIGHT, as in web:0.7") from None
