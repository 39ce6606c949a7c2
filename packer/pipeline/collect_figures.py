"""Collect figures: of a dataset, from the lengths of its documents; of a packed one, from segment bounds.

Rows of several lengths, or by several algorithms, are planned from the same lengths of documents and compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms import ALGORITHMS, Algorithm
from packer.algorithms.jit import compile_seconds, prepare_for
from packer.arrow import as_numpy
from packer.errors import PackerError
from packer.loader.load import load
from packer.options import RowOptions
from packer.paths import expanded
from packer.pipeline.shown_rows import chosen_rows, packed_rows, planned_rows
from packer.pipeline.source_warnings import warn_of_rejected
from packer.pipeline.waiting import TrainingJob, waiting_of
from packer.plan.cutting import cut_lengths_of
from packer.plan.make_plan import plan_lengths
from packer.plan.rows import Plan
from packer.plan.whole_plan import DocumentValues, document_values
from packer.progress import Progress, silent
from packer.report.comparison import Comparison
from packer.report.dataset_figures import Figures
from packer.report.length_figures import counted, tally
from packer.report.row_figures import RowFigures, RowSums, Waiting
from packer.shards.manifest import Manifest
from packer.shards.reader import check_batch, open_shard, read_manifest
from packer.shards.structure import RowSegments
from packer.sources.open_sources import SourceLike, open_source, source_name
from packer.sources.read_documents import Documents, read_documents
from packer.sources.record_decoder import REPEATED, SAVED
from packer.stores import AnyPath, any_path
from packer.system_errors import system_errors


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Lengths of documents, and values by which they may share rows."""

    lengths: NDArray[np.int32]
    """(documents,) tokens of each document."""

    values: DocumentValues = field(default_factory=DocumentValues)
    """Groups of documents, or what they take of limits, in packing order."""

    documents: Documents | None = None
    """Documents of the source; None if the lengths are from packed rows."""

    def plan(self, options: RowOptions, progress: Progress = silent) -> Plan:
        """Plan the rows that `pack` makes with these options; arguments and errors are those of `plan_lengths`."""
        return plan_lengths(self.lengths, options, values=self.values, progress=progress)

    def follow(self, plan: Plan, options: RowOptions, *, keeps_rows: bool = False) -> RowFigures:
        """Return the figures of all planned rows; `keeps_rows` is that of `RowSums`."""
        sums = RowSums(options.max_len, limits=options.limits, keeps_rows=keeps_rows)
        for rows in map(plan.rows, range(len(plan.shard_rows))):
            limited = {name: self.values.limits[name][rows.documents] for name in options.limits}
            sums.add(rows.lengths, rows.row_starts, starts=rows.starts, limited=limited)
        return sums.finish()


def measure(source: SourceLike, options: RowOptions, progress: Progress = silent) -> Measured:
    """Read the lengths of a source, as `pack` does; nothing is written.

    Uses only the options for reading, grouping and limits. Progress is "lengths", "decode" or "tokenize", in bytes of
    the files.
    """
    opened = open_source(expanded(source), options)
    documents = read_documents(opened, progress, hold_lengths=True, with_extra=options.is_planned_whole)
    assert documents.lengths is not None
    warn_of_rejected(documents.rejections)
    prepare_for(documents=documents.identity.documents)
    measured = Measured(lengths=documents.lengths, documents=documents)
    if not options.is_planned_whole:
        return measured
    values = document_values(documents, documents.extra, options)
    return replace(measured, values=values)


def dataset_figures(
    source: SourceLike,
    *,
    options: RowOptions,
    documents_per_step: int = 64,
    for_report: bool = False,
    job: TrainingJob | None = None,
    progress: Progress = silent,
) -> Figures:
    """Collect the figures of a dataset, and of the rows that `pack` would make; nothing is written.

    `documents_per_step` is for an optimizer step in unpacked training. Progress is in documents while files are read,
    and "plan" in tasks.
    """
    measured = measure(source, options, progress)
    plan = measured.plan(options, progress)
    keeps_rows = for_report or job is not None
    rows = measured.follow(plan, options, keeps_rows=keeps_rows) if keeps_rows or options.limit else None
    segments = cut_lengths_of(options, measured.lengths)
    histogram = segments.histogram  # by extent, which is the number of tokens
    if options.align > 1:
        histogram = np.bincount(segments.tokens[segments.numbers()], minlength=options.max_len + 1)
    figures = Figures(
        options=options,
        totals=plan.totals,
        histogram=histogram,
        documents_per_step=documents_per_step,
        document_lengths=tally(measured.lengths),
        measured_rows=rows,
        repeated_tokens=_counted(measured, REPEATED),
        saved_tokens=_counted(measured, SAVED),
        waiting=_waiting(rows, job),
    )
    if rows is None or rows.profile is None or not for_report:
        return figures
    shown = planned_rows(plan, chosen_rows(rows.profile), options.align)
    return replace(figures, name=source_name(source), shown_rows=shown)


def _waiting(rows: RowFigures | None, job: TrainingJob | None) -> Waiting | None:
    """Return the time that ranks wait, if a job is given."""
    return None if job is None or rows is None or rows.profile is None else waiting_of(rows.profile, job)


