"""Append: pack more documents into new shards of a packed dataset, whose shards stay as they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from packer.errors import PackerError
from packer.executors import available_workers
from packer.options import PackOptions
from packer.options.command_options import EngineOptions
from packer.output.claim_append import claim_append
from packer.output.claim_pack import claim_pack
from packer.output.join_generation import finish_joining, join_generation
from packer.output.request import names_and_sizes
from packer.paths import expanded
from packer.pipeline.append_base import Base
from packer.pipeline.choose_engine import chosen_engine
from packer.pipeline.name_output import refuse_inside
from packer.pipeline.open_inputs import request_of
from packer.pipeline.packed_source import options_with
from packer.pipeline.packing import pack_into
from packer.pipeline.read_documents import SourceLike, one_source
from packer.pipeline.verifying import compare_opened
from packer.pipeline.watch_source import Watch
from packer.progress import Progress, silent
from packer.ranks import RankOf
from packer.shards.file_names import appending_folder
from packer.shards.generations import parts_of
from packer.shards.manifest import Manifest
from packer.shards.reader import read_manifest
from packer.sources import OpenDocuments
from packer.stores import AnyPath, RemotePath, any_path
from packer.system_errors import system_errors

log = logging.getLogger(__name__)

_ENGINE = EngineOptions()
_PATIENCE = 30.0  # seconds; no other process builds the same generation


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendResult:
    """Result of `append`."""

    manifest: Manifest
    """Manifest of the dataset, with what was appended."""

    output: AnyPath
    """Folder of the dataset."""

    found_complete: bool
    """Whether the dataset had these documents before, as its last generation."""

    @property
    def appended(self) -> Manifest:
        """Description of the last generation alone."""
        return parts_of(self.manifest)[-1]


def append(
    packed: str | AnyPath,
    source: SourceLike | Sequence[SourceLike],
    *,
    tokenizer: str | None = None,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress = silent,
) -> AppendResult:
    """Append documents to a packed dataset, packed by themselves with its options; after a kill, the same call resumes.

    Until the new manifest replaces the old one, in one step, the dataset is the old one. Its shards stay as they are.

    Args:
        packed: folder of the packed dataset.
        source: a path, glob, Hub id, or a `datasets` object; or a list of paths, which are one source.
        tokenizer: path or Hub id of the tokenizer, needed if the name in the manifest is not enough to find it.
        workers: as in `pack`.
        sync: as in `pack`.
        overwrite: discard the unfinished append of other documents.
        progress: callback, as in `pack`.

    Raises:
        PackerError: anything that the user can fix, in one line.
    """
    folder, source = any_path(expanded(packed)), _as_one(expanded(source))
    options_with(folder, read_manifest(folder), tokenizer)  # what is wrong at first sight leaves no trace
    refuse_inside(source, folder)
    with system_errors(folder, resumes=True), claim_append(folder):
        # Put in place what an interrupted command had finished.
        finish_joining(folder, sync=sync)

        # Open the source with the options of the dataset, and see whether it is there already.
        base = Base(folder=folder, manifest=read_manifest(folder))
        base.refuse_kind()
        options = options_with(folder, base.manifest, tokenizer)
        opened = base.open(source, options)
        if _is_last(base, opened, lambda: base.open(source, options), progress):
            return AppendResult(manifest=base.manifest, output=folder, found_complete=True)

        # Pack it beside the dataset.
        _pack(base, opened, options, workers or available_workers(), progress, sync=sync, overwrite=overwrite)

        # Put it in place.
        join_generation(folder, base.generations, sync=sync)
        return AppendResult(manifest=read_manifest(folder), output=folder, found_complete=False)


def _as_one(source: SourceLike | Sequence[SourceLike]) -> SourceLike:
    """Return several paths as one source.

    Raises:
        PackerError: the sources are not paths.
    """
    if not isinstance(source, (list, tuple)):
        return source
    if not source or not all(isinstance(each, str | AnyPath) for each in source):
        raise PackerError("a list of sources to append holds paths, which are one source: append others one by one")
    return one_source(source)


def _is_last(base: Base, opened: OpenDocuments, again: Callable[[], OpenDocuments], progress: Progress) -> bool:
    """Return whether the documents are those that were appended last; token by token, if their files look like it.

    Args:
        base: dataset.
        opened: documents.
        again: function that opens them again, because a comparison reads them to the end.
        progress: callback, as in `pack`.

    Raises:
        PackerError: they are those of another generation.
    """
    files = request_of(opened, {}).without_times.files
    parts = parts_of(base.manifest)
    for part in reversed(parts):
        if names_and_sizes(part.source.files) != files:
            continue
        if next(compare_opened(base.folder, part, again(), progress), None) is not None:
            continue
        if part is parts[-1] and part.part is not None:
            return True
        rows = f"rows {part.first.row:,} to {part.first.row + part.packs - 1:,}"
        raise PackerError(
            f"{base.folder} holds these documents already, in {rows}: append other documents, or pack a mixture with "
            "--mix-unit epochs to repeat some"
        )
    return False


def _pack(
    base: Base,
    opened: OpenDocuments,
    options: PackOptions,
    workers: int,
    progress: Progress,
    *,
    sync: bool,
    overwrite: bool,
) -> None:
    """Pack a generation into the building folder of a dataset, and resume what an interrupted run has left there."""
    watch = Watch.of(opened)
    request = request_of(opened, options.to_dict())
    request = replace(request, options={**request.options, "appended_to": base.key})
    building = appending_folder(base.folder, base.generations)
    place = RankOf(rank=0, ranks=1) if isinstance(building, RemotePath) else None
    with (
        claim_pack(building, request, sync=sync, overwrite=overwrite, shared=False, patience=_PATIENCE) as claimed,
        chosen_engine(claimed, _ENGINE, place, workers) as engine,
    ):
        pack_into(
            claimed,
            engine,
            opened=opened,
            watch=watch,
            options=options,
            progress=progress,
            overwrite=overwrite,
            base=base,
        )
