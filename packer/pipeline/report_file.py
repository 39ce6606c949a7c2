"""The file of a report: checked before the work begins, and written when the figures are known."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packer.errors import OptionError, PackerError
from packer.report.dataset_figures import Figures
from packer.stores import RemotePath
from packer.version import __version__

_GENERATOR = b'<meta name="generator" content="packer">'  # near the beginning of every report
_READ_OF_PAGE = 1024  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFile:
    """The report that is to be written, if there is a path; it is checked before the work begins.

    Only a report of packer is ever replaced: no source whose name follows `--report` by mistake, and no page of a user.
    """

    path: Path | None = None
    tokenizer: str | None = None
    """Tokenizer that makes text of the tokens of a packed dataset; None to show no text."""

    words: tuple[str, ...] = ()
    """The words of the command line after `packer`, which the report names; none in Python."""

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

    def write(self, figures: Figures) -> None:
        """Write the report if one is asked for."""
        from packer.report.page import render_page

        if self.path is None:
            return
        # Of absolute paths only the name is shown, which says nothing of the machine.
        command = shlex.join(["packer", *(re.sub(r"(^|=)/(?:[^/]*/)*", r"\1", word) for word in self.words)])
        made_by = f"packer {__version__}, {datetime.now(timezone.utc):%Y-%m-%d}"
        _refuse_foreign(self.path)  # again, because packing may have taken days
        _write(self.path, render_page(figures, made_by=f"{command}\n{made_by}" if self.words else made_by))


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
