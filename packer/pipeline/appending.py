"""Append: pack more documents into new shards of a packed dataset, without changing its existing shards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from packer.errors import PackerError
from packer.executors import available_workers
from packer.options import PackOptions
from packer.options.command_options import EngineOptions
from packer.output.claim_append import claim_append
from packer.output.claim_pack import claim_pack
from packer.output.join_generation import changed_by_another, finish_joining, join_generation
from packer.paths import expanded
from packer.pipeline.append_target import AppendTarget, is_last_generation
from packer.pipeline.choose_engine import chosen_engine, chosen_rank
from packer.pipeline.name_output import refuse_inside
from packer.pipeline.open_inputs import request_of
from packer.pipeline.packed_source import options_with
from packer.pipeline.packing import pack_into
from packer.pipeline.planning.make_plan import PLAN_VERSION
from packer.pipeline.read_documents import SourceLike, one_source
from packer.pipeline.watch_source import Watch
from packer.progress import Progress, silent
from packer.ranks import FinishedElsewhere, RankOf
from packer.shards.generations import parts_of
from packer.shards.manifest import Manifest, is_packed
from packer.shards.reader import check_sizes, read_manifest
from packer.sources.open_documents import OpenDocuments
from packer.sources.packed.open_packed import packed_folder
from packer.stores import AnyPath, any_path
from packer.system_errors import system_errors

_LOOK_AGAIN = 0.2  # seconds between two looks at whether another rank has put a generation in place


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendResult:
    """Result of `append`."""

    manifest: Manifest
    """Manifest of the dataset, including the appended documents."""

    output: AnyPath
    """Folder of the dataset."""

    found_complete: bool
    """Whether the dataset had these documents before, as its last generation."""

    finished_elsewhere: bool = False
    """Whether another rank put them in place."""

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
    engine_options: EngineOptions = EngineOptions(),  # noqa: B008 (immutable)
    progress: Progress = silent,
) -> AppendResult:
    """Append documents to a packed dataset, packed separately with its options; after a kill, the same call resumes.

    Until the new manifest replaces the old one, in one step, readers see the old dataset. Existing shards do not
    change.

    Args:
        packed: folder of the packed dataset.
        source: a path, glob, Hub id, or a `datasets` object; or a list of paths, which are one source.
        tokenizer: path or Hub id of the tokenizer, needed if the name in the manifest is not enough to find it.
        workers: as in `pack`.
        sync: as in `pack`.
        overwrite: discard the unfinished append of other documents.
        engine_options: as in `pack`.
        progress: callback, as in `pack`.

    Raises:
        PackerError: anything that the user can fix, in one line.
    """
    # Choose the engine; obvious errors are raised before anything is written.
    remedy = "discard what was begun with a single process"
    place = chosen_rank(engine_options, source, packed, sync=sync, overwrite=overwrite, remedy=remedy)
    folder, source = any_path(expanded(packed)), _as_one(expanded(source))
    options_with(folder, read_manifest(folder), tokenizer)
    refuse_inside(source, folder, remedy="append the files or folders in it that hold documents")
    if isinstance(folder, Path) and (same := packed_folder(source)) and same.resolve() == folder.resolve():
        raise PackerError(f"{folder} cannot be appended to itself: append other documents")

    # Put in place what an interrupted command had finished.
    prepare = partial(finish_joining, folder, sync=sync)
    with system_errors(folder, resumes=True), claim_append(folder, prepare=prepare, shared=place is not None):
        # Open the source with the options of the dataset, and check whether its documents are in the dataset already.
        growing = AppendTarget(folder=folder, manifest=read_manifest(folder, intact=True))
        growing.refuse_kind()
        check_sizes(folder, growing.manifest)
        options = options_with(folder, growing.manifest, tokenizer)
        opened = growing.open(source, options)
        if is_last_generation(growing, source, opened, options, progress):
            return AppendResult(manifest=growing.manifest, output=folder, found_complete=True)

        # Pack it in a folder inside the dataset.
        made = _Generation(growing=growing, opened=opened, options=options, place=place, engine_options=engine_options)
        is_mine = made.pack(workers or available_workers(), progress, sync=sync, overwrite=overwrite)

        # Move it into the dataset, unless the rank that finished it does so.
        is_mine = made.join(is_mine=is_mine, sync=sync)
        return AppendResult(
            manifest=read_manifest(folder), output=folder, found_complete=False, finished_elsewhere=not is_mine
        )


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Generation:
    """Documents that become a generation of a dataset."""

    growing: AppendTarget
    """The dataset."""

    opened: OpenDocuments
    """The documents."""

    options: PackOptions
    """Options of the dataset."""

    place: RankOf | None
    """Rank of this process; None if it claims the dataset alone."""

    engine_options: EngineOptions
    """Options of the engine."""

    def pack(self, workers: int, progress: Progress, *, sync: bool, overwrite: bool) -> bool:
        """Pack them into a folder inside the dataset, resuming an interrupted run.

        Returns:
            Whether this process finished them; if not, another rank did.
        """
        growing, watch = self.growing, Watch.of(self.opened)
        request = request_of(self.opened, self.options.to_dict())
        made_of = {"appended_to": growing.key, "plan_version": PLAN_VERSION}
        request = replace(request, options={**request.options, **made_of})
        shared, patience = self.place is not None, self.engine_options.rank_timeout
        try:
            with (
                claim_pack(
                    growing.building, request, sync=sync, overwrite=overwrite, shared=shared, patience=patience
                ) as claimed,
                chosen_engine(claimed, self.engine_options, self.place, workers, self._is_finished) as engine,
            ):
                if shared and growing.has_grown():  # by other ranks, before this one came
                    raise FinishedElsewhere
                pack_into(
                    claimed,
                    engine,
                    opened=self.opened,
                    watch=watch,
                    options=self.options,
                    progress=progress,
                    overwrite=overwrite,
                    growing=growing,
                )
        except Exception:
            # The rank that finishes it moves what the others may just be looking for.
            if shared and self._is_finished():
                return False
            raise
        return True

    def _is_finished(self) -> bool:
        """Whether the generation is finished, or already part of the dataset."""
        return is_packed(self.growing.building) or self.growing.has_grown()

    def join(self, *, is_mine: bool, sync: bool) -> bool:
        """Move the finished generation into the dataset, or wait for the rank that does; return whether this one did.

        Args:
            is_mine: whether this process finished it. One that did not puts it in place if nobody else does in time.
            sync: fsync the folder.

        Raises:
            PackerError: the dataset was changed by another command, or files of the generation are missing.
        """
        growing, begun = self.growing, time.monotonic()
        while not is_mine and not growing.has_grown():
            is_mine = time.monotonic() - begun > self.engine_options.rank_timeout
            time.sleep(_LOOK_AGAIN)
        try:
            if is_mine:
                join_generation(growing.folder, growing.generations, sync=sync)
        except Exception:
            if self.place is None or not self._is_last_of(read_manifest(growing.folder)):
                raise
            is_mine = False
        if not self._is_last_of(read_manifest(growing.folder)):
            raise changed_by_another(growing.folder)
        return is_mine

    def _is_last_of(self, manifest: Manifest) -> bool:
        """Whether these documents are the next generation of the dataset, and its last one."""
        if len(manifest.generations) != self.growing.generations + 1:
            return False
        found = [(file.name, file.bytes) for file in manifest.generations[-1].source.files]
        return found == [(input_.file.name, input_.file.bytes) for input_ in self.opened.inputs]
