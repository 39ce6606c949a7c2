"""Opening packed datasets: `load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError
from packer.loader.cache_space import CacheSpace
from packer.loader.combined import combine
from packer.loader.dataset import PackedDataset
from packer.shards.reader import read_manifest
from packer.stores import AnyPath
from packer.stores.paths import expanded, located, packed_path

if TYPE_CHECKING:
    from packer.sources.find_source import SourceLike

MOST_OPEN = 4096
"""Shards that a process keeps mapped. Linux allows 65,530 maps, and an open shard takes up to a megabyte of memory."""


def load(
    path: str | AnyPath | Sequence[str | AnyPath] | Mapping[Any, float],
    *,
    rows: int | None = None,
    tokens: int | str | None = None,
    seed: int | None = 0,
    cache_dir: str | Path | None = None,
    cache_bytes: int | str | None = None,
    source: SourceLike | Sequence[SourceLike] | None = None,
) -> PackedDataset:
    """Open a packed dataset, or several as one, and check the structure of the shards, without reading tokens.

    Sizes, row counts and columns are checked immediately, the segments of a record batch when its first row is read. If
    there are more than 4,096 shards, only sizes are checked immediately, and at most so many shards are mapped at once.

    A dataset in object storage ("s3://bucket/dataset") is read by whole shards. They are fetched into a cache for all
    processes of a node when they are needed, or ahead by `BatchSampler`. A process hashes each shard before its first
    use; a shard in the cache that does not match the manifest is fetched again.

    Pass several datasets as a list of paths, to read all rows of all, or as a mapping of paths to weights, as in
    `packer.load({"web-packed-4096": 0.7, "code-packed-4096": 0.3}, tokens="10B")`. A weight is a share of the rows. It
    is exact to a row in every epoch. Because rows are full, it is nearly the share of the tokens; the `repr` has the
    exact shares. The next epoch goes on in a dataset where the last one stopped, so that all its rows are used equally
    often, give or take one. The column `source` of a row has the number of its path, from 0.

    Args:
        path: folder of the packed dataset, or its address in object storage (needs the extra `store`); or several.
        rows: rows of an epoch; by default as many as there are without repeating a row.
        tokens: instead of `rows`, about the tokens of an epoch, as a number or as "10B".
        seed: seed of the choice of rows for an epoch that does not have all, 0..2^64-1; None for the order on disk.
        cache_dir: folder for shards of a dataset in object storage, on a local disk; by default the one that
            the variable PACKER_SHARD_CACHE names, or `packer/shards` in the user's cache folder.
        cache_bytes: bytes that the shards in it may take, as a number or as "200GB"; by default half of what the disk
            has for them. The shards that were not used for the longest time make room for new ones.
        source: for an index (`packer pack --index-only`), what was packed: a path, a `datasets` object, or a list
            of paths in order. Lengths and sizes must be the same. Rows are then those of the copied dataset; without
            it, they have no tokens. With several datasets, a list with an entry for each, None if it is no index.

    Raises:
        PackerError: a folder is not a packed dataset, is unfinished or has an unknown format version, a shard was
            changed, the cache cannot be used, the source is not that of the index, or datasets do not fit together.
    """
    path, one = located(path), partial(_load_one, cache=CacheSpace.of(cache_dir, cache_bytes))
    if not isinstance(path, Mapping | Sequence) or isinstance(path, str):
        single = one(path, source)
        return single if rows is tokens is None else combine([single], None, rows=rows, tokens=tokens, seed=seed)
    sources = [None] * len(path) if source is None else source
    if not isinstance(sources, Sequence) or isinstance(sources, str) or len(sources) != len(path):
        raise PackerError(f"source has to be a list with an entry for each of the {len(path)} datasets, or None")
    found = [one(*each, of=len(path)) for each in zip(path, sources, strict=True)]
    weights = list(path.values()) if isinstance(path, Mapping) else None
    return combine(found, weights, rows=rows, tokens=tokens, seed=seed)


def _load_one(
    path: str | AnyPath,
    source: SourceLike | Sequence[SourceLike] | None,
    *,
    of: int = 1,
    cache: CacheSpace,
) -> PackedDataset:
    """Open one of `of` datasets."""
    path = packed_path(path)
    try:
        manifest = read_manifest(path)
    except OSError as error:
        raise PackerError(f"{path} cannot be read: {error.strerror or error}") from error
    tokens = None
    if source is not None:
        from packer.loader.index_tokens import IndexTokens

        tokens = IndexTokens.open(path, manifest, expanded(source))
    return PackedDataset(path, manifest, cache, max(1, MOST_OPEN // of), tokens)
