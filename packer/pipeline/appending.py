"""Append: pack more documents into new shards of a packed dataset, without changing its existing shards."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xxhash import xxh3_128_hexdigest

from packer.engine import Engine
from packer.errors import OtherSourceError, PackerError, SourceError
from packer.facts import SourceIdentity
from packer.options import PackOptions
from packer.output.claim import claim_append
from packer.output.join_generation import Joining, changed_by_another
from packer.output.unfinished_output import Output
from packer.paths import expanded
from packer.pipeline.complete_output import request_of
from packer.pipeline.job import Job, Written, build_claimed
from packer.pipeline.output_place import refuse_inside
from packer.pipeline.packing import pack_into
from packer.pipeline.verifying import compare_opened
from packer.plan.make_plan import PLAN_VERSION
from packer.progress import Progress
from packer.ranks import FinishedElsewhere
from packer.shards.manifest import Manifest, is_packed, parts_of
from packer.shards.reader import check_sizes, checked_batches, open_shard, read_manifest
from packer.shards.row_format import RowFormat
from packer.sources.open_sources import SourceLike, one_source, open_source, options_with, refuse_decoding
from packer.sources.source import Source
from packer.sources.watch_source import Watch
from packer.stores import AnyPath, any_path
from packer.system_errors import system_errors

log = logging.getLogger(__name__)

_MAY_DIFFER = ("indices_xxh3_128", "moment")  # facts about texts
_SHOWN = 3  # files in a message
_LOOK_AGAIN = 0.2  # seconds between two looks at whether another rank has put a generation in place


def append(
    packed: str | AnyPath,
    source: SourceLike | Sequence[SourceLike],
    *,
    tokenizer: str | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Written[Manifest]:
    """Append documents to a packed dataset, packed separately with its options; after a kill, the same call resumes.

    Until the new manifest replaces the old one, in one step, readers see the old dataset. Arguments are those of
    `packer.append`.
    """
    # Choose the engine, and refuse what is wrong before anything is written.
    job = job.for_output(source, packed, remedy="discard what was begun with a single process")
    folder, source = any_path(expanded(packed)), expanded(source)
    if isinstance(source, (list, tuple)):
        if not source or not all(isinstance(each, str | AnyPath) for each in source):
            raise PackerError("a list of sources to append holds paths, which are one source: append others one by one")
        source = one_source(source)
    options_with(folder, read_manifest(folder), tokenizer)
    refuse_inside(source, folder, remedy="append the files or folders in it that hold documents")

    # Put in place what an interrupted command had finished.
    shared = job.as_rank is not None
    with system_errors(folder, resumes=True), claim_append(folder, sync=job.sync, shared=shared):
        # Open the source with the options of the dataset, and check whether its documents are in the dataset already.
        manifest = read_manifest(folder, intact=True)
        check_sizes(folder, manifest)
        options = options_with(folder, manifest, tokenizer)
        joining = Joining(folder, len(manifest.generations), sync=job.sync)
        target = AppendTarget(folder=folder, manifest=manifest, joining=joining)
        opened = target.open(source, options)
        if is_last_generation(target, source, opened, options, job.progress):
            return Written(record=manifest, output=folder, found_complete=True)

        # Pack it in a folder inside the dataset, and move it into the dataset.
        is_mine = _join(target, opened, job, is_mine=_pack(target, opened, options, job))
        grown = read_manifest(folder)
        return Written(record=grown, output=folder, finished_elsewhere=not is_mine)


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendTarget:
    """A complete packed dataset to which a generation is appended."""

    folder: AnyPath
    manifest: Manifest
    joining: Joining
    """Puts the new generation in place once it is packed."""

    def has_grown(self) -> bool:
        """Whether a generation was put in place since."""
        return read_manifest(self.folder) != self.manifest

    def is_finished(self) -> bool:
        """Whether the next generation is finished, or already part of the dataset."""
        return is_packed(self.joining.building) or self.has_grown()

    def open(self, source: SourceLike, options: PackOptions) -> Source:
        """Open a source of documents like those of the dataset; a PackerError if they are of another kind."""
        try:
            opened = open_source(source, options)
        except OtherSourceError as error:
            kind = "tokens" if self.manifest.source.text is None else "text"
            raise PackerError(
                f"{error.found}; {self.folder} was packed from {kind}: append documents of the same kind"
            ) from error
        if options.index_only:
            refuse_decoding(opened)
        texts = (self.manifest.source.text, opened.text)
        one, other = ({} if text is None else text.without_versions() for text in texts)
        for name in dict.fromkeys([*one, *other]):
            if name not in _MAY_DIFFER and one.get(name) != other.get(name):
                raise PackerError(
                    f"{self.folder} was packed with {name} {one.get(name)}, and these documents have "
                    f"{other.get(name)}: append documents that are tokenized in the same way, "
                    "or pack them to another dataset"
                )
        return opened

    def check(self, identity: SourceIdentity, row_format: RowFormat) -> None:
        """Raise a SourceError if only one of dataset and documents says which tokens are trained, or types differ."""
        if identity.labels != self.manifest.source.labels and self.manifest.options.labels:
            has, lacks = ("these documents have", f"those of {self.folder} have none")
            if not identity.labels:
                has, lacks = (f"the documents of {self.folder} have", "these have none")
            raise SourceError(
                f"{has} labels or a mask, and {lacks}: give both, so that the same tokens are trained, or pack to "
                "another dataset"
            )

        options = self.manifest.options
        if not (options.kept or options.stored_keep_tokens):
            return  # the types of all others are those of the format
        schema = open_shard(self.folder, self.manifest.shards[0], self.manifest).schema
        for name in (*options.kept, *options.stored_keep_tokens):
            one, other = (each.field(name).type.value_type for each in (schema, row_format.schema))
            if one != other:
                raise SourceError(
                    f"'{name}' is {other} in these documents, and {one} in {self.folder}: convert the column, or pack "
                    "to another dataset"
                )


def is_last_generation(
    target: AppendTarget, source: SourceLike, opened: Source, options: PackOptions, progress: Progress
) -> bool:
    """Return whether documents are those of the last generation.

    Files are compared by name and size. If a source has all files of a generation, their tokens decide. If it has
    some of them, there is a warning.

    It is a PackerError if all documents of another generation are among them, or of the last one together with
    others, or if a shard of such a generation is damaged.
    """
    paths = {(input_.file.name, input_.file.bytes): input_.path for input_ in opened.listed_inputs}
    parts = parts_of(target.manifest)
    doubtful: dict[str, None] = {}
    for part in reversed(parts):
        files = [(file.name, file.bytes) for file in part.source.files]
        if not paths.keys() >= set(files):
            doubtful |= {name: None for name, size in files if (name, size) in paths}
            continue
        is_whole = len(files) == len(opened.listed_inputs)
        if is_whole:
            again = target.open(source, options)  # subtle: a comparison reads it to the end
        else:
            again = target.open(one_source([str(paths[file]) for file in files]), replace(options, split=None))
        for entry in part.shards:  # damage must not pass for other documents
            deque(checked_batches(target.folder, entry, part), maxlen=0)
        if next(compare_opened(target.folder, part, again, progress), None) is not None:
            continue
        if is_whole and part is parts[-1] and part.part is not None:
            return True
        rows = f"rows {part.first.row:,} to {part.first.row + part.rows - 1:,}"
        if is_whole:
            what, remedy = "these documents", "append others"
        else:
            what, remedy = f"the documents of {_listed([name for name, _ in files])}", "append the other files alone"
        raise PackerError(f"{target.folder} holds {what} already, in {rows}: {remedy}")
    if doubtful:
        log.warning(
            "%s holds documents of files with the names and sizes of %s: if they are the same, append the others alone",
            target.folder,
            _listed(list(doubtful)),
        )
    return False


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _pack(target: AppendTarget, opened: Source, options: PackOptions, job: Job) -> bool:
    """Pack documents into a folder inside the dataset, resuming an interrupted run; return whether this process did."""
    watch, request = Watch.of(opened), request_of(opened, options.to_dict())
    made_of = {"appended_to": xxh3_128_hexdigest(target.manifest.to_bytes()), "plan_version": PLAN_VERSION}

    def build(claimed: Output, engine: Engine) -> Manifest:
        if job.as_rank is not None and target.has_grown():  # by other ranks, before this one came
            raise FinishedElsewhere
        return pack_into(
            claimed,
            engine,
            opened=opened,
            watch=watch,
            options=options,
            job=job,
            before=target.manifest,
            check=target.check,
        )

    manifest = build_claimed(
        target.joining.building,
        replace(request, options={**request.options, **made_of}),
        build,
        job,
        is_complete=target.is_finished,
        is_answered=target.is_finished,
    )
    return manifest is not None


def _join(target: AppendTarget, opened: Source, job: Job, *, is_mine: bool) -> bool:
    """Move the finished generation into the dataset, or wait for the rank that does; return whether this one did.

    A process that did not finish it (`is_mine`) puts it in place if nobody else does in time.
    """
    begun = time.monotonic()
    while not is_mine and not target.has_grown():
        is_mine = time.monotonic() - begun > job.rank_timeout
        time.sleep(_LOOK_AGAIN)
    try:
        if is_mine:
            target.joining.join()
    except (OSError, PackerError):  # of files that another rank is just moving
        if job.as_rank is None or not _is_last_of(read_manifest(target.folder), target, opened):
            raise
        is_mine = False
    if not _is_last_of(read_manifest(target.folder), target, opened):
        raise changed_by_another(target.folder)
    return is_mine


def _is_last_of(manifest: Manifest, target: AppendTarget, opened: Source) -> bool:
    """Whether these documents are the next generation of the dataset, and its last one."""
    if len(manifest.generations) != len(target.manifest.generations) + 1:
        return False
    found = [(file.name, file.bytes) for file in manifest.generations[-1].source.files]
    return found == [(input_.file.name, input_.file.bytes) for input_ in opened.listed_inputs]
