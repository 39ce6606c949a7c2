"""A packed dataset while it is unfinished: committed shards, notes of the plan, decoded sources.

OUT/.packer/spill/          sources that cannot be mapped, decoded once
OUT/.packer/notes/          results of finished tasks, for the tasks after them
OUT/.packer/committed/      for each shard that is in place, its entry in the manifest to be, with its hash

Nothing found there is trusted: a note, decoded source or shard that does not match its hash is made again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.facts import kinds_of
from packer.facts.kinds import check_fields
from packer.output.output_folder import UNREADABLE, OutputFolder, delete
from packer.output.output_kind import Kind
from packer.shards.files import hash_file
from packer.shards.manifest import MANIFEST, ShardEntry, checksum


def _files_listed(manifest: Mapping[str, Any]) -> list[str]:
    return [*(shard["file"] for shard in manifest["shards"]), *manifest["files"]]


PACKED = Kind(
    name="a packed dataset",
    record=MANIFEST,
    building="new",
    listed=_files_listed,  # no lambda: an output can be pickled
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
        """Extend a claimed folder."""
        return cls(
            out=folder.out,
            building=folder.building,
            kind=folder.kind,
            sync=folder.sync,
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
        """Return the entry of a shard that is in place with its size; None without one."""
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
        """Size of the shards in place."""
        return sum(shard.stat().st_size for shard in self.shards())

    def forget_plan(self) -> None:
        """Remove the plan and everything that was made by it."""
        for made in (self.notes, *self.shards(), self.entries):
            delete(made)
        self.notes.mkdir()
        self.entries.mkdir()

    def _entry(self, name: str) -> Path:
        return self.entries / f"{name}.json"
