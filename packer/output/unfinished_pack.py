"""An unfinished packed dataset: committed shards, notes of the plan and decoded sources.

OUT/data-00000-of-00012.arrow     shards, at once under their names
OUT/.packer/ranks/                heartbeats
OUT/.packer/spill/                decoded copies of sources that cannot be mapped
OUT/.packer/notes/                results of finished tasks, for later tasks
OUT/.packer/committed/            the future manifest entry of each shard in place, with its hash

In object storage, the last three are in OUT/.packer/ID, where ID is a hash of the request, so that what a process of
another request may still write is never read. Everything that is needed to resume is in the store.

A note, decoded source or shard that does not match its hash is made again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from packer.facts import ShardEntry
from packer.output.unfinished_output import UNREADABLE, Kind, Output
from packer.shards.file_names import MANIFEST, WORK, names_listed
from packer.shards.files import hash_file
from packer.shards.manifest import checksum
from packer.stores import AnyPath
from packer.stores.temporary_files import temporary_folder

PACKED = Kind(
    name="a packed dataset",
    record=MANIFEST,
    building="new",
    listed=names_listed,
    in_place=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnfinishedPack(Output):
    """A claimed folder, on a disk or in object storage, that becomes a packed dataset. Can be pickled."""

    kind: Kind = PACKED
    """Kind of the output."""

    @property
    def own(self) -> str:
        """Name of the folder for this request alone."""
        return WORK if self.request is None else f"{WORK}/{xxhash.xxh3_64_hexdigest(self.request)}"

    @property
    def spill(self) -> AnyPath:
        """Folder of decoded sources."""
        return self.store.root / self.own / "spill"

    @property
    def notes(self) -> str:
        """Name of the folder of the notes of the plan."""
        return f"{self.own}/notes"

    @property
    def entries(self) -> str:
        """Name of the folder of the entries of committed shards."""
        return f"{self.own}/committed"

    @property
    def disk(self) -> Path:
        """Local folder on the disk that fills while the dataset is written."""
        return temporary_folder() if self.store.is_remote else self.work

    def disk_needed(self, rows: int, at_once: int) -> int:
        """Return the bytes that this disk must have room for.

        Args:
            rows: bytes of all rows, those of committed shards included.
            at_once: bytes of the shards that are written at the same time.
        """
        return min(rows, at_once) if self.store.is_remote else rows - sum(self.shards().values())

    def commit(self, temporary: Path, entry: ShardEntry) -> None:
        """Put a written shard in place: first its entry, then the shard itself.

        Raises:
            PackerError: another command has started the dataset again.
        """
        self.check_request()
        content = entry.to_dict()
        sealed = {**content, "checksum": checksum(content)}
        self.store.put(f"{self.entries}/{entry.file}.json", json.dumps(sealed).encode())
        self.put(temporary, entry.file)

    def committed(self, names: Sequence[str]) -> dict[str, ShardEntry]:
        """Return entries, by name, of the given shards that are in place with the right size."""
        sizes = self.store.sizes(among=names)
        entries = zip(sizes, self.store.each(self._entry, list(sizes)), strict=True)
        return {name: entry for name, entry in entries if entry is not None and entry.bytes == sizes[name]}

    def _entry(self, name: str) -> ShardEntry | None:
        """Return the entry of a shard; None if it is missing or damaged."""
        try:
            entry = json.loads(bytes(self.store.get(f"{self.entries}/{name}.json")))
            if entry.pop("checksum") != checksum(entry):
                return None
            return ShardEntry.from_dict(entry)
        except (FileNotFoundError, *UNREADABLE):
            return None

    def is_intact(self, entry: ShardEntry) -> bool:
        """Whether a shard in place matches its hash; object storage checks what it holds."""
        return self.store.is_remote or hash_file(self.store.root / entry.file) == entry.xxh3_128

    def forget_plan(self) -> None:
        """Remove the notes of the plan, and the shards made from it."""
        self.store.delete_all(self.notes)
        self.remove_shards()
        self.store.delete_all(self.entries)
