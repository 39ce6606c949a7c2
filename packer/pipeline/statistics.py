"""The way without tokens: lengths to numbers about a dataset, or about one that is packed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from packer.algorithms import get_algorithm
from packer.arrow import as_numpy
from packer.options import PackOptions
from packer.pipeline.opening import open_with
from packer.pipeline.planning import cut_lengths
from packer.progress import Progress, silent
from packer.shards.manifest import Manifest
from packer.shards.reader import check_batch, open_shard, read_manifest
from packer.sources import scan
from packer.stats import DatasetStats, PackedStats, RowArrays, dataset_stats, packed_stats

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def dataset_statistics(
    source: str | Path | Dataset | DatasetDict,
    *,
    options: PackOptions,
    documents_per_step: int = 64,
    progress: Progress = silent,
) -> DatasetStats:
    """Describe a tokenized dataset and what packing would make of it; nothing is written.

    Raises:
        PackerError: the source cannot be read, or there is nothing in it to pack.
    """
    opened = open_with(source, options)
    cut = cut_lengths(scan(opened, progress).lengths, options)
    if cut.rows is not None:
        packs, proven = cut.rows.packs, 0
    else:
        patterns = options.solve(cut.items.histogram)
        packs, proven = patterns.packs, patterns.lower_bound
    return dataset_stats(
        lengths=cut.policy.lengths,
        histogram=cut.policy.histogram,
        packs=packs,
        lower_bound=cut.lower_bound(options.max_items, proven),
        algorithm=get_algorithm(options.algorithm).name,
        max_segments=options.max_segments,
        documents_per_step=documents_per_step,
    )


def packed_statistics(packed: str | Path) -> PackedStats:
    """Describe a packed dataset from its manifest and the boundaries in its shards; no token is read.

    Raises:
        PackerError: it is not a packed dataset, or a shard was changed.
    """
    folder = Path(packed)
    manifest = read_manifest(folder)
    totals = manifest.totals
    return packed_stats(
        documents=totals["documents"] - sum(totals["documents_dropped"].values()),
        lower_bound=totals["lower_bound"],
        max_len=manifest.max_len,
        rows=_row_arrays(folder, manifest),
    )


def _row_arrays(folder: Path, manifest: Manifest) -> Iterator[RowArrays]:
    for entry in manifest.shards:
        for batch in open_shard(folder, entry, manifest).to_batches():
            check_batch(batch, folder / entry.file, manifest.row_format)
            yield RowArrays(
                row_offsets=as_numpy(batch["seq_lengths"].offsets),
                seq_lengths=as_numpy(batch["seq_lengths"].values),
                doc_ids=as_numpy(batch["doc_ids"].values),
                seq_tokens=as_numpy(batch["seq_tokens"].values) if "seq_tokens" in batch.schema.names else None,
            )
