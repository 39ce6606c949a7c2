"""Pack a source: open it, claim the output, plan, write the shards, and commit."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from functools import partial

from xxhash import xxh3_128_hexdigest

from packer.engines.checkpoints import Checkpoint
from packer.engines.engine import available_workers, run_once
from packer.engines.ranks import FinishedElsewhere
from packer.errors import PackerError, SourceError, system_errors
from packer.json_records import REJECTED, PlanTotals, SourceIdentity, Totals
from packer.options import PackOptions
from packer.output.claim import finish_interrupted, way_to_replace
from packer.output.job import Job, Written, claimed, name_after, refuse_inside
from packer.output.unfinished_output import Output, Request, difference, names_and_sizes, request_of
from packer.pipeline.source_warnings import (
    check_documents,
    notes_on,
    refuse_untrained,
    with_counts,
    write_rejected_list,
)
from packer.pipeline.write_shards import ShardMaker, write_shards
from packer.plan.make_plan import PLAN_VERSION, plan_documents
from packer.plan.segments import trained_cut_off
from packer.shards.files import MANIFEST, all_shard_names, changed_since, check_files, holdout_of
from packer.shards.manifest import Manifest, ShardTable, datasets_files, is_packed
from packer.shards.reader import OlderVersionError, read_manifest
from packer.shards.row_format import RowFormat
from packer.sources.find_source import SourceLike
from packer.sources.open_source import refuse_decoding
from packer.sources.source import Documents, Source, Watch, read_documents
from packer.sources.spill import spill_source
from packer.stores import AnyPath, RemotePath
from packer.stores.paths import expanded, output_path
from packer.text.text_source import open_source

log = logging.getLogger(__name__)


def pack(
    source: SourceLike,
    *,
    options: PackOptions,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Written[Manifest]:
    """Pack a source. After an interruption, the same call resumes."""
    # Choose the engine.
    job = job.for_output(source, job.output)

    # Open the source, and watch its files for changes.
    source = expanded(source)
    opened = open_source(source, options)
    is_index = options.index_only or options.lengths_column is not None  # lengths alone can only give an index
    pad_id = (opened.pad_id or 0) if options.pad_id is None else options.pad_id
    options = replace(options, index_only=is_index, pad_id=pad_id)
    if options.index_only:
        refuse_decoding(opened)
    _refuse_dropped_masks(opened, options)
    watch = Watch.of(opened)

    # Name the output, and pack into it.
    usual = f"packed-{options.max_len}"
    out = output_path(name_after(source, usual, options.split) if job.output is None else job.output)
    refuse_inside(source, out)
    if options.holdout is None:
        return _pack_to(out, opened, watch, options, job)
    held = partial(_pack_to, holdout_of(out), opened, watch, replace(options, is_holdout=True), job)
    others = partial(_pack_to, out, opened, watch, options, job)
    # Write the training dataset last. If it is complete, check it first: it may belong to another pack.
    written = others() if is_packed(out) else None
    is_complete = held().found_complete
    written = written or others()
    return replace(written, found_complete=written.found_complete and is_complete)


def _pack_to(out: AnyPath, opened: Source, watch: Watch, options: PackOptions, job: Job) -> Written[Manifest]:
    """Pack a source, or the part selected by the options, unless the output is complete. Resumes an interrupted run.

    If the source has changed since the interrupted run, this is an error unless `job.overwrite`, which discards the
    plan.
    """
    request, progress = request_of(opened, options.to_dict()), job.progress
    # Return a complete dataset.
    with system_errors(out, resumes=False):
        if (found := found_complete(out, opened, request, job)) is not None:
            return found
    with system_errors(out, resumes=True):
        try:
            # Only a plan made by the same rules is resumed.
            begun = replace(request, options={**request.options, "plan_version": PLAN_VERSION})
            with claimed(out, begun, job, is_answered=partial(is_written, out, request)) as (output, engine):
                # Decode files that cannot be mapped.
                mapped = spill_source(opened, output.spill, output.watched(progress), engine=engine)
                watch.check()
                watch = watch.of_mapped(mapped)

                # Check every document, and that an interrupted run read the same source.
                _refuse_dropped_masks(mapped, options)  # only now is it known whether JSON lines have labels
                documents = read_documents(mapped, progress)
                check_documents(documents)
                options = replace(options, weights_per=documents.source.weights_per)
                row_format = RowFormat.of(options, documents.table.extra)
                _refuse_changed(output, documents.identity, overwrite=job.overwrite)

                # Plan the rows.
                plan = plan_documents(
                    documents, options, row_format, checkpoints=output.checkpoints, engine=engine, progress=progress
                )
                watch.check()

                # Write the missing shards.
                maker = ShardMaker(documents=documents, plan=plan, row_format=row_format, ranks=options.balance_ranks)
                shards = ShardTable.of(write_shards(output, maker, options.shard_size, watch, engine, progress))

                # Write the manifest, which completes the dataset.
                totals = _totals(documents, plan.totals, shards, options)
                finish = partial(_finish, output, options.without_path(), documents, totals, shards, engine.workers)
                manifest = run_once(engine, finish, output.is_complete)
                if manifest is None:
                    raise FinishedElsewhere
                return Written(record=manifest, output=out, notes=notes_on(opened, documents.source.counts))
        except FinishedElsewhere:
            return Written(record=read_manifest(out), output=out, finished_elsewhere=True)


def found_complete(out: AnyPath, opened: Source, request: Request, job: Job) -> Written[Manifest] | None:
    """Return the requested dataset if it is complete. Returns None if it does not exist or will be replaced."""
    finish_interrupted(out)
    if not is_packed(out):
        return None
    if not job.overwrite:
        manifest = read_manifest(out)
        checked = _check_complete(out, manifest, opened, request, job)
        return Written(record=manifest, output=out, found_complete=True, checked=checked)
    if isinstance(out, RemotePath):
        raise PackerError(
            f"{out} is complete, and nothing in object storage is replaced in one step, so readers would meet a "
            f"mixture of both: choose another --output, or {way_to_replace(out)}"
        )
    with contextlib.suppress(OlderVersionError):
        read_manifest(out)  # only a dataset with a valid manifest, or of an older format, is replaced
    return None


def _refuse_dropped_masks(source: Source, options: PackOptions) -> None:
    """Raise a SourceError if labels are not written although the source marks tokens that must not be trained."""
    if options.labels or not source.has_labels:
        return
    what, remedy = "labels or masks", "remove them from the source"
    if source.text is not None:
        what, remedy = f"text of which a part is trained ({source.text.train_on})", "set --train-on all"
    raise SourceError(f"{source.name} has {what}, which --no-labels would drop: leave it out, or {remedy}")


def _totals(documents: Documents, planned: PlanTotals, shards: ShardTable, options: PackOptions) -> Totals:
    """Return the totals of the rows. Raises a SourceError if no token is trained, unless the options allow that."""
    found = Totals(**{**planned.values(), **shards.totals()})
    may_train_none = options.untrained == "keep-all" or not (documents.source.has_labels and options.labels)
    if not (found.tokens_trained or may_train_none):
        refuse_untrained(documents.source.rejections, planned.tokens_packed)
    totals = with_counts(found, documents)
    if options.on_error == "skip":  # rejected documents count under their reasons instead of as empty
        counts = documents.source.rejections.counts
        values = totals.with_rejected(sum(counts.values())).values()
        totals = Totals(**{**values, "documents_rejected": counts})
    return totals


def _finish(
    output: Output, options: PackOptions, documents: Documents, totals: Totals, shards: ShardTable, workers: int
) -> Manifest | None:
    """Write the small files and the manifest of a dataset. Returns None if another process has just written them."""
    small = datasets_files(documents.identity, all_shard_names(len(shards)))
    files = {name: xxh3_128_hexdigest(content) for name, content in small.items()}
    if options.on_error == "skip":
        files[REJECTED] = write_rejected_list(output, documents.source.rejections)
    totals = replace(totals, tokens_trained_truncated=trained_cut_off(documents, options, workers))
    manifest = Manifest(options=options, source=documents.identity, totals=totals, shards=shards, files=files)
    return manifest if output.finish(manifest.to_bytes(), small) else None


def _refuse_changed(claimed: Output, identity: SourceIdentity, *, overwrite: bool) -> None:
    """Save the identity of the source. If an interrupted run read another, raise a PackerError or discard its plan."""
    saved = claimed.checkpoints.load("source")
    if saved is not None and saved.facts != identity.to_dict():
        if not overwrite:
            raise PackerError(
                f"{claimed.out} was started from a source that has changed since: start again with --overwrite"
            )
        claimed.forget_plan()
    claimed.checkpoints.save("source", Checkpoint(facts=identity.to_dict()), lasting=True)


def _check_complete(out: AnyPath, manifest: Manifest, opened: Source, request: Request, job: Job) -> str:
    """Check that a complete dataset is what packing this source would write, and that its files are intact.

    Sources are compared by file names, sizes and lengths. If file times do not prove that the source is unchanged,
    every token is compared. Returns a description of what was checked.
    """
    remedy = f"choose another --output, or {way_to_replace(out)}"
    found = _request_in(manifest)
    is_same = found == request.without_times
    if is_same and opened.mapped:  # the lengths of a mapped source are cheap to read
        is_same = read_documents(opened, job.progress).identity == manifest.source
    if not is_same:
        raise PackerError(f"{out} is complete, packed {difference(found, request.without_times)}: {remedy}")
    check_files(out / MANIFEST, manifest.shards, manifest.files)
    paths = [path for file in opened.files for path in file.paths]
    if len(paths) >= len(opened.files) and not changed_since(out / MANIFEST, paths):
        return "its shards have the recorded sizes, and no source file was written since"
    log.info("the times of the source files do not prove that they are unchanged: comparing every token")
    from packer.pipeline.verifying import compare_opened

    workers = job.workers or available_workers()
    fault = next(compare_opened(out, manifest, opened, workers=workers, progress=job.progress), None)
    if fault is not None:
        raise PackerError(f"{out} is complete, packed from a source that has changed since ({fault}): {remedy}")
    return "its shards have the recorded sizes, and hold every token of the source"


def is_written(out: AnyPath, request: Request) -> bool:
    """Whether the requested dataset is complete. Times of source files are ignored."""
    with contextlib.suppress(OSError, PackerError):  # if this fails, an earlier error is reported
        return is_packed(out) and _request_in(read_manifest(out)) == request.without_times
    return False


def _request_in(manifest: Manifest) -> Request:
    """Return the request that made a dataset, without file times, from its manifest."""
    source = manifest.source
    return Request(
        options=replace(manifest.options, weights_per=None).to_dict(),
        files=names_and_sizes(source.files),
        text=source.text,
    )
