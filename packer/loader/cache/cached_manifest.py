"""Manifest of a dataset in object storage, kept in the cache of the node."""

from __future__ import annotations

import json
import secrets
from hashlib import blake2b
from pathlib import Path

from packer.errors import PackerError
from packer.loader.cache.shard_providers import remote_error
from packer.shards.file_names import MANIFEST
from packer.shards.manifest import Manifest
from packer.shards.manifest_fields import table_listed
from packer.shards.reader import read_manifest
from packer.stores import RemotePath


def read_cached_manifest(source: RemotePath, folder: Path, key: str | None) -> tuple[Manifest, str]:
    """Read the manifest of a dataset, and keep it in the cache.

    Args:
        source: folder of the dataset.
        folder: the cache folder.
        key: what was returned when it was read before. It is read from the cache then, so that all processes of a job
            read the same dataset, and without a request.

    Returns:
        The manifest, and its name in the cache.

    Raises:
        PackerError: the folder is not a packed dataset or cannot be read, or the cache cannot be written.
    """
    if key is None or not (folder / key / MANIFEST).is_file():
        key = _fetch_manifest(source, folder)
    try:
        return read_manifest(folder / key), key
    except PackerError as error:
        raise PackerError(str(error).replace(str(folder / key), str(source))) from error


def _fetch_manifest(source: RemotePath, folder: Path) -> str:
    """Copy the manifest of a dataset into the cache; return the name of the dataset's folder.

    Raises:
        PackerError: there is none, or it cannot be read or written.
    """
    try:
        content = (source / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise PackerError(f"{source} is not a packed dataset: it has no {MANIFEST}; `packer pack` makes one") from error
    except OSError as error:
        raise remote_error(source, error) from error
    own = folder / blake2b(content, digest_size=16).hexdigest()
    try:
        own.mkdir(parents=True, exist_ok=True)
        if (table := _table_of(content)) is not None:
            _put(own / table, _read(source / table))
        _put(own / MANIFEST, content)  # last: a folder that has it is complete
    except OSError as error:
        raise PackerError(f"{folder} cannot be used as a cache ({error.strerror}): choose another cache_dir") from error
    return own.name


def _table_of(manifest: bytes) -> str | None:
    """Return the name of the file with the entries of the shards; None if these are in the manifest."""
    try:
        listed = table_listed(json.loads(manifest))
    except (ValueError, LookupError, TypeError, RecursionError):  # damaged, which is reported when it is read
        return None
    return None if listed is None else listed[0]


def _read(path: RemotePath) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise PackerError(
            f"{path} is missing, but listed in the manifest: restore it, or pack again to another folder"
        ) from error
    except OSError as error:
        raise remote_error(path, error) from error


def _put(path: Path, content: bytes) -> None:
    """Write a file that other processes see complete or not at all."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    temporary.write_bytes(content)
    temporary.rename(path)
