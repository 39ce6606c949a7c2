"""Shards of a dataset in object storage: its manifest, and shards from the cache of the node."""

from __future__ import annotations

import json
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packer.errors import PackerError
from packer.loader.cache_room import CacheRoom
from packer.loader.open_shards import OpenShard
from packer.loader.read_ahead import ReadAhead
from packer.loader.shard_cache import ShardCache, cache_key, remote_error
from packer.options import byte_size, parse_size
from packer.paths import expanded
from packer.shards.file_names import MANIFEST
from packer.shards.manifest import Manifest
from packer.shards.manifest_fields import table_listed
from packer.shards.reader import read_manifest
from packer.shards.shard_table import column_of
from packer.stores import RemotePath


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheOptions:
    """Where shards are kept on a node, and how much they may take."""

    folder: Path
    """Absolute path of the cache folder."""

    limit: int | None
    """Bytes that all shards in the folder may take; None for half of what the disk has for them."""

    @classmethod
    def of(cls, cache_dir: str | Path | None, cache_bytes: int | str | None) -> CacheOptions:
        """Return the options as `packer.load` takes them.

        Raises:
            PackerError: the size is not a size.
        """
        limit = parse_size(cache_bytes) if isinstance(cache_bytes, str) else cache_bytes
        if limit is not None and limit < 1:
            raise PackerError(f"cache_bytes is {limit}: it must be at least 1, such as 200GB")
        if cache_dir is None:
            cache_dir = os.environ.get("PACKER_SHARD_CACHE") or Path(
                os.environ.get("XDG_CACHE_HOME") or "~/.cache", "packer", "shards"
            )
        return cls(folder=Path(expanded(Path(cache_dir))).absolute(), limit=limit)


class RemoteShards:
    """Manifest and shards of a dataset in object storage.

    Args:
        source: folder of the dataset.
        options: where shards are kept.
        key: name of the dataset's folder in the cache if its manifest was read before. It is read there then, so that
            all processes of a job read the same dataset, and without a request.

    Raises:
        PackerError: the folder is not a packed dataset or cannot be read, or the cache cannot be used.
    """

    def __init__(self, source: RemotePath, options: CacheOptions, *, key: str | None = None) -> None:
        room = CacheRoom(options.folder, options.limit)
        if key is None or not (options.folder / key / MANIFEST).is_file():
            key = _fetch_manifest(source, options.folder)
        self.source = source
        self.options = options
        self.key = key
        self._cache = ShardCache(source, key, room)
        try:
            self.manifest = read_manifest(self._cache.folder)
        except PackerError as error:
            raise self._renamed(error) from error
        largest = int(column_of(self.manifest.shards, "bytes").max())
        if options.limit is not None and options.limit < largest:
            raise PackerError(
                f"cache_bytes is {byte_size(options.limit)}, and {source} has shards of {byte_size(largest)}: "
                "raise cache_bytes"
            )
        self._ahead: ReadAhead | None = None
        self._wanted: tuple[Sequence[int], Sequence[int]] = (), ()
        self._pid = os.getpid()

    def open(self, number: int, give_up_one: Callable[[], bool]) -> OpenShard:
        """Map a shard; fetch it if it is not in the cache.

        Args:
            number: number of the shard.
            give_up_one: closes a shard that is not needed any more; returns whether there was one.

        Raises:
            PackerError: as `ShardCache.hold` and `OpenShard`.
        """
        entry = self.manifest.shards[number]
        lock = self._cache.hold(entry, give_up_one=give_up_one)
        try:
            return OpenShard(self._cache.folder, entry, self.manifest, lock)
        except PackerError as error:
            lock.release()
            if not self._cache.discard_if_damaged(entry):
                raise self._renamed(error) from error
        return OpenShard(self._cache.folder, entry, self.manifest, self._cache.hold(entry, give_up_one=give_up_one))

    def fetch_ahead(self, shards: Sequence[int], upcoming: Sequence[int]) -> None:
        """Fetch shards in the background, and keep them in the cache until other ones are named.

        Args:
            shards: numbers of shards that are read now.
            upcoming: numbers of shards that are read next.

        Raises:
            PackerError: the shards that are read at once do not fit into the cache.
        """
        if (shards, upcoming) == self._wanted:
            return
        size, limit = sum(self.manifest.shards[shard].bytes for shard in shards), self.options.limit
        if limit is not None and size > limit:
            raise PackerError(
                f"cache_bytes is {byte_size(limit)}, and the {len(shards)} shards that this rank reads at once have "
                f"{byte_size(size)}: raise cache_bytes, or choose fewer lanes or a smaller window"
            )
        if self._ahead is None or self._pid != os.getpid():  # a thread does not survive a fork
            self._ahead, self._pid = read_ahead(self._cache, self.manifest), os.getpid()
            weakref.finalize(self, self._ahead.want, ())
        self._ahead.want([*shards, *upcoming])
        self._wanted = shards, upcoming

    def _renamed(self, error: PackerError) -> PackerError:
        """Return an error with the address of the dataset instead of its folder in the cache."""
        return PackerError(str(error).replace(str(self._cache.folder), str(self.source)))


def read_ahead(cache: ShardCache, manifest: Manifest) -> ReadAhead:
    """Return an object that fetches shards ahead; it does not refer to the dataset, which may end before its thread."""
    return ReadAhead(
        lambda number: cache.fetch_ahead(manifest.shards[number]),
        lambda number: cache.announce(manifest.shards[number]),
    )


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
    own = folder / cache_key(content)
    try:
        own.mkdir(exist_ok=True)
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
            f"{path} is missing, the manifest lists it: restore it, or pack again to another folder"
        ) from error
    except OSError as error:
        raise remote_error(path, error) from error


def _put(path: Path, content: bytes) -> None:
    """Write a file that other processes see complete or not at all."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    temporary.write_bytes(content)
    temporary.rename(path)
