"""Put a finished generation in place, so that the dataset has it or has it not at every instant.

The shards move into the dataset first, under names that its manifest does not list. Then the new manifest replaces the
old one, by a rename. The small files that list all shards for `datasets` follow. Whoever is killed in between leaves
`OUT/.packer/append`, from which the next append goes on.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from packer.errors import PackerError
from packer.output.output_kind import WORK
from packer.output.packed_output import PACKED
from packer.output.replace_folder import sync_folder
from packer.shards.file_names import MANIFEST, appending_folder, shard_name
from packer.shards.files import hash_file
from packer.shards.generations import first_generations
from packer.shards.manifest import Manifest
from packer.shards.reader import read_manifest

log = logging.getLogger(__name__)


def finish_joining(out: Path, *, sync: bool) -> bool:
    """Put a generation in place that an interrupted command had finished; return whether there was one.

    Args:
        out: claimed dataset.
        sync: fsync the folder.

    Raises:
        PackerError: it belongs to another dataset, or a file of it is missing.
    """
    building = appending_folder(out)
    if PACKED.is_complete(building):
        log.info("the documents of an append that was interrupted are put in place first")
        join_generation(out, sync=sync)
        return True
    if building.is_dir() and not (building / WORK).is_dir():  # interrupted when the manifest was in place
        _replace_small_files(out, building, sync=sync)
    return False


def join_generation(out: Path, *, sync: bool) -> None:
    """Put the generation that is finished in the building folder of a dataset in place.

    Args:
        out: claimed dataset.
        sync: fsync the folder.

    Raises:
        PackerError: it belongs to another dataset, or a file of it is missing.
    """
    building = appending_folder(out)
    grown, present = read_manifest(building), read_manifest(out)
    _refuse_other(out, grown, present)
    entries = grown.shards[len(present.shards) :]
    moves = {shard_name(number, len(entries)): entry.file for number, entry in enumerate(entries)}
    moves |= {name: name for name in grown.files if name not in present.files}
    for begun, name in moves.items():
        if (building / begun).is_file():
            (building / begun).rename(out / name)
    for entry in entries:
        path = out / entry.file
        if not path.is_file() or path.stat().st_size != entry.bytes:
            raise PackerError(
                f"{path} is missing or damaged, and belongs to documents that were being appended: "
                f"remove {building}, and append them again"
            )
    if sync:
        sync_folder(out)
    (building / MANIFEST).rename(out / MANIFEST)
    if sync:
        sync_folder(out)
    _replace_small_files(out, building, sync=sync)


def _replace_small_files(out: Path, building: Path, *, sync: bool) -> None:
    """Move small files that the manifest lists into the dataset, and remove what is left of the building folder."""
    for name, digest in read_manifest(out).files.items():
        if (building / name).is_file() and hash_file(building / name) == digest:
            (building / name).rename(out / name)
    if sync:
        sync_folder(out)
    shutil.rmtree(building)


def _refuse_other(out: Path, grown: Manifest, present: Manifest) -> None:
    """Raise a PackerError if a generation was not made for the dataset as it is."""
    before = first_generations(grown, max(len(grown.generations) - 1, 1))
    if len(grown.generations) < 2 or (before.options, before.source, tuple(before.shards)) != (
        present.options,
        present.source,
        tuple(present.shards),
    ):
        raise PackerError(
            f"{appending_folder(out)} holds documents to be appended to another state of {out}: remove it, and "
            "append them again"
        )
