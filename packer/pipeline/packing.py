"""Pack: open the source, claim the output, plan, write the shards, commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from packer.engine import Engine
from packer.errors import PackerError
from packer.executors import available_workers
from packer.facts import SourceIdentity, Totals
from packer.notes import Note, Notes, notes_in
from packer.options import PackOptions
from packer.options.command_options import EngineOptions
from packer.output.claim_pack import claim_pack, finish_interrupted, refuse_replacing
from packer.output.unfinished_pack import UnfinishedPack
from packer.paths import expanded, output_path
from packer.pipeline.append_target import AppendTarget
from packer.pipeline.choose_engine import chosen_engine, chosen_rank
from packer.pipeline.complete_output import check_complete, written_by_another
from packer.pipeline.disk_space import check_decoding, check_mixture, check_writing
from packer.pipeline.name_output import default_output, refuse_inside
from packer.pipeline.open_inputs import request_of, with_texts
from packer.pipeline.packed_source import refuse_decoding
from packer.pipeline.partitions.leftover_values import leftover_values
from packer.pipeline.planning.make_plan import PLAN_VERSION, is_planned_whole, makes_own_rows, plan_documents
from packer.pipeline.read_documents import SourceLike, open_sources, read_documents
from packer.pipeline.rejected_list import refuse_all_rejected, refuse_untrained, with_rejected, write_rejected_list
from packer.pipeline.shard_maker import ShardMaker
from packer.pipeline.source_warnings import (
    warn_of_linked_files,
    warn_of_padding,
    warn_of_split_chats,
    warn_of_unstopped,
    warn_of_unused_sources,
)
from packer.pipeline.watch_source import Watch
from packer.pipeline.write_shards import write_shards
from packer.progress import Progress, silent
from packer.ranks import FinishedElsewhere, RankOf
from packer.shards.file_names import rejected_name
from packer.shards.generations import with_files, with_generation
from packer.shards.manifest import Manifest, is_packed
from packer.shards.reader import read_manifest
from packer.shards.shard_table import kept_shards
from packer.sources.lengths_alone import ARRAY_COLUMN, is_array_file
from packer.sources.open_documents import OpenDocuments
from packer.stores import AnyPath
from packer.system_errors import system_errors

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackResult:
    """Result of `pack`."""

    manifest: Manifest
    """Manifest of the packed dataset."""

    output: AnyPath
    """Folder of the packed dataset."""

    found_complete: bool
    """Whether it was complete before, from the same source and with the same options."""

    checked: str = ""
    """What was checked if the dataset was complete before, for a message."""

    finished_elsewhere: bool = False
    """Whether another rank wrote the manifest."""


def pack(
    source: SourceLike | Sequence[SourceLike],
    output: str | AnyPath | None = None,
    *,
    options: PackOptions,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    engine_options: EngineOptions = EngineOptions(),  # noqa: B008 (immutable)
    progress: Progress = silent,
) -> PackResult:
    """Pack a dataset into the folder `output`; after a kill, the same call resumes.

    Args:
        source: a path, glob, Hub id, or a `datasets` object; or a list of these, mixed by `options.weights`.
        output: folder to write; by default the source's name with "-packed-MAX_LEN".
        options: options of the pack, which decide its bytes.
        workers: number of threads; by default the cores this process may use. Does not change the bytes.
        sync: fsync every file and folder.
        overwrite: replace an unfinished dataset, or a complete one in one step once the new one is complete.
        engine_options: who does the work: this process, several processes, or a Ray cluster.
        progress: callback, called as `progress(stage, done, total)` in every stage.

    Raises:
        PackerError: anything that the user can fix, in one line.
    """
    # Choose the engine.
    place = chosen_rank(engine_options, source, output, sync=sync, overwrite=overwrite)

    # Open the source, and watch its files for changes.
    source = expanded(source)
    options = _of_lengths(source, options)
    opened = open_sources(source, options)
    if options.index_only:
        refuse_decoding(opened)
    watch = Watch.of(opened)

    # Name the output, and pack into it.
    if options.pad_id is None:
        options = replace(options, pad_id=opened.pad_id or 0)
    out = output_path(output if output is not None else default_output(source, options))
    refuse_inside(source, out)
    build = partial(pack_into, opened=opened, watch=watch, options=options, progress=progress, overwrite=overwrite)
    return write_dataset(
        out,
        [opened],
        options,
        build,
        place=place,
        engine_options=engine_options,
        workers=workers,
        sync=sync,
        overwrite=overwrite,
        progress=progress,
        made_of={"plan_version": PLAN_VERSION},
    )


def _of_lengths(source: object, options: PackOptions) -> PackOptions:
    """Return the options for a source of lengths, which are always those of an index; others are returned unchanged."""
    if options.lengths_column is None and is_array_file(source):
        options = replace(options, lengths_column=ARRAY_COLUMN)
    return options if options.lengths_column is None else replace(options, index_only=True)


def write_dataset(
    out: AnyPath,
    sources: Sequence[OpenDocuments],
    options: PackOptions,
    build: Callable[[UnfinishedPack, Engine], Manifest],
    *,
    place: RankOf | None,
    engine_options: EngineOptions,
    workers: int | None,
    sync: bool,
    overwrite: bool,
    progress: Progress,
    made_of: Mapping[str, object] = {},
) -> PackResult:
    """Return a dataset that is complete, or claim its folder and build it.

    Args:
        out: folder to write.
        sources: source of each of its generations.
        options: its options.
        build: function that writes everything into a claimed folder, with an engine, and returns the manifest.
        place: rank of this process; None if it claims the output alone.
        engine_options: as in `pack`.
        workers: as in `pack`.
        sync: as in `pack`.
        overwrite: as in `pack`.
        progress: as in `pack`.
        made_of: what else must be equal for an unfinished dataset to be resumed, as JSON values by name.
    """
    requests = [request_of(opened, options.to_dict()) for opened in sources]
    request = replace(requests[0], files=tuple(file for each in requests for file in each.files))
    begun = replace(request, options={**request.options, **made_of})
    with system_errors(out, resumes=True):
        # Return a complete dataset.
        finish_interrupted(out)
        if is_packed(out):
            if not overwrite:
                found, checked = check_complete(out, sources, options, progress)
                return PackResult(manifest=found, output=out, found_complete=True, checked=checked)
            refuse_replacing(out)
            read_manifest(out)  # only a dataset with a valid manifest is replaced

        # Claim the output, and start or resume it.
        workers, shared = workers or available_workers(), place is not None
        patience = engine_options.rank_timeout
        try:
            with (
                claim_pack(out, begun, sync=sync, overwrite=overwrite, shared=shared, patience=patience) as claimed,
                chosen_engine(claimed, engine_options, place, workers) as engine,
            ):
                manifest = build(claimed, engine)
        except Exception:
            # The rank that completes the output removes what the others may just be looking for.
            written = written_by_another(out, request) if shared else None
            if written is None:
                raise
            return PackResult(manifest=written, output=out, found_complete=False, finished_elsewhere=True)
    return PackResult(manifest=manifest, output=out, found_complete=False)


def pack_into(
    claimed: UnfinishedPack,
    engine: Engine,
    *,
    opened: OpenDocuments,
    watch: Watch,
    options: PackOptions,
    progress: Progress,
    overwrite: bool,
    growing: AppendTarget | None = None,
) -> Manifest:
    """Pack into a claimed folder, resuming an interrupted run.

    Args:
        claimed: claimed output.
        engine: decides which tasks this process runs.
        opened: source.
        watch: its files.
        options: options of the pack.
        progress: callback, as in `pack`.
        overwrite: whether to discard the plan of an interrupted run if the source has changed since.
        growing: dataset to which the rows are appended; the manifest then describes all rows.

    Raises:
        FinishedElsewhere: another rank has completed the output.
    """
    # Decode the files that cannot be mapped.
    warn_of_linked_files(opened)
    mapped = opened
    if not opened.mapped:
        check_decoding(claimed, opened, options, engine.workers)
        mapped = opened.spill(claimed.spill, progress, engine=engine)
        watch.check()
        watch = watch.of_mapped(mapped)

    # Check every document, and that an interrupted run had the same source.
    notes = notes_in(claimed)
    is_whole = is_planned_whole(options)
    is_in_order = not makes_own_rows(options)
    documents = read_documents(mapped, progress, hold_lengths=is_whole, interleaved=is_in_order)
    _refuse_changed(claimed, notes, documents.identity, overwrite=overwrite)
    refuse_all_rejected(mapped.sources, documents.identity.documents, documents.identity.tokens)
    if growing is not None:
        growing.check_source(documents.identity)
    check_mixture(claimed, documents.identity, options, engine.workers)
    warn_of_padding(mapped)
    warn_of_unused_sources(documents.identity.mixture)
    warn_of_unstopped(mapped)

    # Plan the rows.
    planned = plan_documents(documents, options, notes=notes, engine=engine, progress=progress)
    watch.check()
    warn_of_split_chats(opened, planned.totals, options)
    if growing is not None:
        growing.check_columns(planned.row_format)

    # Write the shards that are missing.
    size = planned.row_format.bytes_of(planned.totals.packs, planned.totals.segments)
    check_writing(claimed, size, options, engine.workers)
    maker = ShardMaker(
        mapped=planned.mapped,
        shards=planned.shards,
        row_format=planned.row_format,
        overlap=planned.overlap,
        leftovers=leftover_values(planned.mapped, planned.shards, planned.row_format),
        first_document=growing.documents if growing is not None else 0,
    )
    entries = write_shards(claimed, [maker], watch, engine, progress)
    watch.check()

    # Write the manifest, which completes the dataset.
    totals = Totals(
        **planned.totals.values(),
        tokens_trained=sum(entry.trained for entry in entries),
        segments_untrained=sum(entry.untrained_segments for entry in entries),
    )
    if documents.identity.labels and options.labels and not (totals.tokens_trained or options.allow_untrained):
        refuse_untrained(mapped.sources, totals.tokens_packed)
    totals = with_texts(totals, mapped)
    generation, first_document = (growing.generations, growing.documents) if growing is not None else (0, 0)
    for _ in engine.assigned([0], lambda last: last if claimed.is_complete() else ()):
        hashes = {}
        if options.on_error == "skip":
            totals = with_rejected(totals, mapped.sources, documents.origins.takes if documents.origins else None)
            digest = write_rejected_list(claimed, mapped.sources, generation, first_document)
            hashes[rejected_name(generation)] = digest
        manifest = Manifest(
            options=PackOptions.from_dict(options.to_dict()),  # as read from the file, without the tokenizer's path
            source=documents.identity,
            totals=totals,
            shards=kept_shards(entries),
            files=hashes,
        )
        manifest, files = with_files(manifest) if growing is None else with_generation(growing.manifest, manifest)
        if claimed.finish(manifest.to_bytes(), files):
            return manifest
    raise FinishedElsewhere


def _refuse_changed(claimed: UnfinishedPack, notes: Notes, identity: SourceIdentity, *, overwrite: bool) -> None:
    """Note the identity of the source; if an interrupted run noted another, raise a PackerError or discard its plan."""
    noted = notes.load("source")
    if noted is not None and noted.facts != identity.to_dict():
        if not overwrite:
            raise PackerError(
                f"{claimed.out} was started from a source that has changed since: start again with --overwrite"
            )
        claimed.forget_plan()
        noted = None
    if noted is None:
        notes.save("source", Note(facts=identity.to_dict()), lasting=True)
