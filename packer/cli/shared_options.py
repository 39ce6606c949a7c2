"""Options that several commands have: their source, defaults from a file or a packed dataset, and reports."""

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
from packer.cli.command import ARGUMENTS, FileContent, UserPath
from packer.cli.printing import echo
from packer.errors import OptionError, PackerError
from packer.options import Option, PackOptions, options_of
from packer.options.option import GENERAL, OUTPUT, READING
from packer.paths import PathList
from packer.stores import RemotePath

if TYPE_CHECKING:
    from packer.figures.dataset_figures import Figures

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
WithText = Annotated[
    bool,
    Option("Show the beginnings of documents in the report, which otherwise holds no text; needs --tokenizer.", OUTPUT),
]


def source_of(dataset: tuple[str, ...]) -> str | PathList:
    """Return a path as it is, and several as one source; a UsageError if there is none."""
    if not dataset:
        raise click.UsageError("Give a DATASET.")
    return dataset[0] if len(dataset) == 1 else PathList(dataset)


# ---- --config and --like: the command line overrides the file, and the file overrides the dataset ----


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


def _use_dataset(context: click.Context, parameter: click.Parameter, folder: Path | None) -> None:
    """Make the options of a packed dataset the defaults of a command, and name those that it cannot predict."""
    if folder is None:
        return
    from packer.shards.reader import read_manifest

    try:
        options = read_manifest(folder, intact=True).options
    except PackerError as error:
        raise PackerError(f"--like: {error}") from error
    defaults: dict[str, Any] = {}
    for name, value in options.to_dict().items():
        declared = options_of(PackOptions)[name]
        if name in _settable(context):
            defaults[name] = FileContent(value) if declared.is_file else value
        elif declared.needs_tokens:
            echo(
                f"packer: {folder} was packed with {declared.shown} {value}, which {context.info_name} cannot predict: "
                f"its rows are those of {declared.shown} {declared.default}",
                err=True,
            )
    context.default_map = {**defaults, **(context.default_map or {})}


def _settable(context: click.Context) -> dict[str, click.Parameter]:
    """The parameters that a file may set, by name."""
    others = ("help", "as_json", "debug", "config", "like")
    return {str(parameter.name): parameter for parameter in context.command.params if parameter.name not in others}


def _eager_option(flag: str, metavar: str, callback: Callable[..., None], words: str) -> Callable[[Any], Any]:
    """Make an option that is read before those whose defaults it sets, and does not reach the function."""
    return click.option(
        flag, type=UserPath(), metavar=metavar, is_eager=True, expose_value=False, callback=callback, help=words
    )


like_option = _eager_option(
    "--like", "PACKED", _use_dataset, "Packed dataset whose options are the defaults; its sources are not."
)
config_option = _eager_option("--config", "FILE", _use_file, "TOML file of defaults: max_len = 4096, keep = ['topic'].")


# ---- reports and plots ----


_GENERATOR = b'<meta name="generator" content="packer">'  # near the beginning of every report
_READ_OF_PAGE = 1024  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFiles:
    """The report and the plot that a command is to write, which are checked before the work begins.

    Only a report of packer is ever replaced: no source whose name follows `--report` by mistake, and no page of a user.
    """

    report: Path | None
    plot: Path | None = None
    plot_of: str = "rows"
    with_text: bool
    tokenizer: str | None

    def __post_init__(self) -> None:
        for option, path, ending in (("--report", self.report, ".html"), ("--plot", self.plot, ".svg")):
            if path is None:
                continue
            if isinstance(path, RemotePath):
                raise OptionError(f"{option} {path} is in object storage: name a local file")
            if path.is_dir():
                raise PackerError(f"{option} {path} is a folder: name a file in it")
            if path.suffix.lower() != ending:
                raise OptionError(f"{option} {path}: name a file that ends with {ending}, so that no data is replaced")
            if not os.access(path.parent, os.W_OK):
                reason = "cannot be written to" if path.parent.is_dir() else "does not exist"
                raise PackerError(f"{option} {path}: the folder {path.parent} {reason}; choose another")
        if self.report is not None:
            _refuse_foreign(self.report)
        if self.with_text and self.report is None:
            raise OptionError("--with-text is for a report: add --report FILE.html")
        if self.with_text and self.tokenizer is None:
            raise OptionError("--with-text needs --tokenizer, which makes text of tokens")

    def decoder(self) -> Callable[[Any], str] | None:
        """Return the function from token ids to text; None to show no text."""
        if not self.with_text or self.tokenizer is None:
            return None
        from packer.text.load_tokenizer import open_decoder

        return open_decoder(self.tokenizer)

    def write(self, figures: Figures) -> list[str]:
        """Write the files, and return a line about each."""
        from packer.figures.page import render_page, render_plot

        lines = []
        if self.plot is not None:
            _write(self.plot, render_plot(figures, self.plot_of))
            lines.append(f"Plot written to {self.plot}")
        if self.report is not None:
            words: list[str] = click.get_current_context().meta[ARGUMENTS]
            # Of absolute paths only the name is shown, which says nothing of the machine.
            command = shlex.join(["packer", *(re.sub(r"(^|=)/(?:[^/]*/)*", r"\1", word) for word in words)])
            made_by = f"{command}\npacker {__version__}, {datetime.now(timezone.utc):%Y-%m-%d}"
            _refuse_foreign(self.report)  # again, because packing may have taken days
            _write(self.report, render_page(figures, made_by=made_by))
            lines.append(f"Report written to {self.report}")
        return lines


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
