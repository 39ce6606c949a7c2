"""Options that several commands have: their source, defaults from a file, and reports."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from packer import __version__
from packer.cli.command import ARGUMENTS, UserPath
from packer.errors import OptionError, PackerError
from packer.options import Option
from packer.options.option import GENERAL, OUTPUT, READING
from packer.paths import PathList
from packer.stores import RemotePath

if TYPE_CHECKING:
    from packer.report.dataset_figures import Figures

AsJson = Annotated[bool, Option("Print JSON instead of text.", GENERAL, flags=("--json",))]
Verbose = Annotated[bool, Option("Print every figure of the summary, also zeros.", GENERAL, flags=("-v", "--verbose"))]
BatchSize = Annotated[int, Option("Documents per optimizer step in training without packing.", GENERAL, least=1)]
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


# ---- reports ----


_GENERATOR = b'<meta name="generator" content="packer">'  # near the beginning of every report
_READ_OF_PAGE = 1024  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFile:
    """The report that a command is to write, which is checked before the work begins.

    Only a report of packer is ever replaced: no source whose name follows `--report` by mistake, and no page of a user.
    """

    path: Path | None
    tokenizer: str | None
    """Tokenizer that makes text of the tokens of a packed dataset; None to show no text."""

    def __post_init__(self) -> None:
        path = self.path
        if path is None:
            return
        if isinstance(path, RemotePath):
            raise OptionError(f"--report {path} is in object storage: name a local file")
        if path.is_dir():
            raise PackerError(f"--report {path} is a folder: name a file in it")
        if path.suffix.lower() != ".html":
            raise OptionError(f"--report {path}: name a file that ends with .html, so that no data is replaced")
        if not os.access(path.parent, os.W_OK):
            reason = "cannot be written to" if path.parent.is_dir() else "does not exist"
            raise PackerError(f"--report {path}: the folder {path.parent} {reason}; choose another")
        _refuse_foreign(path)

    def decoder(self) -> Callable[[Any], str] | None:
        """Return the function from token ids to text; None to show no text."""
        if self.path is None or self.tokenizer is None:
            return None
        from packer.text.load_tokenizer import open_decoder

        return open_decoder(self.tokenizer)

    def write(self, figures: Figures) -> list[str]:
        """Write the report if one is asked for, and return a line about it."""
        from packer.report.page import render_page

        if self.path is None:
            return []
        words: list[str] = click.get_current_context().meta[ARGUMENTS]
        # Of absolute paths only the name is shown, which says nothing of the machine.
        command = shlex.join(["packer", *(re.sub(r"(^|=)/(?:[^/]*/)*", r"\1", word) for word in words)])
        made_by = f"{command}\npacker {__version__}, {datetime.now(timezone.utc):%Y-%m-%d}"
        _refuse_foreign(self.path)  # again, because packing may have taken days
        _write(self.path, render_page(figures, made_by=made_by))
        return [f"Report written to {self.path}"]


def _refuse_foreign(path: Path) -> None:
    """Raise a PackerError if a file exists that is not a report."""
    if not os.path.lexists(path):
        return
    try:
        with path.open("rb") as file:
            is_report = _GENERATOR in file.read(_READ_OF_PAGE)
    except OSError as error:
        raise PackerError(f"--report {path} cannot be read: {error.strerror}; choose another file") from error
    if not is_report:
        raise PackerError(f"--report {path} exists and is not a report of packer: choose another file, or remove it")


def _write(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it, so that it is never incomplete."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise PackerError(f"{path}: {error.strerror or error}; choose another file") from error
