"""Materialize: write the rows of an index with their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from packer.errors import PackerError
from packer.facts import Totals
from packer.gather import lengths_of
from packer.paths import expanded, output_path
from packer.pipeline.complete_output import is_written, request_of
from packer.pipeline.job import Job, Written, claimed
from packer.pipeline.output_place import refuse_inside
from packer.pipeline.packing import found_complete, publish
from packer.pipeline.write_shards import ShardMaker, write_shards
from packer.plan.rows import PIECE, LocatedRows
from packer.ranks import FinishedElsewhere
from packer.shards.manifest import Manifest
from packer.shards.reader import check_sizes, checked_batches, read_manifest
from packer.shards.row_format import RowFormat
from packer.shards.structure import RowSegments
from packer.sources.open_sources import SourceLike, open_index_source, read_index_source
from packer.sources.read_documents import Documents
from packer.stores import AnyPath, any_path
from packer.system_errors import system_errors


def materialize(
    index: str | AnyPath,
    source: SourceLike | Sequence[SourceLike],
    *,
    job: Job,
) -> Written[Manifest]:
    """Write the rows of an index with their tokens: the same bytes as packing its source without `index_only`.

    Arguments are those of `packer.materialize`; the job has the folder to write.
    """
    # Choose the engine.
    output = job.output
    assert output is not None
    job = job.for_output(source, output)

    # Open the index and its source.
    folder, source = any_path(expanded(index)), expanded(source)
    manifest = read_manifest(folder, intact=True)
    if not manifest.options.index_only:
        raise PackerError(f"{folder} holds its tokens already, and only an index can be materialized: use it as it is")
    if manifest.options.lengths_column is not None:
        raise PackerError(f"{folder} was packed from lengths alone, so there are no tokens to write")
    check_sizes(folder, manifest)
    opened, watch = open_index_source(folder, manifest, source)

    # Name the output and write it. An unfinished output is resumed only if it is of this index.
    out = output_path(output)
    refuse_inside(source, out)
    options = replace(manifest.options, index_only=False)
    request, made_of = request_of(opened, options.to_dict()), {"index": xxh3_128_hexdigest(manifest.to_bytes())}
    with system_errors(out, resumes=True):
        if (found := found_complete(out, opened, request, job)) is not None:
            return found
        try:
            with claimed(out, request, job, made_of=made_of, is_answered=partial(is_written, out, request)) as work:
                # Compare the lengths of all documents, and locate the rows in the source.
                documents = read_index_source(folder, manifest, opened, job.progress)
                watch.check()
                plan = IndexPlan(folder=folder, manifest=manifest, documents=documents)
                row_format = RowFormat.of(options, documents.table.extra)
                maker = ShardMaker(documents=documents, plan=plan, row_format=row_format)

                # Write the shards that are missing, and the manifest, which completes the dataset.
                entries = write_shards(work.output, maker, options.shard_size, watch, work.engine, job.progress)
                made = publish(work, options, opened, manifest.source, manifest.totals, entries)
                return Written(record=made, output=out)
        except FinishedElsewhere:
            return Written(record=read_manifest(out), output=out, finished_elsewhere=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexPlan:
    """The plan that an index is: its rows, located in the source. Can be pickled."""

    folder: AnyPath
    manifest: Manifest
    documents: Documents

    @property
    def totals(self) -> Totals:
        """Totals of the manifest."""
        return self.manifest.totals

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard."""
        rows: list[int] = self.manifest.shards.column("rows").tolist()
        return rows

    def rows(self, shard: int) -> LocatedRows:
        """Return the rows of a shard; a PackerError if it is damaged, or the source does not have its tokens."""
        folder, manifest = self.folder, self.manifest
        entry = manifest.shards[shard]
        path, parts = str(folder / entry.file), []
        for batch in checked_batches(folder, entry, manifest):
            segments = RowSegments.of(batch)
            depths = np.bincount(segments.rows, minlength=batch.num_rows)
            documents = segments.documents
            self._check(documents, segments.starts + segments.lengths, path)
            pieces = np.empty(len(documents), PIECE)
            pieces["document"], pieces["start"], pieces["length"] = documents, segments.starts, segments.lengths
            parts.append(LocatedRows(values=pieces, row_starts=np.append(0, np.cumsum(depths))))
        return LocatedRows.joined(parts)

    def _check(self, documents: NDArray[np.int64], ends: NDArray[np.int64], path: str) -> None:
        """Check that documents have all tokens of their segments, whose memory is read without a further check."""
        is_known = (documents >= 0) & (documents < self.documents.identity.documents)
        if not is_known.all():
            raise _misfit(path, f"document {documents[is_known.argmin()]}")
        table = self.documents.table
        lengths = np.empty(len(documents), np.int32)
        lengths_of(table.input_ids.addresses, table.lists_of(documents), lengths)
        if (ends > lengths).any():
            at = int((ends > lengths).argmax())
            raise _misfit(path, f"{ends[at]:,} tokens of {self.documents.describe(int(documents[at]))}")


def _misfit(path: str, what: str) -> PackerError:
    return PackerError(
        f"{path} refers to {what}, which the source does not have: `packer verify` finds what was changed; "
        "restore the index, or pack again"
    )
