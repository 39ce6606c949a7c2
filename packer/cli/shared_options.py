"""Options that several commands have: their source, and defaults from a file."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import click

from packer.cli.command import UserPath
from packer.errors import PackerError
from packer.options import Option
from packer.options.option import GENERAL, OUTPUT, READING
from packer.paths import PathList

AsJson = Annotated[bool, Option("Print JSON instead of text.", GENERAL, flags=("--json",))]
Verbose = Annotated[bool, Option("Print every figure of the summary, also zeros.", GENERAL, flags=("-v", "--verbose"))]
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


# ---- --config ----


def _use_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the options of a TOML file the defaults of a command, which must have all of them."""
    if path is None:
        return
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PackerError(f"{path} cannot be read: {reason}") from error
    known = {"source" if name == "sources" else name: parameter for name, parameter in _settable(context).items()}
    defaults = {}
    for name, value in content.items():
        found = known.get(name.replace("-", "_"))
        if found is None:
            similar = get_close_matches(name.replace("-", "_"), known, n=1)
            meant = f"; did you mean {similar[0]}?" if similar else ""
            raise click.UsageError(f"{path}: {context.info_name} has no option {name!r}{meant}")
        is_list = found.multiple or found.nargs == -1
        defaults[found.name] = [value] if is_list and isinstance(value, str) else value
    context.default_map = {**(context.default_map or {}), **defaults}


def _settable(context: click.Context) -> dict[str, click.Parameter]:
    """The parameters that a file may set, by name."""
    others = ("help", "help_all", "as_json", "debug", "config")
    return {str(parameter.name): parameter for parameter in context.command.params if parameter.name not in others}


config_option = click.option(
    "--config",
    type=UserPath(),
    metavar="FILE",
    is_eager=True,  # read before the options whose defaults it sets
    expose_value=False,
    callback=_use_file,
    help="TOML file of defaults: max_len = 4096, keep = ['topic'].",
)
