"""Datasets in object storage: the manifest, and shards as a provider of the cache of a node."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.facts import ShardEntry
from packer.shards.file_names import MANIFEST
from packer.shards.manifest import Manifest, table_listed
from packer.shards.reader import read_manifest
from packer.shards.shard_table import ShardTable
from packer.stores import RemotePath


@dataclass(frozen=True, slots=True)
class DownloadedShards:
    """Shards of a dataset in object storage."""

    folder: RemotePath
    """Folder of the dataset."""

    def sizes(self, shards: ShardTable) -> NDArray[np.int64]:
        """Return the sizes in the manifest."""
        return shards.column("bytes")

    def write(self, entry: ShardEntry, to: Path) -> None:
        """Download a shard, a second time if it is not what the manifest says."""
        source = self.folder / entry.file
        for _ in range(2):
            try:
                source.download(to)
            except OSError as error:
                if error.errno is not None and error.filename != str(source):
                    raise  # of the local file
                raise _listed_error(source, error) from error
            fault = _fault(to, entry)
            if fault is None:
                return
        raise PackerError(
            f"{source} {fault}, also when fetched again: it was changed after packing; restore it, or pack again to "
            "another folder"
        )

    def found(self, path: Path, entry: ShardEntry, *, intact: bool) -> ShardEntry | None:
        """Return the entry if the file has its size, or its size and hash."""
        is_found = _fault(path, entry) is None if intact else path.stat().st_size == entry.bytes
        return entry if is_found else None


def read_cached_manifest(source: RemotePath, folder: Path, key: str | None) -> tuple[Manifest, str]:
    """Read the manifest of a dataset, keep it in the cache folder, and return it with its name there.

    With the name, `key`, the manifest is read from the cache, without a request: all processes of a job read the same
    dataset.
    """
    if key is None or not (folder / key / MANIFEST).is_file():
        key = _fetch_manifest(source, folder)
    try:
        return read_manifest(folder / key), key
    except PackerError as error:
        raise PackerError(str(error).replace(str(folder / key), str(source))) from error


def _fetch_manifest(source: RemotePath, folder: Path) -> str:
    """Copy the manifest of a dataset into the cache; return the name of the dataset's folder."""
    try:
        content = (source / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise PackerError(f"{source} is not a packed dataset: it has no {MANIFEST}; `packer pack` makes one") from error
    except OSError as error:
        raise _remote_error(source, error) from error
    own = folder / blake2b(content, digest_size=16).hexdigest()
    try:
        own.mkdir(parents=True, exist_ok=True)
        if (table := _table_of(content)) is not None:
            try:
                entries = (source / table).read_bytes()
            except OSError as error:
                raise _listed_error(source / table, error) from error
            _put(own / table, entries)
        _put(own / MANIFEST, content)  # last: a folder that has it is complete
    except OSError as error:
        raise PackerError(f"{folder} cannot be used as a cache ({error.strerror}): choose another cache_dir") from error
    return own.name


def _table_of(manifest: bytes) -> str | None:
    """Return the name of the file with the entries of the shards; None if these are in the manifest."""
    try:
        listed = table_listed(json.loads(manifest))
    except (ValueError, LookupError, TypeError, RecursionError, PackerError):
        return None  # damaged, which is reported when it is read
    return None if listed is None else listed[0]


def _put(path: Path, content: bytes) -> None:
    """Write a file that other processes see complete or not at all."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    temporary.write_bytes(content)
    temporary.rename(path)


def _remote_error(path: RemotePath, error: OSError) -> PackerError:
    """Return an error of a store as one line."""
    if error.strerror is None:
        return PackerError(str(error))
    return PackerError(f"{path}: {error.strerror}")


def _listed_error(path: RemotePath, error: OSError) -> PackerError:
    """Return the error of a file that is listed in the manifest."""
    if not isinstance(error, FileNotFoundError):
        return _remote_error(path, error)
    return PackerError(f"{path} is missing, but listed in the manifest: restore it, or pack again to another folder")


def _fault(path: Path, entry: ShardEntry) -> str | None:
    """Compare a file with its entry in the manifest; return what is wrong in words."""
    from packer.shards.files import hash_file  # imports xxhash, which local datasets do not need

    size = path.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes, the manifest says {entry.bytes:,}"
    return None if hash_file(path) == entry.xxh3_128 else "does not match its hash in the manifest"
