"""The figures of a report, from the lengths of a dataset or from the boundaries of one that is packed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.arrow import as_numpy
from packer.errors import PackerError
from packer.loader.dataset import PackedDataset
from packer.loader.draws import draws, stream_key
from packer.loader.open_shards import Row
from packer.options import PackOptions
from packer.options.pack_options import LONGEST_ROW
from packer.paths import PathList, expanded
from packer.pipeline.measure_row_lengths import DocumentLengths, MeasuredLengths, compare_lengths, located_rows
from packer.pipeline.planning.make_plan import plan_lengths
from packer.pipeline.read_documents import SourceLike
from packer.pipeline.statistics import planned_statistics, row_arrays, row_batches
from packer.plan.pieces import Located
from packer.progress import Progress, silent
from packer.random_purposes import SHOWN_ROWS
from packer.shards.manifest import Manifest
from packer.sources.mixtures.origins import Origins
from packer.stats.dataset_figures import dataset_stats
from packer.stats.distribution import tally
from packer.stats.report_figures import ProfileParts, ReportFigures, RowProfile, ShownRow, runs_of
from packer.stats.row_lengths import RowLengths
from packer.stats.row_mixing import MixingSums
from packer.stores import AnyPath, any_path
from packer.system_errors import system_errors


def dataset_figures(
    source: SourceLike | Sequence[SourceLike],
    *,
    options: PackOptions,
    max_lens: Sequence[int] = (),
    documents_per_step: int = 64,
    progress: Progress = silent,
) -> ReportFigures:
    """Collect the figures of a dataset, or a mixture, and of the rows that packing would make; nothing is written.

    Args:
        source: a path, glob, Hub id, or a `datasets` object; or a list of these, to be mixed by `options.weights`.
        options: options of the pack.
        max_lens: row lengths to compare; the rows are those of the smallest that suffices, or of the largest. If empty,
            lengths around `options.max_len` are compared, and the rows have that length.
        documents_per_step: documents per optimizer step in unpacked training.
        progress: callback, called as `progress(stage, done, total)`.

    Raises:
        PackerError: the source cannot be read, or there is nothing in it to pack.
    """
    reader = MeasuredLengths(source, progress)
    compared = _compare_lengths(reader.in_order, options, max_lens, documents_per_step, progress)
    if max_lens:
        chosen = compared.smallest or compared.lengths[-1]
        options = replace(options, max_len=chosen.max_len)
    measured = reader.at(options)
    lengths = measured.lengths_for(options)
    planned = plan_lengths(
        lengths,
        options,
        groups=measured.groups,
        limits=measured.limits,
        describe=measured.describe,
        progress=progress,
    )
    stats = planned_statistics(measured, planned, options, documents_per_step=documents_per_step)
    mixing, parts = MixingSums(options.max_len), ProfileParts()
    for located in located_rows(planned.shards):
        mixing.add(located.lengths, located.row_starts)
        parts.add(located.lengths, located.row_starts)
    mixed, histogram = mixing.finish(), mixing.histogram
    profile, origins = RowProfile.of(parts, histogram), measured.origins_for(options)
    values, counts = tally(measured.lengths)
    return ReportFigures(
        name=_name(source),
        is_packed=False,
        stats=stats,
        mix_unit=options.mix_unit,
        totals=planned.totals,
        has_labels=False,
        lengths=(values[values > 0], counts[values > 0]),
        histogram=histogram,
        mixing=mixed.mixing,
        shuffled_share=mixed.shuffled_share,
        profile=profile,
        row_lengths=compared,
        rows=planned_rows(located_rows(planned.shards), chosen_rows(profile), options.align, origins),
        asked_lengths=tuple(max_lens),
    )


def packed_figures(
    packed: str | AnyPath,
    *,
    documents_per_step: int = 64,
    decode: Callable[[Any], str] | None = None,
    progress: Progress = silent,
) -> ReportFigures:
    """Collect the figures of a packed dataset, from its manifest and boundaries; tokens of a few rows are read.

    Args:
        packed: folder of the packed dataset.
        documents_per_step: documents per optimizer step in unpacked training.
        decode: function from token ids to text, to show the beginnings of segments; None to show no text.
        progress: callback, called as `progress(stage, done, total)`.

    Raises:
        PackerError: the folder is not a packed dataset, or a shard was changed.
    """
    folder = any_path(expanded(packed))
    with system_errors(folder, resumes=False):
        return _packed_figures(PackedDataset(folder), documents_per_step, decode, progress)


def _packed_figures(
    dataset: PackedDataset, documents_per_step: int, decode: Callable[[Any], str] | None, progress: Progress
) -> ReportFigures:
    """Collect the figures of an open dataset; see `packed_figures`."""
    folder = dataset.path
    manifest, options = dataset.manifest, dataset.manifest.options
    mixing, parts = MixingSums(options.max_len), ProfileParts()
    for arrays in row_arrays(folder, manifest):
        lengths, row_starts = arrays.without_padding()
        mixing.add(lengths, row_starts)
        parts.add(lengths, row_starts)
    mixed, histogram = mixing.finish(), mixing.histogram
    profile = RowProfile.of(parts, histogram)
    documents = _documents_in_rows(folder, manifest)
    values, counts = tally(documents.lengths[documents.lengths > 0])
    return ReportFigures(
        name=(folder.resolve() if isinstance(folder, Path) else folder).name,
        is_packed=True,
        stats=dataset_stats(
            lengths=(values, counts),
            histogram=histogram,
            packs=manifest.packs,
            lower_bound=manifest.totals.lower_bound,
            algorithm=get_algorithm(options.algorithm).name,
            max_segments=options.max_segments,
            documents_per_step=documents_per_step,
            mixture=manifest.source.mixture,
        ),
        mix_unit=options.mix_unit,
        totals=manifest.totals,
        has_labels=options.labels,
        lengths=(values, counts),
        histogram=histogram,
        mixing=mixed.mixing,
        shuffled_share=mixed.shuffled_share,
        profile=profile,
        row_lengths=_compare_lengths(lambda _: documents, options, (), documents_per_step, progress)
        if _has_whole_documents(manifest)
        else None,
        rows=packed_rows(dataset, chosen_rows(profile), decode),
    )


def _has_whole_documents(manifest: Manifest) -> bool:
    """Return whether other row lengths can be planned from the rows: nothing was lost, grouped, or split at turns."""
    options = manifest.options
    return not manifest.totals.tokens_lost and options.group_by is None and options.split_at == "tokens"


def _documents_in_rows(folder: AnyPath, manifest: Manifest) -> DocumentLengths:
    """Return the documents in the rows, with 0 for those that are not in them: their lengths, and values under limits.

    A document ends where its last segment ends. Of a mixture, every copy of a document counts; the copies of one source
    follow each other.

    Raises:
        PackerError: a segment is of a document that the source does not have, or takes more than a limit.
    """
    sizes = [part.documents for part in manifest.source.mixture] or [manifest.source.documents]
    limits = manifest.options.limits
    copies: dict[tuple[int, int], NDArray[np.int32]] = {}  # (1 + limits, documents) each
    for batch in row_batches(folder, manifest):
        columns = {name: as_numpy(batch[name].flatten()) for name in (*manifest.row_format.segment_columns, *limits)}
        is_segment = columns["doc_ids"] >= 0
        values = {name: column[is_segment].astype(np.int64) for name, column in columns.items()}
        ends = values["doc_starts"] + values.get("seq_tokens", values["seq_lengths"])
        for name, most in limits.items():
            if values[name].max() > most:
                raise PackerError(f"{folder}: its rows hold more than --limit {name}:{most}: restore it, or pack again")
        taken = np.stack([ends, *(values[name] for name in limits)])
        documents, none = values["doc_ids"], np.zeros(len(ends), np.int64)
        keys = values.get("source_ids", none) << 32 | values.get("copy", none)
        for key in np.unique(keys).tolist():
            source, copy = key >> 32, key & 0xFFFFFFFF
            of_copy, taken_by_copy = documents[keys == key], taken[:, keys == key]
            last = int(of_copy.max())
            if source >= len(sizes) or last >= sizes[source] or taken_by_copy[0].max() >= 2**31:
                raise PackerError(
                    f"{folder}: its rows hold document {last:,} of source {source}, which the manifest does not have: "
                    "restore it, or pack again"
                )
            held = copies.get((source, copy), np.zeros((len(taken), 0), np.int32))
            if last >= held.shape[1]:
                held = np.pad(held, ((0, 0), (0, max(last + 1, 2 * held.shape[1]) - held.shape[1])))
            for largest, each in zip(held, taken_by_copy.astype(np.int32), strict=True):
                np.maximum.at(largest, of_copy, each)
            copies[source, copy] = held
    lengths, *limited = np.concatenate([copies[key] for key in sorted(copies)], axis=1)
    return DocumentLengths(lengths, limits=dict(zip(limits, limited, strict=True)))


def _compare_lengths(
    documents_at: Callable[[PackOptions], DocumentLengths],
    options: PackOptions,
    max_lens: Sequence[int],
    documents_per_step: int,
    progress: Progress,
) -> RowLengths:
    """Compare row lengths: those that are given, or those around max_len that are possible."""
    return compare_lengths(
        documents_at,
        options,
        max_lens or _lengths_around(options),
        documents_per_step=documents_per_step,
        progress=progress,
        skips=not max_lens,
    )


def _lengths_around(options: PackOptions) -> list[int]:
    """Return row lengths to compare with max_len: from an eighth of it to twice as much."""
    lengths = [options.max_len // 8, options.max_len // 4, options.max_len // 2, options.max_len, 2 * options.max_len]
    return sorted({length - length % options.align for length in lengths if options.align <= length <= LONGEST_ROW})


def _name(source: SourceLike | Sequence[SourceLike]) -> str:
    """Return the name of a source without its path; of a mixture, the names of its sources."""
    if isinstance(source, (list, tuple)):
        return " + ".join(_name(each) for each in source)
    if isinstance(source, PathList):
        return str(PathList(tuple(map(_name, source.paths))))
    if not isinstance(source, (str, Path)):
        return "dataset"
    return Path(source).name or Path(source).resolve().name


SAMPLED_ROWS = 32
"""Random rows that are shown, if they have no more than SAMPLED_SEGMENTS segments."""

EXTREME_ROWS = 4
"""Further rows that are shown: so many of the least full, and of those with the most segments."""

SAMPLED_SEGMENTS = 4000
"""Segments in all rows that are shown, which bounds the size of a page."""

TRAINED_RUNS = 200
"""Ranges of trained tokens that are shown of a row."""

SHOWN_TEXT = 50_000
"""Characters of text that are shown at most, divided equally among the segments."""


def chosen_rows(profile: RowProfile) -> list[tuple[int, str]]:
    """Return the numbers of the rows to show, each with the reason: see `ShownRow.chosen`.

    Those at random depend on the number of rows alone, and are ascending. If all rows are shown, none is shown twice.
    """
    rows = len(profile.keys)
    if rows <= SAMPLED_ROWS:
        return [(row, "at random") for row in range(rows)]
    drawn = draws(stream_key(0, SHOWN_ROWS, 0), np.arange(8 * SAMPLED_ROWS)) % np.uint64(rows)
    at_random = sorted(list(dict.fromkeys(drawn.tolist()))[:SAMPLED_ROWS])
    emptiest = np.argsort(profile.tokens, kind="stable")[:EXTREME_ROWS].tolist()
    busiest = np.argsort(-profile.segments, kind="stable")[:EXTREME_ROWS].tolist()
    reasons = (("at random", at_random), ("least full", emptiest), ("most segments", busiest))
    return [(row, reason) for reason, numbers in reasons for row in numbers]


def within_limit(rows: Sequence[ShownRow]) -> tuple[ShownRow, ...]:
    """Return the first rows, with up to SAMPLED_SEGMENTS segments in total, or else a part of the first row."""
    ends = np.cumsum([len(row.lengths) for row in rows])
    within = int(np.searchsorted(ends, SAMPLED_SEGMENTS, side="right"))
    if within:
        return tuple(rows[:within])
    first, shown = rows[0], slice(SAMPLED_SEGMENTS)
    end = sum(first.extents[shown])
    return (
        replace(
            first,
            lengths=first.lengths[shown],
            extents=first.extents[shown],
            documents=first.documents[shown],
            starts=first.starts[shown],
            rest=sum(first.extents) - end,
            sources=None if first.sources is None else first.sources[shown],
            trained=None if first.trained is None else first.trained[shown],
            trained_runs=tuple((begin, min(last, end)) for begin, last in first.trained_runs if begin < end),
        ),
    )


def planned_rows(
    parts: Iterable[Located], chosen: Sequence[tuple[int, str]], align: int, origins: Origins | None
) -> tuple[ShownRow, ...]:
    """Return the chosen rows of a plan, whose parts are read once; arguments as for `planned_row`."""
    found: dict[int, ShownRow] = {}
    first_row = 0
    for located in parts:
        end = first_row + len(located.row_starts) - 1
        for row in {row for row, _ in chosen if first_row <= row < end}:
            found[row] = planned_row(located, row, row - first_row, align, origins)
        first_row = end
    return within_limit([replace(found[row], chosen=reason) for row, reason in chosen])


def planned_row(located: Located, row: int, index: int, align: int, origins: Origins | None) -> ShownRow:
    """Return a row of a plan.

    Args:
        located: part of the plan.
        row: number of the row.
        index: number of the row in this part.
        align: number of which the extents are multiples.
        origins: source behind each document of a mixture; None for a single source.
    """
    segments = slice(located.row_starts[index], located.row_starts[index + 1])
    lengths, documents = located.lengths[segments], located.documents[segments]
    sources = None
    if origins is not None:
        sources, documents, _ = origins.of(documents)
    return ShownRow(
        row=row,
        lengths=tuple(lengths.tolist()),
        extents=tuple((-(-lengths // align) * align).tolist()),
        documents=tuple(documents.tolist()),
        starts=tuple(located.starts[segments].tolist()),
        sources=None if sources is None else tuple(sources.tolist()),
    )


def packed_rows(
    dataset: PackedDataset, chosen: Sequence[tuple[int, str]], decode: Callable[[Any], str] | None
) -> tuple[ShownRow, ...]:
    """Return rows of a packed dataset, with the text of their segments if `decode` turns token ids into text."""
    rows = within_limit([replace(_packed_row(row, dataset[row]), chosen=reason) for row, reason in chosen])
    if decode is None:
        return rows
    shown = SHOWN_TEXT // sum(len(row.lengths) for row in rows)
    return tuple(replace(row, texts=tuple(_texts(row, dataset[row.row], decode, shown))) for row in rows)


def _packed_row(number: int, row: Row) -> ShownRow:
    segments = int(np.count_nonzero(row["doc_ids"] >= 0))
    extents = row["seq_lengths"][:segments]
    starts = np.cumsum(extents) - extents
    is_trained = row["labels"] >= 0 if "labels" in row else None
    trained = None if is_trained is None else np.add.reduceat(is_trained.astype(np.int64), starts)
    if trained is not None and is_trained is not None:  # the last segment of `reduceat` has the padding tail
        trained[-1] = np.count_nonzero(is_trained[starts[-1] : starts[-1] + extents[-1]])
    return ShownRow(
        row=number,
        lengths=tuple(row.get("seq_tokens", row["seq_lengths"])[:segments].tolist()),
        extents=tuple(extents.tolist()),
        documents=tuple(row["doc_ids"][:segments].tolist()),
        starts=tuple(row["doc_starts"][:segments].tolist()),
        sources=tuple(row["source_ids"][:segments].tolist()) if "source_ids" in row else None,
        trained=None if trained is None else tuple(trained.tolist()),
        trained_runs=() if is_trained is None else runs_of(is_trained, TRAINED_RUNS),
    )


def _texts(row: ShownRow, tokens: Row, decode: Callable[[Any], str], shown: int) -> Iterator[str]:
    """Yield the beginning of each segment as text, of up to `shown` characters."""
    place = 0
    for length, extent in zip(row.lengths, row.extents, strict=True):
        yield decode(tokens["input_ids"][place : place + min(length, shown)])[:shown]
        place += extent
