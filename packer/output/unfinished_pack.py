"""Interface of an unfinished packed dataset, in a local folder or in object storage, as packing uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from packer.shards.manifest_fields import ShardEntry
from packer.stores import AnyPath


class UnfinishedPack(Protocol):
    """A packed dataset that this process has claimed. Can be pickled."""

    @property
    def out(self) -> AnyPath:
        """Path of the finished dataset."""

    @property
    def spill(self) -> AnyPath:
        """Folder of decoded sources."""

    @property
    def notes(self) -> AnyPath:
        """Folder of the notes of the plan."""

    @property
    def signs(self) -> AnyPath:
        """Folder of the signs of life of the processes that write it."""

    @property
    def sync(self) -> bool:
        """Whether temporary files are fsynced."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes write to it, too."""

    @property
    def disk(self) -> Path:
        """Local folder on the disk that fills while the dataset is written."""

    def disk_needed(self, rows: int, at_once: int) -> int:
        """Return the bytes that this disk must have room for.

        Args:
            rows: bytes of all rows, those of committed shards included.
            at_once: bytes of the shards that are written at the same time.
        """

    def is_complete(self) -> bool:
        """Whether the manifest is written."""

    def temporary(self, name: str) -> AbstractContextManager[Path]:
        """Return a context that yields a local path to write to; see `put` and `commit`. An exception removes it."""

    def put(self, temporary: Path, name: str) -> None:
        """Move a written file to its final name in the dataset."""

    def write_note(self, name: str, content: bytes, *, lasting: bool) -> None:
        """Write a file into `notes`, completely or not at all.

        Args:
            name: name of the file, or its path in `notes`.
            content: the content.
            lasting: whether it must survive a crash of the system, and stay as the first process wrote it.
        """

    def commit(self, temporary: Path, entry: ShardEntry) -> None:
        """Put a written shard in place, with its entry for the manifest."""

    def committed(self, names: Sequence[str]) -> dict[str, ShardEntry]:
        """Return the entries of those of these shards that are in place with the right size, by name."""

    def is_intact(self, entry: ShardEntry) -> bool:
        """Whether a shard in place matches its hash."""

    def forget_plan(self) -> None:
        """Remove the notes of the plan, and the shards made from it."""

    def finish(self, record: bytes, files: Mapping[str, bytes]) -> bool:
        """Write small files, then the manifest, which makes the dataset complete.

        Returns:
            False if another process has just written the manifest.
        """
