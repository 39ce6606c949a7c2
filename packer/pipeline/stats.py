"""The figures of any source: of a dataset, of a packed one, or of several row lengths or algorithms compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.errors import OptionError, PackerError
from packer.options import PackOptions, values_of
from packer.paths import PathList, expanded
from packer.pipeline.collect_figures import compare_algorithms, compare_lengths, dataset_figures, packed_figures
from packer.pipeline.report_file import ReportFile
from packer.pipeline.waiting import TrainingJob
from packer.progress import Progress, silent
from packer.report.comparison import Comparison
from packer.report.dataset_figures import Figures
from packer.shards.manifest import is_packed
from packer.shards.reader import read_manifest
from packer.sources.number_columns import HISTOGRAM, is_histogram
from packer.sources.open_sources import SourceLike
from packer.stores import any_path
from packer.system_errors import system_errors

USUAL_LENGTH = 4096
"""Tokens in a row, if none are named."""


def stats(
    source: SourceLike,
    *,
    max_lens: Sequence[int] = (),
    values: Mapping[str, Any],
    documents_per_step: int = 64,
    page: ReportFile = ReportFile(),  # noqa: B008 (immutable)
    job: TrainingJob | None = None,
    progress: Progress = silent,
) -> Figures | Comparison:
    """Collect figures, and write a report of them if `page` has a path.

    `values` are options of a pack by name, without max_len; the algorithm "all" compares those that are quick. `job` is
    a training job whose ranks wait for each other. A histogram in a CSV file is a source of lengths.
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
        _refuse_lengths(source, max_lens)
        figures = packed_figures(source, decode=page.decoder(), **collecting)
    else:
        values = {**values, "algorithm": "auto"} if by_algorithm else values
        options = PackOptions(max_len=[USUAL_LENGTH, *max_lens][-1], **values_of(PackOptions, values))
        if by_algorithm and len(max_lens) > 1:
            raise OptionError(f"--max-len {','.join(map(str, max_lens))}: algorithms are compared at one length")
        if by_algorithm:
            return compare_algorithms(source, options, documents_per_step, progress)
        if len(max_lens) > 1:
            return compare_lengths(source, options, max_lens, documents_per_step, progress)
        figures = dataset_figures(source, options=options, **collecting)
    page.write(figures)
    return figures


def names_packed(source: str | Path) -> bool:
    """Whether a source is a packed dataset."""
    path = any_path(expanded(source))
    with system_errors(path, resumes=False):
        return is_packed(path)


def _refuse_lengths(packed: str | Path, max_lens: Sequence[int]) -> None:
    """Raise a PackerError if lengths are given, in which a packed dataset does not have its rows."""
    if max_lens and [*max_lens] != [read_manifest(any_path(expanded(packed))).options.max_len]:
        raise PackerError(
            f"--max-len {','.join(map(str, max_lens))}: {packed} is packed, into rows of one length; leave it out, or "
            "predict other lengths on the dataset that it was packed from"
        )
