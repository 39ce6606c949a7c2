"""A dataset whose shards are read through the cache of the node: one in object storage, or an index with its source."""

from __future__ import annotations

import json
import os
import secrets
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from packer.errors import PackerError
from packer.loader.cache.cache_space import CacheOptions, CacheSpace
from packer.loader.cache.shard_cache import ShardCache
from packer.loader.cache.shard_providers import ShardProvider, remote_error
from packer.loader.open_shards import OpenShard
from packer.options import byte_size
from packer.shards.file_names import MANIFEST
from packer.shards.generations import parts_of
from packer.shards.manifest import Manifest, table_listed
from packer.shards.reader import read_manifest
from packer.stores import RemotePath
from packer.stores.file_locks import FileLock


class CachedDataset:
    """A dataset that is read through the cache: shards are fetched when they are needed, or ahead.

    Args:
        manifest: manifest of the dataset.
        providers: for each generation, the name of its folder in the cache, and what fetches its shards.
        options: where shards are kept.

    Raises:
        PackerError: the cache cannot be used, or is too small for a shard.
    """

    def __init__(
        self, manifest: Manifest, providers: Sequence[tuple[str, ShardProvider]], options: CacheOptions
    ) -> None:
        space = CacheSpace(options.folder, options.limit)
        self._manifest = manifest
        self._limit = options.limit
        self._caches = [ShardCache(provider, key, space) for key, provider in providers]
        parts = zip(parts_of(manifest), providers, strict=True)
        self._sizes = np.concatenate([provider.sizes(part.shards) for part, (_, provider) in parts])
        largest = int(self._sizes.max())
        if options.limit is not None and options.limit < largest:
            raise PackerError(
                f"cache_bytes is {byte_size(options.limit)}, and {providers[0][1].folder} has shards of "
                f"{byte_size(largest)}: raise cache_bytes"
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
        entry, cache = self._manifest.shards[number], self._cache_of(number)
        lock, found = cache.hold(entry, give_up_one=give_up_one)
        try:
            return OpenShard(cache.folder, found, self._manifest, lock)
        except PackerError as error:
            lock.release()
            raise PackerError(str(error).replace(str(cache.folder), str(cache.provider.folder))) from error

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
        size, limit = int(self._sizes[list(shards)].sum()), self._limit
        if limit is not None and size > limit:
            raise PackerError(
                f"cache_bytes is {byte_size(limit)}, and the {len(shards)} shards that this rank reads together "
                f"have {byte_size(size)}: raise cache_bytes, or choose fewer lanes or a smaller window"
            )
        if self._ahead is None or self._pid != os.getpid():  # a thread does not survive a fork
            self._ahead, self._pid = read_ahead(self._manifest, self._caches), os.getpid()
            weakref.finalize(self, self._ahead.want, ())
        self._ahead.want([*shards, *upcoming])
        self._wanted = shards, upcoming

    def _cache_of(self, number: int) -> ShardCache:
        return _of_shard(self._manifest, self._caches, number)


def read_ahead(manifest: Manifest, caches: Sequence[ShardCache]) -> ReadAhead:
    """Return an object that fetches shards ahead; it does not refer to the dataset, which may end before its thread."""
    return ReadAhead(
        lambda number: _of_shard(manifest, caches, number).fetch_ahead(manifest.shards[number]),
        lambda number: _of_shard(manifest, caches, number).announce(manifest.shards[number]),
    )


def _of_shard(manifest: Manifest, caches: Sequence[ShardCache], number: int) -> ShardCache:
    """Return the cache of the generation of a shard."""
    return caches[bisect_right(manifest.shard_ends, number)]


_PAUSE = 0.5  # seconds until a shard that did not fit into the cache is tried again
_IDLE = 10.0  # seconds after which the thread ends; it starts again when there is something to do


class ReadAhead:
    """Shards that are wanted soon, fetched one after the other.

    Errors are not raised here: whoever needs the shard fetches it again, and raises its error then.

    Args:
        fetch: fetches a shard by its number if there is room; returns whether there was.
        announce: returns a lock that keeps a shard in the cache while it is wanted.
    """

    def __init__(self, fetch: Callable[[int], bool], announce: Callable[[int], FileLock | None]) -> None:
        self._fetch = fetch
        self._announce = announce
        self._changed = threading.Condition()
        self._missing: list[int] = []  # wanted, and perhaps not in the cache yet
        self._locks: dict[int, FileLock | None] = {}  # of all shards that are wanted
        self._is_running = False

    def want(self, shards: Sequence[int]) -> None:
        """Replace the shards that are wanted, the most urgent first."""
        with self._changed:
            for shard in [shard for shard in self._locks if shard not in shards]:
                lock = self._locks.pop(shard)
                if lock is not None:
                    lock.release()
            self._missing = [shard for shard in shards if shard in self._missing or shard not in self._locks]
            self._locks |= {shard: self._announce(shard) for shard in shards if shard not in self._locks}
            if self._missing and not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="packer read ahead", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._missing:
                    self._changed.wait(_IDLE)
                if not self._missing:
                    self._is_running = False
                    return
                shard = self._missing[0]
            try:
                has_room = self._fetch(shard)
            except Exception:  # raised again for whoever needs the shard
                has_room = True
            with self._changed:
                if not has_room:
                    self._changed.wait(_PAUSE)
                elif shard in self._missing:
                    self._missing.remove(shard)


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
    """Copy the manifest of a dataset into the cache; return the name of the dataset's folder."""
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
    except (
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
        PackerError,
    ):  # damaged, which is reported when it is read
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
