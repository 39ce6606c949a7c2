"""A packed dataset that is open: its manifest and shards, on a disk or in a cache, and the tokens of an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.loader.cache.cache_space import CacheOptions
from packer.loader.open_shards import OpenShard, OpenShards
from packer.shards.generations import first_generations, keys_of
from packer.shards.reader import check_sizes, read_manifest
from packer.stores import AnyPath, RemotePath

if TYPE_CHECKING:
    from packer.loader.cache.cached_dataset import CachedDataset
    from packer.loader.index.generation_tokens import GenerationTokens
    from packer.pipeline.read_documents import SourceLike

MOST_OPEN = 4096
"""Shards that a process keeps mapped. Linux allows 65,530 maps, and an open shard takes up to a megabyte of memory."""

MOST_HELD = 16
"""Shards that a process keeps in the cache of the node while it reads rows in no announced order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """How a dataset is opened. Can be pickled."""

    path: AnyPath
    """Folder of the dataset."""

    cache: CacheOptions
    """Where shards are kept that are in object storage, or made."""

    generations: int | None = None
    """Number of generations that are read; None for all."""

    key: str | None = None
    """Name of the manifest in the cache; None if it was not read before, or is on a disk."""

    tokens: GenerationTokens | None = None
    """Tokens of an index, from its source."""


class OpenDataset:
    """The manifest and the shards of a dataset. Pickling stores only how it is opened.

    Args:
        opening: how it is opened.

    Raises:
        PackerError: the folder is not a packed dataset, a shard was changed, or the cache cannot be used.
    """

    def __init__(self, opening: Opening) -> None:
        path, key = opening.path, None
        self._cached: CachedDataset | None = None
        if isinstance(path, RemotePath):
            from packer.loader.cache.cached_dataset import CachedDataset, read_cached_manifest
            from packer.loader.cache.shard_providers import DownloadedShards

            found, key = read_cached_manifest(path, opening.cache.folder, opening.key)
        else:
            found = read_manifest(path)
        self.manifest = manifest = first_generations(found, opening.generations)
        self._opening = replace(opening, key=key, generations=len(manifest.generations))
        if isinstance(path, RemotePath):
            providers = [(each, DownloadedShards(path)) for each in keys_of(manifest)]
            self._cached = CachedDataset(manifest, providers, opening.cache)
            self.shards = OpenShards(self._cached.open, MOST_HELD)
        else:
            self.shards = OpenShards(lambda number, _: OpenShard(path, manifest.shards[number], manifest), MOST_OPEN)
            self._check_local(path)
        self.row_shards = self.shards
        self._set_tokens(opening.tokens)

    @property
    def path(self) -> AnyPath:
        """Folder of the dataset."""
        return self._opening.path

    @property
    def is_cached(self) -> bool:
        """Whether rows are read from whole shards in the cache."""
        return self._cached is not None

    def open_source(self, source: SourceLike | Sequence[SourceLike]) -> None:
        """Open the source of an index; see `GenerationTokens.open`."""
        from packer.loader.index.generation_tokens import GenerationTokens

        tokens = GenerationTokens.open(self._opening.path, self.manifest, source)
        self._opening = replace(self._opening, tokens=tokens)
        self._set_tokens(tokens)

    def fetch_ahead(self, shards: Sequence[int], upcoming: Sequence[int]) -> None:
        """Fetch shards in the background if rows are read from the cache; see `CachedDataset.fetch_ahead`."""
        if self._cached is not None:
            self._cached.fetch_ahead(shards, upcoming)

    def __reduce__(self) -> tuple[Any, ...]:
        opening = self._opening
        if isinstance(opening.path, Path):  # another process may run in another folder
            opening = replace(opening, path=opening.path.absolute())
        return OpenDataset, (opening,)

    def _set_tokens(self, tokens: GenerationTokens | None) -> None:
        self.tokens = tokens
        """Tokens with which rows of `row_shards` are filled; None if they have theirs."""
        if tokens is not None and tokens.is_remote:
            from packer.loader.index.materialized_shards import materialized_shards

            self._cached = materialized_shards(self._opening.path, self.manifest, tokens, self._opening.cache)
            self.row_shards, self.tokens = OpenShards(self._cached.open, MOST_HELD), None

    def _check_local(self, path: Path) -> None:
        if len(self.manifest.shards) > MOST_OPEN:
            check_sizes(path, self.manifest)
            return
        for number in range(len(self.manifest.shards)):
            self.shards.open(number)
