"""Materialize: write the rows of an index with their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from packer.engine import Engine
from packer.errors import PackerError
from packer.facts import ShardEntry, Totals
from packer.gather import lengths_of
from packer.options import PackOptions
from packer.options.command_options import EngineOptions
from packer.output.unfinished_pack import UnfinishedPack
from packer.paths import expanded, output_path
from packer.pipeline.apply_options import row_format_of
from packer.pipeline.disk_space import check_writing
from packer.pipeline.job import Job
from packer.pipeline.name_output import refuse_inside
from packer.pipeline.packed_source import open_index_source, read_index_source, with_sources
from packer.pipeline.packing import PackResult, completed, write_dataset
from packer.pipeline.read_documents import SourceLike
from packer.pipeline.rejected_list import write_rejected_list
from packer.pipeline.segments.segment_reader import MappedDocuments
from packer.pipeline.shard_maker import ShardMaker
from packer.pipeline.watch_source import Watch
from packer.pipeline.write_shards import write_shards
from packer.plan.located_rows import LocatedRows, joined_rows, pieces_of
from packer.progress import Progress, silent
from packer.shards.file_names import rejected_name
from packer.shards.generations import with_generation
from packer.shards.manifest import Manifest
from packer.shards.reader import check_sizes, checked_batches, read_manifest
from packer.shards.shard_table import column_of, kept_shards
from packer.shards.structure import RowSegments
from packer.sources.corpus import Corpus
from packer.stores import AnyPath, any_path


def materialize(
    index: str | AnyPath,
    source: SourceLike | Sequence[SourceLike],
    output: str | AnyPath,
    *,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    engine_options: EngineOptions = EngineOptions(),  # noqa: B008 (immutable)
    progress: Progress = silent,
) -> PackResult:
    """Write the rows of an index with their tokens: the same bytes as packing its source without `index_only`.

    If documents were appended to the index, the result has the same generations.

    Args:
        index: folder of the index.
        source: what was packed, or a list, in order: of all sources of a mixture, of all paths of a source, and of the
            sources of all generations.
        output: folder to write.
        workers: as in `pack`.
        sync: as in `pack`.
        overwrite: as in `pack`.
        engine_options: as in `pack`.
        progress: as in `pack`.

    Raises:
        PackerError: the folder is not an index, the source is not that of the index, or as in `pack`.
    """
    # Choose the engine.
    job = Job.of(engine_options, source, output, workers=workers, sync=sync, overwrite=overwrite, progress=progress)

    # Open the index, and the source of each of its generations.
    folder, source = any_path(expanded(index)), expanded(source)
    manifest = read_manifest(folder, intact=True)
    _refuse_kind(folder, manifest)
    check_sizes(folder, manifest)
    parts = _opened(folder, manifest, source)

    # Name the output and write it. An unfinished output is resumed only if it is of this index.
    out = output_path(output)
    refuse_inside(source, out)
    options = replace(manifest.options, index_only=False)
    return write_dataset(
        out,
        [part.opened for part in parts],
        options,
        partial(_write, parts=parts, options=options, progress=progress),
        job=job,
        made_of={"index": xxh3_128_hexdigest(manifest.to_bytes())},
    )


def _refuse_kind(folder: AnyPath, manifest: Manifest) -> None:
    """Raise a PackerError unless a dataset is an index whose source has tokens."""
    if not manifest.options.index_only:
        raise PackerError(f"{folder} holds its tokens already, and only an index can be materialized: use it as it is")
    if manifest.options.lengths_column is not None:
        raise PackerError(f"{folder} was packed from lengths alone, so there are no tokens to write")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A generation of an index, and its source."""

    folder: AnyPath
    """Folder of the index."""

    manifest: Manifest
    """Description of the generation."""

    opened: Corpus
    """Its source."""

    watch: Watch
    """Files of the source."""

    def maker(self, options: PackOptions, progress: Progress) -> ShardMaker:
        """Return the maker of its shards, after comparing the lengths of all documents.

        Raises:
            PackerError: the source is another one, or was changed.
        """
        mapped = MappedDocuments(documents=read_index_source(self.folder, self.manifest, self.opened, progress))
        self.watch.check()
        return ShardMaker(
            mapped=mapped,
            plan=IndexPlan(folder=self.folder, manifest=self.manifest, mapped=mapped),
            row_format=row_format_of(options, mapped.table.extra),
            overlap=options.piece_overlap,
            first_document=self.manifest.first.document,
        )

    def described(self, options: PackOptions, shards: Sequence[ShardEntry], files: Mapping[str, str]) -> Manifest:
        """Return a manifest of its rows with tokens, as if it were a dataset of its own.

        Args:
            options: options of the copied dataset.
            shards: entries of its shards.
            files: hashes of the files that only it has, by name.
        """
        return Manifest(
            options=options,
            generations=self.manifest.generations,
            shards=kept_shards(shards),
            files=files,
        )


def _opened(folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]) -> list[_Part]:
    """Open the source of each generation of an index.

    Raises:
        PackerError: a source is obviously another one, or must be decoded; or the number of sources is wrong.
    """
    parts = []
    for part, one in with_sources(folder, manifest, source):
        opened, watch = open_index_source(folder, part, one)
        parts.append(_Part(folder=folder, manifest=part, opened=opened, watch=watch))
    return parts


