"""A dataset whose shards are read through the cache of the node: one in object storage, or an index with its source."""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from packer.errors import PackerError
from packer.facts import ShardEntry
from packer.loader.cache_space import CacheOptions, CacheSpace
from packer.loader.open_shards import OpenShard
from packer.loader.shard_cache import ShardCache, ShardProvider
from packer.options import byte_size
from packer.shards.generations import parts_of
from packer.shards.manifest import Manifest
from packer.stores.file_locks import FileLock


class CachedDataset:
    """A dataset that is read through the cache: shards are fetched when they are needed, or ahead.

    `providers` has, for each generation, the name of its folder in the cache, and what fetches its shards.
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
        """Map a shard, given its number; fetch it if it is not in the cache, for which `give_up_one` may make room."""
        cache, entry = _find(number, self._manifest, self._caches)
        lock, found = cache.hold(entry, give_up_one=give_up_one)
        try:
            return OpenShard(cache.folder, found, self._manifest, lock)
        except PackerError as error:
            lock.release()
            raise PackerError(str(error).replace(str(cache.folder), str(cache.provider.folder))) from error

    def fetch_ahead(self, shards: Sequence[int], upcoming: Sequence[int]) -> None:
        """Fetch shards that are read now, then upcoming ones, in the background, and keep them until others are named.

        If those that are read now do not fit into the cache together, this is a PackerError.
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
            self._ahead, self._pid = ReadAhead(self._manifest, self._caches), os.getpid()
            weakref.finalize(self, self._ahead.want, ())
        self._ahead.want([*shards, *upcoming])
        self._wanted = shards, upcoming


def _find(number: int, manifest: Manifest, caches: Sequence[ShardCache]) -> tuple[ShardCache, ShardEntry]:
    """Return the cache of the generation of a shard, and the entry of the shard."""
    return caches[bisect_right(manifest.shard_ends, number)], manifest.shards[number]


_PAUSE = 0.5  # seconds until a shard that did not fit into the cache is tried again
_IDLE = 10.0  # seconds after which the thread ends; it starts again when there is something to do


class ReadAhead:
    """Shards that are wanted soon, fetched one after the other.

    Errors are not raised here: whoever needs the shard fetches it again, and raises its error then. It does not
    refer to the dataset, which may end before its thread. `caches` has the cache of each generation.
    """

    def __init__(self, manifest: Manifest, caches: Sequence[ShardCache]) -> None:
        self._manifest = manifest
        self._caches = caches
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
            for shard in [shard for shard in shards if shard not in self._locks]:
                cache, entry = _find(shard, self._manifest, self._caches)
                self._locks[shard] = cache.announce(entry)
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
                cache, entry = _find(shard, self._manifest, self._caches)
                has_room = cache.fetch_ahead(entry)
            except Exception:  # raised again for whoever needs the shard
                has_room = True
            with self._changed:
                if not has_room:
                    self._changed.wait(_PAUSE)
                elif shard in self._missing:
                    self._missing.remove(shard)
