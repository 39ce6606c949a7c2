"""Figures of any source: a dataset, a packed dataset, or a comparison of lengths or algorithms; and their report."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packer import __version__
from packer.algorithms import ALGORITHMS
from packer.errors import OptionError, PackerError, system_errors
from packer.options import PackOptions, values_of
from packer.pipeline.collect_figures import compare, dataset_figures, packed_figures
from packer.progress import Progress, silent
from packer.report.figures import Comparison, Figures
from packer.report.measures import TrainingJob
from packer.shards.manifest import is_packed
from packer.shards.reader import read_manifest
from packer.sources.find_source import SourceLike
from packer.sources.formats import ending_of
from packer.sources.hugging_face import PACKED_FILES
from packer.sources.number_columns import HISTOGRAM, is_histogram
from packer.stores import RemotePath, any_path
from packer.stores.hub import has_files, names_hub
from packer.stores.paths import PathList, expanded, packed_path
from packer.stores.store import Folder

USUAL_LENGTH = 4096
"""Default number of tokens in a row."""

_GENERATOR = b'<meta name="generator" content="packer">'  # near the beginning of every report
_READ_OF_PAGE = 1024  # number of bytes searched for it


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFile:
    """Report to write, if `path` is set. The path is checked before the work begins.

    Only reports of packer are replaced, never a user's page, or a dataset that was named after `--report` by mistake.
    """

    path: Path | None = None
    tokenizer: str | None = None
    """Tokenizer that decodes the tokens of a packed dataset; None to show no text."""

    words: tuple[str, ...] = ()
    """Words of the command line after `packer`, shown in the report; empty in Python."""

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
        """Return the function that converts token ids to text; None to show no text."""
        if self.path is None or self.tokenizer is None:
            return None
        from packer.text.tokenizer import open_decoder

        return open_decoder(self.tokenizer)

    def write(self, figures: Figures) -> None:
        """Write the report if `path` is set."""
        from packer.report.page import render_page

        if self.path is None:
            return
        # Show only the names of absolute paths, because folders reveal facts about the machine.
        command = shlex.join(["packer", *(re.sub(r"(^|=)/(?:[^/]*/)*", r"\1", word) for word in self.words)])
        made_by = f"packer {__version__}, {datetime.now(timezone.utc):%Y-%m-%d}"
        _refuse_foreign(self.path)  # again, because packing may have taken days
        page = render_page(figures, made_by=f"{command}\n{made_by}" if self.words else made_by)
        try:
            Folder(self.path.parent).put(self.path.name, page.encode())
        except OSError as error:
            raise PackerError(f"{self.path}: {error.strerror or error}; choose another file") from error


def stats(
    source: SourceLike,
    *,
    max_lens: Sequence[int] = (),
    values: Mapping[str, Any],
    documents_per_step: int = 64,
    page: ReportFile = ReportFile(),
    job: TrainingJob | None = None,
    progress: Progress = silent,
) -> Figures | Comparison:
    """Collect figures, and write a report of them if `page` has a path.

    `values` has options of a pack by name, without max_len; the algorithm "all" compares all algorithms. `job` is a
    training job whose waiting time is estimated. A histogram in a CSV file is a source of lengths.
    """
    if values.get("tokenizer") is None and is_histogram(source):
        values = {**values, "lengths_column": HISTOGRAM}
    packed = next((path for path in source.paths if names_packed(path)), None) if isinstance(source, PathList) else None
    if packed is not None:
        raise PackerError(f"{packed} is packed: name one dataset, or several packed ones, as for packer.load")
    by_algorithm = values.get("algorithm") == "all"
    if by_algorithm or len(max_lens) > 1:
        asked = f"--report {page.path}" if page.path is not None else ""
        asked = asked if job is None else f"--data-parallel {job.ranks}"
        if asked:
            raise OptionError(f"{asked} is for rows of one length and algorithm: choose one, or leave it out")
    collecting: dict[str, Any] = {
        "documents_per_step": documents_per_step,
        "for_report": page.path is not None,
        "job": job,
        "progress": progress,
    }
    if isinstance(source, str | Path) and names_packed(source):
        if max_lens and [*max_lens] != [read_manifest(packed_path(source)).options.max_len]:
            raise PackerError(
                f"--max-len {','.join(map(str, max_lens))}: {source} is packed, into rows of one length; leave it out, "
                "or predict other lengths on the dataset that it was packed from"
            )
        figures = packed_figures(source, decode=page.decoder(), **collecting)
    else:
        values = {**values, "algorithm": "auto"} if by_algorithm else values
        options = PackOptions(max_len=[USUAL_LENGTH, *max_lens][-1], **values_of(PackOptions, values))
        if by_algorithm and len(max_lens) > 1:
            raise OptionError(f"--max-len {','.join(map(str, max_lens))}: algorithms are compared at one length")
        if by_algorithm:
            return compare(source, options, "algorithm", ALGORITHMS, documents_per_step, progress)
        if len(max_lens) > 1:
            return compare(source, options, "max_len", max_lens, documents_per_step, progress)
        figures = dataset_figures(source, options=options, **collecting)
    page.write(figures)
    return figures


def names_packed(source: str | Path) -> bool:
    """Whether a source is a packed dataset, also on the Hub."""
    path = expanded(source)
    if names_hub(path) and not ending_of(str(path)):
        return has_files(str(path), PACKED_FILES)
    with system_errors(path, resumes=False):
        return is_packed(any_path(path))


def _refuse_foreign(path: Path) -> None:
    """Raise a PackerError if the file exists and is not a report."""
    if not os.path.lexists(path):
        return
    try:
        with path.open("rb") as file:
            is_report = _GENERATOR in file.read(_READ_OF_PAGE)
    except OSError as error:
        raise PackerError(f"--report {path} cannot be read: {error.strerror}; choose another file") from error
    if not is_report:
        raise PackerError(f"--report {path} exists and is not a report of packer: choose another file, or remove it")