def _write(
    claimed: UnfinishedPack, engine: Engine, *, parts: Sequence[_Part], options: PackOptions, progress: Progress
) -> Manifest:
    """Write the rows of an index into a claimed folder, resuming an interrupted run.

    Args:
        claimed: claimed output.
        engine: decides which shards this process writes.
        parts: generations of the index.
        options: options of the copied dataset.
        progress: callback, as in `pack`.

    Raises:
        FinishedElsewhere: another rank has completed the output.
    """
    # Locate the rows in the sources.
    makers = [part.maker(options, progress) for part in parts]
    _refuse_other_types(makers)

    # Write the shards that are missing.
    totals = [part.manifest.totals for part in parts]
    size = makers[0].row_format.bytes_of(sum(each.rows for each in totals), sum(each.segments for each in totals))
    check_writing(claimed, size, options, engine.workers)
    watch = Watch.joined(part.watch for part in parts)
    entries = write_shards(claimed, makers, watch, engine, progress)
    watch.check()

    # Write the manifest, which completes the dataset.
    return completed(claimed, engine, partial(_described, claimed, parts, options, entries))


def _described(
    claimed: UnfinishedPack, parts: Sequence[_Part], options: PackOptions, entries: Sequence[ShardEntry]
) -> tuple[Manifest, Mapping[str, bytes]]:
    """Return the manifest of all generations, as if all but the first one had been appended, and its small files."""
    manifest: Manifest | None = None
    files: dict[str, bytes] = {}
    left = iter(entries)
    for number, part in enumerate(parts):
        own, first = {}, part.manifest.first.document
        if options.on_error == "skip":
            own[rejected_name(number)] = write_rejected_list(claimed, part.opened.sources, number, first)
        shards = list(islice(left, len(part.manifest.shards)))
        manifest, small = with_generation(manifest, part.described(options, shards, own))
        files.update(small)
    assert manifest is not None
    return manifest, files


def _refuse_other_types(makers: Sequence[ShardMaker]) -> None:
    """Raise a PackerError if a kept column does not have the same type in the sources of all generations."""
    first = makers[0].row_format.schema
    for number, maker in enumerate(makers):
        for field in maker.row_format.schema:
            one, other = first.field(field.name).type.value_type, field.type.value_type
            if one != other:
                raise PackerError(
                    f"'{field.name}' is {one} in the source of generation 0, and {other} in that of generation "
                    f"{number}: give sources with columns of one type"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexPlan:
    """The plan that an index is: its rows, located in the source. Can be pickled."""

    folder: AnyPath
    """Folder of the index."""

    manifest: Manifest
    """Its manifest, or that of one of its generations."""

    mapped: MappedDocuments
    """Documents of its source."""

    @property
    def totals(self) -> Totals:
        """Totals of the manifest."""
        return self.manifest.totals

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard."""
        rows: list[int] = column_of(self.manifest.shards, "rows").tolist()
        return rows

    def rows(self, shard: int) -> LocatedRows:
        """Return the rows of a shard.

        Raises:
            PackerError: the shard is damaged, or refers to tokens that the source does not have.
        """
        folder, manifest = self.folder, self.manifest
        entry = manifest.shards[shard]
        path = folder / entry.file
        parts = []
        for batch in checked_batches(folder, entry, manifest):
            segments = RowSegments.of(batch)
            depths = np.bincount(segments.rows, minlength=batch.num_rows)
            documents = self._numbers(segments.keys, str(path))
            self._check(documents, segments.starts + segments.lengths, str(path))
            pieces = pieces_of(documents, segments.starts, segments.lengths)
            parts.append(LocatedRows(pieces=pieces, row_starts=np.append(0, np.cumsum(depths))))
        return joined_rows(parts)

    def _numbers(self, columns: Mapping[str, NDArray[np.int64]], path: str) -> NDArray[np.int64]:
        """Return the documents of segments, as they are numbered for packing."""
        documents, first = self.mapped.documents, self.manifest.first.document
        ids = numbers = columns["doc_ids"] - first
        is_known = (ids >= 0) & (ids < documents.identity.documents)
        if documents.origins.is_mixture:
            numbers, is_known = documents.origins.numbers(columns["source_ids"], ids, columns["copy"])
        if not is_known.all():
            raise _misfit(path, f"document {ids[is_known.argmin()] + first}")
        return numbers

    def _check(self, documents: NDArray[np.int64], ends: NDArray[np.int64], path: str) -> None:
        """Check that documents have all tokens of their segments, whose memory is read without a further check."""
        table = self.mapped.table
        lengths = np.empty(len(documents), np.int32)
        lengths_of(table.input_ids.addresses, table.lists_of(documents), lengths)
        if (ends > lengths).any():
            at = int((ends > lengths).argmax())
            raise _misfit(path, f"{ends[at]:,} tokens of {self.mapped.documents.describe(int(documents[at]))}")


def _misfit(path: str, what: str) -> PackerError:
    return PackerError(
        f"{path} refers to {what}, which the source does not have: `packer verify` finds what was changed; "
        "restore the index, or pack again"
    )
