"""Move a finished generation into its dataset, so that at every instant the dataset either has it or does not.

The shards come into the dataset first, under names that its manifest does not list: by renames, or in object storage as
copies that the store makes. Then the new manifest replaces the old one: by a rename, or by a put on the condition that
the old one is still there. The small files that list all shards for `datasets` follow. A process that is killed in
between leaves `OUT/.packer/append-N`, from which the next append continues.
"""

from __future__ import annotations

import logging

from packer.errors import PackerError
from packer.output.unfinished_output import PACKED
from packer.shards.file_names import MANIFEST, WORK, appending_folder, shard_name
from packer.shards.files import hash_file
from packer.shards.manifest import Manifest, first_generations
from packer.shards.reader import read_manifest
from packer.stores import AnyPath
from packer.stores.buckets import ChangedError
from packer.stores.store import store_at

log = logging.getLogger(__name__)


def finish_joining(out: AnyPath, *, sync: bool) -> None:
    """Move a generation into the dataset that an interrupted command had finished, and remove leftovers of others."""
    generations = len(read_manifest(out).generations)
    last = Joining(out, generations - 1, sync=sync)
    if last.building.is_dir():  # interrupted when the manifest was in place
        last.replace_small_files()
    joining = Joining(out, generations, sync=sync)
    if PACKED.is_complete(joining.building):
        log.warning("the documents of an interrupted append are moved into the dataset first")
        try:
            joining.join()
        except (OSError, PackerError):
            if len(read_manifest(out).generations) <= generations:  # if not, another process was quicker
                raise
    elif joining.building.is_dir() and not (joining.building / WORK).is_dir():
        joining.store.delete_all(joining.folder)


def changed_by_another(out: AnyPath) -> PackerError:
    """Return the error for a dataset that another command has appended to."""
    return PackerError(f"{out} was changed by another packer just now: repeat the command")


class Joining:
    """A finished generation, built in the folder `building`, that is moved into its claimed dataset."""

    def __init__(self, out: AnyPath, generation: int, *, sync: bool) -> None:
        self.out, self.building = out, appending_folder(out, generation)
        self.folder = f"{WORK}/{self.building.name}"  # its name in the dataset
        self.store = store_at(out, sync=sync, temporaries=self.folder)

    def join(self) -> None:
        """Move the generation, which is finished in its own folder, into the dataset.

        If the dataset has changed, or a file of the generation is missing or damaged, this is a PackerError.
        """
        before = bytes(self.store.get(MANIFEST))  # subtle: before it is parsed
        grown, present = read_manifest(self.building, intact=True), read_manifest(self.out)
        if present != grown:
            before_it = first_generations(grown, max(len(grown.generations) - 1, 1))
            one, other = ((each.options, each.source, each.shards) for each in (before_it, present))
            if len(grown.generations) < 2 or one != other:
                raise PackerError(
                    f"{self.building} holds documents that were to be appended to another state of {self.out}: remove "
                    "it, and append them again"
                )
            self._bring(grown, present)
            try:
                self.store.replace_if(MANIFEST, bytes(self.store.get(f"{self.folder}/{MANIFEST}")), before)
            except ChangedError:
                if read_manifest(self.out) != grown:  # if equal, another process put the same generation in place
                    raise changed_by_another(self.out) from None
        self.replace_small_files()

    def _bring(self, grown: Manifest, present: Manifest) -> None:
        """Move shards and lists of the generation into the dataset, whose manifest does not list them yet."""
        entries = grown.shards[len(present.shards) :]
        built = (f"{self.folder}/{shard_name(number, len(entries))}" for number in range(len(entries)))
        self.store.move({name: entry.file for name, entry in zip(built, entries, strict=True)})
        for name in grown.files:
            if name not in present.files:
                self._copy(name)
        sizes = self.store.sizes(among=[entry.file for entry in entries])
        for entry in entries:
            if sizes.get(entry.file) != entry.bytes:
                raise PackerError(
                    f"{self.out / entry.file} is missing or damaged, and belongs to documents that were being "
                    f"appended: remove {self.building}, and append them again"
                )

    def _copy(self, name: str) -> None:
        self.store.put(name, bytes(self.store.get(f"{self.folder}/{name}")))

    def replace_small_files(self) -> None:
        """Copy small files that the manifest lists into the dataset, and remove the folder of the generation."""
        for name, digest in read_manifest(self.out).files.items():
            path = self.building / name
            if path.is_file() and hash_file(path) == digest:
                self._copy(name)
        self.store.delete_all(self.folder)
