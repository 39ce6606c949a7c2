"""Pack: open the source, claim the output, plan, write the shards, commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from packer.engine import Engine, run_once
from packer.errors import PackerError
from packer.facts import Generation, SourceIdentity, Totals
from packer.notes import Note, Notes, NotesInStore
from packer.options import PackOptions
from packer.options.command_options import EngineOptions
from packer.output.claim_pack import finish_interrupted, refuse_replacing
from packer.output.request import Request
from packer.output.unfinished_pack import UnfinishedPack
from packer.paths import expanded, output_path
from packer.pipeline.apply_options import row_format_of
from packer.pipeline.complete_output import check_complete, written_by_another
from packer.pipeline.disk_space import check_decoding, check_mixture, check_writing
from packer.pipeline.job import Job, build_claimed
from packer.pipeline.name_output import default_output, refuse_inside
from packer.pipeline.open_inputs import request_of, with_texts
from packer.pipeline.packed_source import refuse_decoding
from packer.pipeline.partitions.leftover_values import leftover_values
from packer.pipeline.planning.make_plan import (
    PLAN_VERSION,
    plan_documents,
)
from packer.pipeline.read_documents import SourceLike, open_sources, read_documents
from packer.pipeline.rejected_list import refuse_all_rejected, refuse_untrained, with_rejected, write_rejected_list
from packer.pipeline.segments.segment_reader import MappedDocuments
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
from packer.plan.mixture_shares import Take
from packer.progress import Progress, silent
from packer.ranks import FinishedElsewhere
from packer.shards.file_names import rejected_name
from packer.shards.generations import with_generation
from packer.shards.manifest import Manifest, is_packed
from packer.shards.reader import read_manifest
from packer.shards.row_format import RowFormat
from packer.shards.shard_table import kept_shards
from packer.sources.corpus import Corpus
from packer.sources.lengths_alone import ARRAY_COLUMN, is_array_file
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
    job = Job.of(engine_options, source, output, workers=workers, sync=sync, overwrite=overwrite, progress=progress)

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
    build = partial(pack_into, opened=opened, watch=watch, options=options, job=job, target=PackTarget())
    return write_dataset(out, [opened], options, build, job=job, made_of={"plan_version": PLAN_VERSION})


def _of_lengths(source: object, options: PackOptions) -> PackOptions:
    """Return the options for a source of lengths, which are always those of an index; others are returned unchanged."""
    if options.lengths_column is None and is_array_file(source):
        options = replace(options, lengths_column=ARRAY_COLUMN)
    return options if options.lengths_column is None else replace(options, index_only=True)


def write_dataset(
    out: AnyPath,
    sources: Sequence[Corpus],
    options: PackOptions,
    build: Callable[[UnfinishedPack, Engine], Manifest],
    *,
    job: Job,
    made_of: Mapping[str, object],
) -> PackResult:
    """Return a dataset that is complete, or claim its folder and build it.

    Args:
        out: folder to write.
        sources: source of each of its generations.
        options: its options.
        build: function that writes everything into a claimed folder, with an engine, and returns the manifest.
        job: how it is written.
        made_of: what else must be equal for an unfinished dataset to be resumed, as JSON values by name.
    """
    request = request_for(sources, options)
    with system_errors(out, resumes=True):
        # Return a complete dataset.
        finish_interrupted(out)
        if is_packed(out):
            if not job.overwrite:
                found, checked = check_complete(out, sources, options, job.progress)
                return PackResult(manifest=found, output=out, found_complete=True, checked=checked)
            refuse_replacing(out)
            read_manifest(out)  # only a dataset with a valid manifest is replaced

        # Claim the output, and start or resume it.
        manifest = build_claimed(
            out,
            replace(request, options={**request.options, **made_of}),
            build,
            job,
            is_complete=partial(is_packed, out),
            is_answered=lambda: written_by_another(out, request) is not None,
        )
        if manifest is None:
            return PackResult(manifest=read_manifest(out), output=out, found_complete=False, finished_elsewhere=True)
    return PackResult(manifest=manifest, output=out, found_complete=False)


def request_for(sources: Sequence[Corpus], options: PackOptions) -> Request:
    """Return the request for a dataset with a generation of each of these sources."""
    requests = [request_of(opened, options.to_dict()) for opened in sources]
    return replace(requests[0], files=tuple(file for each in requests for file in each.files))


@dataclass(frozen=True, kw_only=True, slots=True)
class PackTarget:
    """A dataset that gets another generation; a new one gets its first."""

    manifest: Manifest | None = None
    """Its manifest; None for a new dataset."""

    @property
    def documents(self) -> int:
        """Number of its documents, which is the number of the first one that is added."""
        return self.manifest.source.documents if self.manifest is not None else 0

    @property
    def generations(self) -> int:
        """Number of its generations, which is the number of the one that is added."""
        return len(self.manifest.shard_ends) if self.manifest is not None else 0

    def check_source(self, identity: SourceIdentity) -> None:
        """Raise a SourceError if documents cannot be added to those of the dataset."""

    def check_columns(self, row_format: RowFormat) -> None:
        """Raise a SourceError if a column has another type than in the dataset."""


def pack_into(
    claimed: UnfinishedPack,
    engine: Engine,
    *,
    opened: Corpus,
    watch: Watch,
    options: PackOptions,
    job: Job,
    target: PackTarget,
) -> Manifest:
    """Pack a generation into a claimed folder, resuming an interrupted run; return the manifest of the whole dataset.

    Args:
        claimed: claimed output.
        engine: decides which tasks this process runs.
        opened: source.
        watch: its files.
        options: options of the pack.
        job: how it is written; with `overwrite`, the plan of an interrupted run is discarded if the source has changed.
        target: dataset that gets the generation.

    Raises:
        FinishedElsewhere: another rank has completed the output.
    """
    # Decode the files that cannot be mapped.
    progress = job.progress
    warn_of_linked_files(opened)
    mapped = opened
    if not opened.mapped:
        check_decoding(claimed, opened, options, engine.workers)
        mapped = opened.spill(claimed.spill, progress, engine=engine)
        watch.check()
        watch = watch.of_mapped(mapped)

    # Check every document, and that an interrupted run had the same source.
    notes = NotesInStore(claimed)
    is_whole = options.is_planned_whole
    is_in_order = not options.makes_own_rows
    documents = read_documents(mapped, progress, hold_lengths=is_whole, interleaved=is_in_order)
    _refuse_changed(claimed, notes, documents.identity, overwrite=job.overwrite)
    refuse_all_rejected(mapped.sources, documents.identity.documents, documents.identity.tokens)
    target.check_source(documents.identity)
    check_mixture(claimed, documents.identity, options, engine.workers)
    warn_of_padding(mapped)
    warn_of_unused_sources(documents.identity.mixture)
    warn_of_unstopped(mapped)

    # Plan the rows.
    packed = MappedDocuments(documents=documents)
    row_format = row_format_of(options, packed.table.extra)
    plan = plan_documents(packed, options, row_format, notes=notes, engine=engine, progress=progress)
    watch.check()
    warn_of_split_chats(opened, plan.totals, options)
    target.check_columns(row_format)

    # Write the shards that are missing.
    size = row_format.bytes_of(plan.totals.rows, plan.totals.segments)
    check_writing(claimed, size, options, engine.workers)
    maker = ShardMaker(
        mapped=packed,
        plan=plan,
        row_format=row_format,
        overlap=options.piece_overlap,
        leftovers=leftover_values(packed, plan, row_format),
        first_document=target.documents,
    )
    entries = write_shards(claimed, [maker], watch, engine, progress)
    watch.check()

    # Write the manifest, which completes the dataset.
    totals = Totals(
        **plan.totals.values(),
        tokens_trained=sum(entry.trained for entry in entries),
        segments_untrained=sum(entry.untrained_segments for entry in entries),
    )
    if documents.identity.labels and options.labels and not (totals.tokens_trained or options.allow_nothing_trained):
        refuse_untrained(mapped.sources, totals.tokens_packed)
    generation = Generation(source=documents.identity, totals=with_texts(totals, mapped), shards=len(entries))
    added = Manifest(
        options=PackOptions.from_dict(options.to_dict()),  # as read from the file, without the tokenizer's path
        generations=(generation,),
        shards=kept_shards(entries),
        files={},
    )
    takes = documents.origins.takes
    return completed(claimed, engine, partial(_described, claimed, mapped, takes, added, target))


def _described(
    claimed: UnfinishedPack, mapped: Corpus, takes: Sequence[Take], added: Manifest, target: PackTarget
) -> tuple[Manifest, Mapping[str, bytes]]:
    """Return the manifest of a dataset with a generation that is written, and its small files."""
    if added.options.on_error == "skip":
        digest = write_rejected_list(claimed, mapped.sources, target.generations, target.documents)
        generation = replace(added.generations[0], totals=with_rejected(added.totals, mapped.sources, takes))
        added = replace(added, generations=(generation,), files={rejected_name(target.generations): digest})
    return with_generation(target.manifest, added)


def completed(
    claimed: UnfinishedPack, engine: Engine, describe: Callable[[], tuple[Manifest, Mapping[str, bytes]]]
) -> Manifest:
    """Write the manifest of a dataset, and its small files, in one of all processes; return the manifest.

    Raises:
        FinishedElsewhere: another process has done so.
    """

    def finish() -> Manifest | None:
        manifest, files = describe()
        return manifest if claimed.finish(manifest.to_bytes(), files) else None

    manifest = run_once(engine, finish, claimed.is_complete)
    if manifest is None:
        raise FinishedElsewhere
    return manifest


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
