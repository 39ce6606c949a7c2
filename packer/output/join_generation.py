"""Move a finished generation into its dataset, so that at every instant the dataset either has it or does not.

The shards come into the dataset first, under names that its manifest does not list: by renames, or in object storage as
copies that the store makes. Then the new manifest replaces the old one: by a rename, or by a put on the condition that
the old one is still there. The small files that list all shards for `datasets` follow. A process that is killed in
between leaves `OUT/.packer/append-N`, from which the next append continues.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from packer.errors import PackerError
from packer.output.packed_output import PACKED
from packer.output.replace_folder import sync_folder
from packer.shards.file_names import MANIFEST, WORK, appending_folder, shard_name
from packer.shards.files import hash_file
from packer.shards.generations import first_generations
from packer.shards.manifest import Manifest
from packer.shards.reader import read_manifest
from packer.stores import AnyPath, RemotePath
from packer.stores.listing import copy_object, folder_sizes
from packer.stores.remote_path import each_at
from packer.stores.requests import ChangedError

log = logging.getLogger(__name__)


def finish_joining(out: AnyPath, *, sync: bool) -> None:
    """Move a generation into the dataset that an interrupted command had finished, and remove leftovers of others.

    Args:
        out: claimed dataset.
        sync: fsync the folder.

    Raises:
        PackerError: it belongs to another dataset, or a file of it is missing.
    """
    generations = len(read_manifest(out).generations)
    before = appending_folder(out, generations - 1)
    if before.is_dir():  # interrupted when the manifest was in place
        _replace_small_files(out, before, sync=sync)
    if PACKED.is_complete(appending_folder(out, generations)):
        log.warning("the documents of an interrupted append are moved into the dataset first")
        try:
            join_generation(out, generations, sync=sync)
        except (OSError, PackerError):
            if len(read_manifest(out).generations) <= generations:  # if not, another process was quicker
                raise
    elif (left := appending_folder(out, generations)).is_dir() and not (left / WORK).is_dir():
        _remove(left)


def join_generation(out: AnyPath, generation: int, *, sync: bool) -> None:
    """Move the generation with this number, which is finished in its own folder, into the dataset.

    Args:
        out: claimed dataset.
        generation: number of the generation.
        sync: fsync the folder.

    Raises:
        PackerError: the dataset has changed, or a file of the generation is missing or damaged.
    """
    building, old = appending_folder(out, generation), out / MANIFEST
    state = old.stat() if isinstance(old, RemotePath) else None  # subtle: before it is read
    grown, present = read_manifest(building, intact=True), read_manifest(out)
    if present != grown:
        _refuse_other(out, building, grown, present)
        _bring(out, building, grown, present, sync=sync)
        new = building / MANIFEST
        if isinstance(old, RemotePath):
            assert state is not None
            try:
                old.replace_bytes(new.read_bytes(), state)
            except ChangedError:
                if read_manifest(out) != grown:  # if equal, another process put the same generation in place
                    raise changed_by_another(out) from None
        elif isinstance(new, Path):
            new.rename(old)
            if sync:
                sync_folder(old.parent)
    _replace_small_files(out, building, sync=sync)


def changed_by_another(out: AnyPath) -> PackerError:
    """Return the error for a dataset that another command has appended to."""
    return PackerError(f"{out} was changed by another packer just now: repeat the command")


def _bring(out: AnyPath, building: AnyPath, grown: Manifest, present: Manifest, *, sync: bool) -> None:
    """Move shards and lists of a generation into the dataset, whose manifest does not list them yet."""
    entries = grown.shards[len(present.shards) :]
    _move(out, building, {shard_name(number, len(entries)): entry.file for number, entry in enumerate(entries)})
    for name in grown.files:
        if name not in present.files:
            _copy(building / name, out / name, sync=sync)
    if isinstance(out, RemotePath):
        sizes = folder_sizes(out)
    else:
        sizes = {entry.file: (out / entry.file).stat().st_size for entry in entries if (out / entry.file).is_file()}
    for entry in entries:
        if sizes.get(entry.file) != entry.bytes:
            raise PackerError(
                f"{out / entry.file} is missing or damaged, and belongs to documents that were being appended: "
                f"remove {building}, and append them again"
            )
    if sync and isinstance(out, Path):
        sync_folder(out)


def _move(out: AnyPath, building: AnyPath, names: Mapping[str, str]) -> None:
    """Move files from one folder to another under new names; those that are moved already are left out."""

    def move(name: str) -> None:
        path, to = building / name, out / names[name]
        if isinstance(path, RemotePath) and isinstance(to, RemotePath):
            copy_object(path, to)
        elif isinstance(path, Path):
            with contextlib.suppress(FileNotFoundError):
                path.rename(str(to))

    each_at(out, move, list(names))


def _copy(path: AnyPath, to: AnyPath, *, sync: bool) -> None:
    """Copy a small file, completely or not at all."""
    if isinstance(path, RemotePath) and isinstance(to, RemotePath):
        copy_object(path, to)
    elif isinstance(path, Path):
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")  # another rank may do the same
        shutil.copyfile(path, temporary)
        if sync:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.rename(str(to))


def _replace_small_files(out: AnyPath, building: AnyPath, *, sync: bool) -> None:
    """Copy small files that the manifest lists into the dataset, and remove the folder of the generation."""
    for name, digest in read_manifest(out).files.items():
        path = building / name
        if path.is_file() and hash_file(path) == digest:
            _copy(path, out / name, sync=sync)
    if sync and isinstance(out, Path):
        sync_folder(out)
    _remove(building)


def _remove(building: AnyPath) -> None:
    if isinstance(building, RemotePath):
        building.remove_all()
    else:
        shutil.rmtree(building)


def _refuse_other(out: AnyPath, building: AnyPath, grown: Manifest, present: Manifest) -> None:
    """Raise a PackerError if a generation was not made for the dataset as it is."""
    before = first_generations(grown, max(len(grown.generations) - 1, 1))
    one, other = ((each.options, each.source, tuple(each.shards)) for each in (before, present))
    if len(grown.generations) < 2 or one != other:
        raise PackerError(
            f"{building} holds documents that were to be appended to another state of {out}: remove it, and append "
            "them again"
        )
