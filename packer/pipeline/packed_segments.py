"""The segments that the rows of a packed dataset hold, in the order of their documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.errors import PackerError
from packer.gather import TokenColumn
from packer.options import PackOptions
from packer.shards.columns import PADDING
from packer.shards.manifest import Manifest
from packer.shards.reader import open_shard
from packer.sources import Source
from packer.sources.taken import TakenInOrder


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSegments:
    """Every segment of a packed dataset, ordered by document and start."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    places: NDArray[np.int64]
    """Where each begins: row * max_len + offset in the row."""

    columns: dict[str, TokenColumn]
    """The token columns: row r is list r."""

    kept: dict[str, pa.Array]
    """The kept columns, a value for each segment."""

    kept_tokens: dict[str, tuple[TokenColumn, pa.DataType]]
    """The kept columns of a value per token, and its type: row r is list r."""


def read_segments(folder: Path, manifest: Manifest, source: Source | TakenInOrder) -> PackedSegments:
    """Read the segments of all rows; documents of a mixture are numbered as `source` does.

    Raises:
        PackerError: a shard is not what the manifest says.
    """
    tables = [open_shard(folder, entry, manifest) for entry in manifest.shards]
    for table, entry in zip(tables, manifest.shards, strict=True):
        if not table.schema.equals(tables[0].schema):  # values are read by the types of the first
            raise PackerError(f"{folder / entry.file} has columns of other types than {manifest.shards[0].file} has")
    batches: list[pa.RecordBatch] = [batch for table in tables for batch in table.to_batches()]
    names = [name for name in ("input_ids", "labels") if name in batches[0].schema.names]
    columns = {name: TokenColumn.from_arrow([batch[name] for batch in batches]) for name in names}

    options = PackOptions.from_dict(manifest.options)
    kept_tokens = {
        name: (TokenColumn.from_arrow([batch[name] for batch in batches]), batches[0][name].type.value_type)
        for name in options.keep_tokens
    }
    kept: dict[str, list[pa.Array]] = {name: [] for name in options.kept}
    count = sum(int(np.count_nonzero(as_numpy(batch["doc_ids"].values) != PADDING)) for batch in batches)
    documents, places = np.empty(count, np.int64), np.empty(count, np.int64)
    starts, lengths = np.empty(count, np.int32), np.empty(count, np.int32)
    row = end = 0
    for batch in batches:
        extents = as_numpy(batch["seq_lengths"].values)
        tokens = as_numpy(batch["seq_tokens"].values) if "seq_tokens" in batch.schema.names else extents
        ids = as_numpy(batch["doc_ids"].values)
        real = ids != PADDING
        part = slice(end, end := end + int(np.count_nonzero(real)))
        documents[part], lengths[part] = ids[real], tokens[real]
        if isinstance(source, TakenInOrder):
            sources, copies = (as_numpy(batch[name].values)[real] for name in ("source_ids", "copy"))
            documents[part] = source.numbers(sources, ids[real], copies)
        for name, parts in kept.items():
            parts.append(batch[name].values.filter(pa.array(real)))
        starts[part] = as_numpy(batch["doc_starts"].values)[real]
        places[part] = (row * manifest.max_len + np.cumsum(extents, dtype=np.int64) - extents)[real]
        row += batch.num_rows
    order = np.lexsort((starts, documents))
    documents, starts = documents[order], starts[order]  # one after the other: each frees what it replaces
    lengths, places = lengths[order], places[order]
    return PackedSegments(
        documents=documents,
        starts=starts,
        lengths=lengths,
        places=places,
        columns=columns,
        kept={name: pa.concat_arrays(parts).take(as_arrow(order)) for name, parts in kept.items()},
        kept_tokens=kept_tokens,
    )
