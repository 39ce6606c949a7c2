"""An unfinished packed dataset: committed shards, notes of the plan and decoded sources.

OUT/.packer/spill/          decoded copies of sources that cannot be mapped
OUT/.packer/notes/          results of finished tasks, for later tasks
OUT/.packer/committed/      the future manifest entry of each shard in place, with its hash

A note, decoded source or shard that does not match its hash is made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.output.output_folder import UNREADABLE, OutputFolder, delete
from packer.output.output_kind import Kind
from packer.shards.file_names import MANIFEST, SHARDS, names_listed
from packer.shards.files import hash_file
from packer.shards.manifest import checksum
from packer.shards.manifest_fields import ShardEntry

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

    @property
    def signs(self) -> Path:
        """Folder of the signs of life of the processes that write it."""
        return self.work / "ranks"

    @property
    def disk(self) -> Path:
        """Folder on the disk that fills while the dataset is written."""
        return self.work

    def disk_needed(self, rows: int, at_once: int) -> int:
        """Return the bytes of the shards that are missing; see `UnfinishedPack.disk_needed`."""
        return rows - sum(shard.stat().st_size for shard in self.shards())

    def write_note(self, name: str, content: bytes, *, lasting: bool) -> None:
        """Write a note; see `UnfinishedPack.write_note`. It is synced only if `lasting`."""
        path = self.notes / name
        if lasting:
            self.write_file(path, content, if_absent=self.is_shared)
            return
        with self.temporary(name) as temporary:
            temporary.write_bytes(content)
            temporary.rename(path)

    def commit(self, temporary: Path, entry: ShardEntry) -> None:
        """Put a written shard in place: first its entry, then the shard itself."""
        self.write_file(self._entry(entry.file), entry_bytes(entry))
        self.put(temporary, entry.file)

    def committed(self, names: Sequence[str]) -> dict[str, ShardEntry]:
        """Return the entries of shards in place, by name; see `UnfinishedPack.committed`."""
        there = names_in(self.entries)
        begun = [name for name in names if f"{name}.json" in there]
        return {name: entry for name in begun if (entry := self._committed(name)) is not None}

    def _committed(self, name: str) -> ShardEntry | None:
        try:
            entry = entry_of(self._entry(name).read_bytes())
            return entry if entry is not None and (self.building / name).stat().st_size == entry.bytes else None
        except (FileNotFoundError, IsADirectoryError):
            return None

    def is_intact(self, entry: ShardEntry) -> bool:
        """Whether a shard in place matches its hash."""
        return hash_file(self.building / entry.file) == entry.xxh3_128

    def forget_plan(self) -> None:
        """Remove the notes of the plan, and the shards made from it."""
        for made in (self.notes, *self.shards(), self.building / SHARDS, self.entries):
            delete(made)
        self.notes.mkdir()
        self.entries.mkdir()

    def _entry(self, name: str) -> Path:
        return self.entries / f"{name}.json"


def names_in(folder: Path) -> frozenset[str]:
    """Return the names of all files in a folder, because one listing is cheaper than many single checks.

    There are none in a missing folder: another process has completed the output, and removed it.
    """
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 (names)
    except FileNotFoundError:
        return frozenset()


def entry_bytes(entry: ShardEntry) -> bytes:
    """Return the content of the file of a committed shard: its entry, with a checksum."""
    content = entry.to_dict()
    return json.dumps({**content, "checksum": checksum(content)}).encode()


def entry_of(content: bytes) -> ShardEntry | None:
    """Return the entry that the file of a committed shard holds; None if it is damaged."""
    try:
        entry: dict[str, Any] = json.loads(content)
        if entry.pop("checksum") != checksum(entry):
            return None
        return ShardEntry.from_dict(entry)
    except UNREADABLE:
        return None
