"""An unfinished packed dataset: committed shards, notes of the plan and decoded sources.

OUT/.packer/spill/          decoded copies of sources that cannot be mapped
OUT/.packer/notes/          results of finished tasks, for later tasks
OUT/.packer/committed/      the future manifest entry of each shard in place, with its hash

A note, decoded source or shard that does not match its hash is made again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.facts import kinds_of
from packer.facts.kinds import check_fields
from packer.output.output_folder import UNREADABLE, OutputFolder, delete
from packer.output.output_kind import Kind
from packer.shards.files import hash_file
from packer.shards.manifest import MANIFEST, SHARDS, ShardEntry, checksum, names_listed

PACKED = Kind(
    name="a packed dataset",
    record=MANIFEST,
    building="new",
    listed=names_listed,
    in_place=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedOutput(OutputFolder):
    """A claimed folder that becomes a packed dataset."""

    spill: Path
    """Folder of decoded sources."""

    notes: Path
    """Folder of the notes of the plan."""

    entries: Path
    """Folder of the entries of committed shards."""

    @classmethod
    def of(cls, folder: OutputFolder) -> PackedOutput:
        """Extend a claimed folder by its subfolders."""
        return cls(
            out=folder.out,
            building=folder.building,
            kind=folder.kind,
            sync=folder.sync,
            is_shared=folder.is_shared,
            spill=folder.scratch("spill"),
            notes=folder.scratch("notes"),
            entries=folder.scratch("committed"),
        )

    def commit(self, temporary: Path, entry: ShardEntry) -> None:
        """Put a written shard in place: first its entry, then the shard itself."""
        content = entry.to_dict()
        self.write_file(self._entry(entry.file), json.dumps({**content, "checksum": checksum(content)}).encode())
        temporary.rename(self.building / entry.file)
        self.sync_folder(self.building)

    def committed(self, name: str) -> ShardEntry | None:
        """Return the entry of a shard that is in place with the right size; None if there is no such shard."""
        try:
            content: dict[str, Any] = json.loads(self._entry(name).read_bytes())
            if content.pop("checksum") != checksum(content):
                return None
            check_fields(content, kinds_of(ShardEntry))
            entry = ShardEntry.from_dict(content)
            return entry if (self.building / name).stat().st_size == entry.bytes else None
        except (*UNREADABLE, FileNotFoundError):
            return None

    def is_intact(self, entry: ShardEntry) -> bool:
        """Whether a shard in place matches its hash."""
        return hash_file(self.building / entry.file) == entry.xxh3_128

    def committed_bytes(self) -> int:
        """Return the total size of the shards in place."""
        return sum(shard.stat().st_size for shard in self.shards())

    def forget_plan(self) -> None:
        """Remove the notes of the plan, and the shards made from it."""
        for made in (self.notes, *self.shards(), self.building / SHARDS, self.entries):
            delete(made)
        self.notes.mkdir()
        self.entries.mkdir()

    def _entry(self, name: str) -> Path:
        return self.entries / f"{name}.json"
