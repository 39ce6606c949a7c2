"""Reports and plots as files of `packer stats` and `packer pack`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from packer import __version__
from packer.cli.command import ARGUMENTS
from packer.errors import OptionError, PackerError
from packer.options import Option
from packer.options.option import OUTPUT
from packer.stores import RemotePath

if TYPE_CHECKING:
    from packer.figures.dataset_figures import Figures

Decode = Callable[[Any], str]
"""Function from token ids to text."""

Report = Annotated[
    Path | None,
    Option("HTML file to write: a report with plots, which needs no network.", OUTPUT, metavar="FILE.html"),
]
WithText = Annotated[
    bool,
    Option("Show the beginnings of documents in the report, which otherwise holds no text; needs --tokenizer.", OUTPUT),
]


def check_report_files(
    *, report: Path | None, plot: Path | None = None, with_text: bool, tokenizer: str | None
) -> None:
    """Check before the work begins that the files can be written, and that text can be shown.

    A file of another kind, such as a source whose name follows `--report` by mistake, is never replaced.
    """
    for option, path, ending in (("--report", report, ".html"), ("--plot", plot, ".svg")):
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
    if with_text and report is None:
        raise OptionError("--with-text is for a report: add --report FILE.html")
    if with_text and tokenizer is None:
        raise OptionError("--with-text needs --tokenizer, which makes text of tokens")


def text_decoder(*, with_text: bool, tokenizer: str | None) -> Decode | None:
    """Return the function from token ids to text; None to show no text."""
    if not with_text or tokenizer is None:
        return None
    from packer.text import open_decoder

    return open_decoder(tokenizer)


def write_report_files(
    figures: Figures, *, report: Path | None, plot: Path | None = None, plot_of: str = "rows"
) -> list[str]:
    """Write the requested report and plot, and return a line about each."""
    from packer.figures.page import render_page, render_plot

    lines = []
    if plot is not None:
        _write(plot, render_plot(figures, plot_of))
        lines.append(f"Plot written to {plot}")
    if report is not None:
        _write(report, render_page(figures, made_by=_made_by()))
        lines.append(f"Report written to {report}")
    return lines


def _made_by() -> str:
    """The command, the version and the date; of absolute paths only the name, which says nothing of the machine."""
    words: list[str] = click.get_current_context().meta[ARGUMENTS]
    shown = [re.sub(r"(^|=)/(?:[^/]*/)*", r"\1", word) for word in words]
    return f"{shlex.join(['packer', *shown])}\npacker {__version__}, {datetime.now(timezone.utc):%Y-%m-%d}"


def _write(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it, so that it is never incomplete."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise PackerError(f"{path}: {error.strerror or error}; choose another file") from error
