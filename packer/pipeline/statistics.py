"""Statistics of a dataset or a packed dataset, from lengths without tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.arrow import as_numpy
from packer.options import PackOptions
from packer.paths import expanded
from packer.pipeline.measure_row_lengths import located_rows
from packer.pipeline.measure_source import Measured, measure
from packer.pipeline.planning.make_plan import PlannedLengths, plan_lengths
from packer.pipeline.read_documents import SourceLike
from packer.plan.segments import Segments
from packer.progress import Progress, silent
from packer.shards.manifest import Manifest
from packer.shards.reader import check_batch, open_shard, read_manifest
from packer.shards.shard_table import column_of
from packer.stats.dataset_figures import DatasetStats, dataset_stats
from packer.stats.packed_figures import PackedStats, RowArrays, packed_stats
from packer.stats.row_limits import LimitSums
from packer.stats.row_mixing import MixingSums, RowMixing
from packer.stores import AnyPath, any_path
from packer.system_errors import system_errors

SAMPLED_BATCHES = 128
"""Number of record batches in the sample of a large dataset: 8,192 rows of 4,096 tokens with labels."""


def dataset_statistics(
    source: SourceLike | Sequence[SourceLike],
    *,
    options: PackOptions,
    documents_per_step: int = 64,
    progress: Progress = silent,
) -> DatasetStats:
    """Describe a dataset or a mixture, and the rows that `pack` would make with the same options; write nothing.

    Args:
        source: a path, glob, Hub id, or a `datasets` object; or a list of these, mixed by `options.weights`.
        options: options of the pack.
        documents_per_step: documents per optimizer step in unpacked training.
        progress: callback, called in documents while files are read, and as `progress("plan", done, total)` in tasks.

    Raises:
        PackerError: the source cannot be read, or there is nothing in it to pack.
    """
    measured = measure(source, options, progress)
    lengths = measured.lengths_for(options)
    planned = plan_lengths(
        lengths,
        options,
        groups=measured.groups,
        limits=measured.limits,
        describe=measured.describe,
        progress=progress,
    )
    return planned_statistics(measured, planned, options, documents_per_step=documents_per_step)


def planned_statistics(
    measured: Measured, planned: PlannedLengths, options: PackOptions, *, documents_per_step: int
) -> DatasetStats:
    """Describe a measured dataset, and the rows that were planned for it."""
    limits = LimitSums(options.limits)
    if options.limit:
        for rows in located_rows(planned.shards):
            limits.add({name: values[rows.documents] for name, values in measured.limits.items()}, rows.row_starts)
    return dataset_stats(
        lengths=measured.lengths,
        histogram=tokens_of_segments(planned.segments),
        packs=planned.packs,
        lower_bound=planned.lower_bound,
        algorithm=get_algorithm(options.algorithm).name,
        max_segments=options.max_segments,
        documents_per_step=documents_per_step,
        mixture=measured.mixture,
        limits=limits.finish(),
    )


def tokens_of_segments(segments: Segments) -> NDArray[np.int64]:
    """Count segments by their tokens, without alignment: int64, shape (max_len + 1,)."""
    if segments.align == 1:
        return segments.histogram
    return np.bincount(segments.locate(segments.numbers())[2], minlength=segments.max_len + 1)


def packed_statistics(packed: str | AnyPath) -> PackedStats:
    """Describe a packed dataset from its manifest and the segment boundaries of its rows, without reading tokens.

    Raises:
        PackerError: the folder is not a packed dataset, or a shard was changed.
    """
    folder = any_path(expanded(packed))
    with system_errors(folder, resumes=False):
        manifest = read_manifest(folder)
        return packed_stats(
            documents=manifest.totals.documents_packed,
            lower_bound=manifest.totals.lower_bound,
            max_len=manifest.max_len,
            rows=row_arrays(folder, manifest),
            limits=manifest.options.limits,
        )


def mixing_sample(packed: AnyPath, manifest: Manifest) -> RowMixing:
    """Measure how mixed the rows of a packed dataset are, in SAMPLED_BATCHES record batches spread over all of it.

    Raises:
        PackerError: a shard was changed.
    """
    batches = int((-(-column_of(manifest.shards, "rows") // manifest.row_format.batch_rows)).sum())
    every = -(-batches // SAMPLED_BATCHES)
    mixing = MixingSums(manifest.max_len)
    with system_errors(packed, resumes=False):
        for rows in row_arrays(packed, manifest, every=every):
            mixing.add(*rows.without_padding())
    return mixing.finish()


def row_arrays(folder: AnyPath, manifest: Manifest, *, every: int = 1) -> Iterator[RowArrays]:
    """Yield the boundaries of one record batch after the other, or of one in `every`."""
    for batch in row_batches(folder, manifest, every=every):
        yield RowArrays(
            row_offsets=as_numpy(batch["seq_lengths"].offsets),
            seq_lengths=as_numpy(batch["seq_lengths"].values),
            doc_ids=as_numpy(batch["doc_ids"].values),
            seq_tokens=as_numpy(batch["seq_tokens"].values) if "seq_tokens" in batch.schema.names else None,
            limited={name: as_numpy(batch[name].values) for name in manifest.options.limits},
        )


def row_batches(folder: AnyPath, manifest: Manifest, *, every: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of all shards in order, checked; or one in `every`."""
    to_skip = 0
    for entry in manifest.shards:
        batches = -(-entry.rows // manifest.row_format.batch_rows)
        if to_skip < batches:
            found = open_shard(folder, entry, manifest).to_batches()
            for batch in found[to_skip::every]:
                check_batch(batch, folder / entry.file, manifest)
                yield batch
        to_skip = (to_skip - batches) % every
