"""A dataset whose shards are read through the cache of the node: one in object storage, or an index with its source."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from packer.errors import PackerError
from packer.loader.cache.cache_space import CacheOptions, CacheSpace
from packer.loader.cache.read_ahead import ReadAhead
from packer.loader.cache.shard_cache import ShardCache
from packer.loader.cache.shard_providers import ShardProvider
from packer.loader.open_shards import OpenShard
from packer.options import byte_size
from packer.shards.generations import parts_of
from packer.shards.manifest import Manifest


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
        for is_last in (False, True):
            lock, found = cache.hold(entry, give_up_one=give_up_one)
            try:
                return OpenShard(cache.folder, found, self._manifest, lock)
            except PackerError as error:
                lock.release()
                if is_last or not cache.discard_if_damaged(entry):
                    raise PackerError(str(error).replace(str(cache.folder), str(cache.provider.folder))) from error
        raise AssertionError

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