def _counted(measured: Measured, name: str) -> int | None:
    """Return a sum of `Batch.counts` over the source; None if it has none."""
    return None if measured.documents is None else measured.documents.counts.get(name)


def packed_figures(
    packed: str | AnyPath,
    *,
    documents_per_step: int = 64,
    for_report: bool = False,
    decode: Callable[[Any], str] | None = None,
    job: TrainingJob | None = None,
    progress: Progress = silent,
) -> Figures:
    """Collect the figures of a packed dataset from its manifest and the boundaries of segments, without its tokens.

    For a report, the tokens of a few rows are read, and shown as text by `decode`; None to show no text.
    """
    folder = any_path(expanded(packed))
    with system_errors(folder, resumes=False):
        dataset = load(folder) if for_report else None
        manifest = read_manifest(folder) if dataset is None else dataset.manifest
        rows = _rows_of(folder, manifest, keeps_rows=for_report or job is not None)
        figures = Figures(
            options=manifest.options,
            totals=manifest.totals,
            histogram=rows.histogram,
            documents_per_step=documents_per_step,
            is_packed=True,
            measured_rows=rows,
            waiting=_waiting(rows, job),
            saved_tokens=manifest.totals.tokens_shared,
        )
        if dataset is None or rows.profile is None:
            return figures
        return replace(
            figures,
            name=(folder.resolve() if isinstance(folder, Path) else folder).name,
            document_lengths=counted(rows.histogram),
            shown_rows=packed_rows(dataset, chosen_rows(rows.profile), decode),
        )


def row_batches(folder: AnyPath, manifest: Manifest) -> Iterator[tuple[pa.RecordBatch, RowSegments]]:
    """Yield the record batches of all shards in order, checked, and the segments of their rows."""
    for entry in manifest.shards:
        for batch in open_shard(folder, entry, manifest).to_batches():
            check_batch(batch, folder / entry.file, manifest)
            yield batch, RowSegments.of(batch)


def _rows_of(folder: AnyPath, manifest: Manifest, *, keeps_rows: bool) -> RowFigures:
    """Return the figures of all rows."""
    limits = manifest.options.limits
    sums = RowSums(manifest.max_len, limits=limits, keeps_rows=keeps_rows)
    for batch, segments in row_batches(folder, manifest):
        sums.add(
            segments.lengths,
            np.searchsorted(segments.rows, np.arange(batch.num_rows + 1)),
            starts=segments.starts,
            limited={name: as_numpy(batch[name].values)[segments.values] for name in limits},
        )
    return sums.finish()


def compare_lengths(
    source: SourceLike,
    options: RowOptions,
    max_lens: Sequence[int],
    documents_per_step: int = 64,
    progress: Progress = silent,
) -> Comparison:
    """Plan the rows of a dataset at several lengths, and compare them."""
    measured, found = measure(source, options, progress), list[Figures]()
    for done, max_len in enumerate(max_lens):
        progress(f"length {max_len}", done, len(max_lens))
        at_length = replace(options, max_len=max_len)
        found.append(_figures_of(measured, measured.plan(at_length), at_length, documents_per_step))
    progress("length", len(max_lens), len(max_lens))
    return Comparison(by="max_len", outcomes=tuple(found))


def compare_algorithms(
    source: SourceLike, options: RowOptions, documents_per_step: int = 64, progress: Progress = silent
) -> Comparison:
    """Plan the rows of a dataset by all algorithms that are quick at this row length, and compare them.

    Progress is in documents while files are read, and "solve NAME" before each algorithm. A PackerError is raised if
    the source cannot be read, or no algorithm could run.
    """
    measured = measure(source, options, progress)
    slow = [name for name, one in ALGORITHMS.items() if isinstance(one, Algorithm) and one.is_slow(options.max_len)]
    chosen = [name for name in ALGORITHMS if name not in slow]
    outcomes: list[Figures] = []
    failures: dict[str, str] = {}
    for done, name in enumerate(chosen):
        progress(f"solve {name}", done, len(chosen))
        try:
            by_name = replace(options, algorithm=name)
            begun, compiled = time.perf_counter(), compile_seconds()
            plan = measured.plan(by_name)
            seconds = time.perf_counter() - begun - (compile_seconds() - compiled)
            outcomes.append(replace(_figures_of(measured, plan, by_name, documents_per_step), seconds=seconds))
        except (PackerError, MemoryError) as error:
            failures[name] = str(error) if isinstance(error, PackerError) else f"out of memory ({error})"
    progress("solve", len(chosen), len(chosen))
    if not outcomes:
        reasons = "; ".join(f"{name}: {error}" for name, error in failures.items())
        raise PackerError(f"no algorithm could run; {reasons}")
    return Comparison(
        by="algorithm",
        outcomes=tuple(sorted(outcomes, key=lambda figures: (figures.rows, figures.seconds))),
        failures=failures,
        left_out=tuple(slow),
    )


def _figures_of(measured: Measured, plan: Plan, options: RowOptions, documents_per_step: int) -> Figures:
    """Return the figures of one of the plans that are compared."""
    rows = measured.follow(plan, options)
    return Figures(
        options=options,
        totals=plan.totals,
        histogram=rows.histogram,
        documents_per_step=documents_per_step,
        measured_rows=rows,
    )
