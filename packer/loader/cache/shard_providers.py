"""What fetches shards into a cache: the protocol of all providers, and the one that downloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.facts import ShardEntry
from packer.shards.shard_table import column_of
from packer.stores import AnyPath, RemotePath


class ShardProvider(Protocol):
    """Writes shards into a cache, and recognizes complete ones there. Can be pickled."""

    @property
    def folder(self) -> AnyPath:
        """Folder of the dataset, for messages."""

    def sizes(self, entries: Sequence[ShardEntry]) -> NDArray[np.int64]:
        """Return an upper bound of the bytes of each shard's file: shape (entries,)."""

    def write(self, entry: ShardEntry, to: Path) -> None:
        """Write a shard to a file in the cache, and check it.

        Raises:
            PackerError: what it is written from cannot be read, or is not what the manifest says.
            OSError: the file cannot be written.
        """

    def found(self, path: Path, entry: ShardEntry) -> ShardEntry | None:
        """Return the entry of a shard in the cache, with the size of its file; None if the file is incomplete.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def is_intact(self, path: Path, entry: ShardEntry) -> bool:
        """Whether the file of a shard in the cache matches its hash."""


@dataclass(frozen=True, slots=True)
class DownloadedShards:
    """Shards of a dataset in object storage."""

    folder: RemotePath
    """Folder of the dataset."""

    def sizes(self, entries: Sequence[ShardEntry]) -> NDArray[np.int64]:
        """Return the sizes in the manifest."""
        return column_of(entries, "bytes")

    def write(self, entry: ShardEntry, to: Path) -> None:
        """Download a shard, a second time if it is not what the manifest says."""
        source = self.folder / entry.file
        for _ in range(2):
            try:
                source.download(to)
            except OSError as error:
                if error.errno is not None and error.filename != str(source):
                    raise  # of the local file
                if isinstance(error, FileNotFoundError):
                    raise PackerError(
                        f"{source} is missing, but listed in the manifest: restore it, or pack again to another folder"
                    ) from error
                raise remote_error(source, error) from error
            fault = _fault(to, entry)
            if fault is None:
                return
        raise PackerError(
            f"{source} {fault}, also when fetched again: it was changed after packing; restore it, or pack again to "
            "another folder"
        )

    def found(self, path: Path, entry: ShardEntry) -> ShardEntry | None:
        """Return the entry if the file has its size."""
        return entry if path.stat().st_size == entry.bytes else None

    def is_intact(self, path: Path, entry: ShardEntry) -> bool:
        """Whether the file is what the manifest says."""
        return _fault(path, entry) is None


def remote_error(path: RemotePath, error: OSError) -> PackerError:
    """Return an error of a store as one line."""
    if error.strerror is None:
        return PackerError(str(error))
    return PackerError(f"{path}: {error.strerror}")


def _fault(path: Path, entry: ShardEntry) -> str | None:
    """Compare a file with its entry in the manifest; return what is wrong in words."""
    from packer.shards.files import hash_file  # imports xxhash, which local datasets do not need

    size = path.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes, the manifest says {entry.bytes:,}"
    return None if hash_file(path) == entry.xxh3_128 else "does not match its hash in the manifest"
