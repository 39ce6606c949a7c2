"""Rows of an index as a plan, so that its tokens can be written without planning again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.arrow import as_numpy
from packer.errors import PackerError
from packer.gather import lengths_of
from packer.pipeline.segments.segment_reader import MappedDocuments, lists_of
from packer.plan.pieces import PieceRows, ShardRows, pieces_of
from packer.shards.manifest import Manifest
from packer.shards.reader import check_batch, open_shard
from packer.shards.row_format import PADDING
from packer.shards.shard_table import column_of
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexShards:
    """Rows of each shard of an index, located in the source. Can be pickled."""

    folder: AnyPath
    """Folder of the index."""

    manifest: Manifest
    """Its manifest, or that of one of its generations."""

    mapped: MappedDocuments
    """Documents of its source."""

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard."""
        rows: list[int] = column_of(self.manifest.shards, "rows").tolist()
        return rows

    def shard(self, number: int) -> ShardRows:
        """Return the rows of a shard.

        Raises:
            PackerError: the shard is damaged, or refers to tokens that the source does not have.
        """
        folder, manifest = self.folder, self.manifest
        entry = manifest.shards[number]
        path = folder / entry.file
        parts, depths = [], []
        for batch in open_shard(folder, entry, manifest).to_batches():
            check_batch(batch, path, manifest)
            columns = {name: as_numpy(batch[name].values) for name in manifest.row_format.segment_columns}
            is_real = columns["doc_ids"] != PADDING
            offsets = as_numpy(batch["seq_lengths"].offsets)
            depths.append(np.add.reduceat(is_real, offsets[:-1], dtype=np.int64))
            real = {name: values[is_real].astype(np.int64) for name, values in columns.items()}
            lengths = real.get("seq_tokens", real["seq_lengths"])
            documents = self._numbers(real, str(path))
            self._check(documents, real["doc_starts"] + lengths, str(path))
            parts.append(pieces_of(documents, real["doc_starts"], lengths))
        rows = np.concatenate(depths)
        starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        return PieceRows(pieces=np.concatenate(parts), starts=starts, order=np.arange(len(rows), dtype=np.int64))

    def _numbers(self, columns: dict[str, NDArray[np.int64]], path: str) -> NDArray[np.int64]:
        """Return the documents of segments, as they are numbered for packing."""
        documents, first = self.mapped.documents, self.manifest.first.document
        ids = numbers = columns["doc_ids"] - first
        is_known = (ids >= 0) & (ids < documents.identity.documents)
        if documents.origins is not None:
            numbers, is_known = documents.origins.numbers(columns["source_ids"], ids, columns["copy"])
        if not is_known.all():
            raise _misfit(path, f"document {ids[is_known.argmin()] + first}")
        return numbers

    def _check(self, documents: NDArray[np.int64], ends: NDArray[np.int64], path: str) -> None:
        """Check that documents have all tokens of their segments, whose memory is read without a further check."""
        table = self.mapped.table
        lengths = np.empty(len(documents), np.int32)
        lengths_of(table.input_ids.addresses, lists_of(table, documents), lengths)
        if (ends > lengths).any():
            at = int((ends > lengths).argmax())
            raise _misfit(path, f"{ends[at]:,} tokens of {self.mapped.documents.describe(int(documents[at]))}")


def _misfit(path: str, what: str) -> PackerError:
    return PackerError(
        f"{path} refers to {what}, which the source does not have: `packer verify` finds what was changed; "
        "restore the index, or pack again"
    )
