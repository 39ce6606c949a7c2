"""Materialize: write the rows of an index with their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packer.errors import PackerError
from packer.options.command_options import EngineOptions
from packer.paths import expanded
from packer.pipeline.index_shards import Index
from packer.pipeline.packed_source import listed_sources
from packer.pipeline.packing import PackResult, pack
from packer.pipeline.read_documents import SourceLike
from packer.progress import Progress, silent
from packer.shards.reader import read_manifest
from packer.stores import AnyPath, any_path


def materialize(
    index: str | AnyPath,
    source: SourceLike | Sequence[SourceLike],
    output: str | AnyPath,
    *,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    engine_options: EngineOptions = EngineOptions(),  # noqa: B008 (immutable)
    progress: Progress = silent,
) -> PackResult:
    """Write the copied dataset of an index: the same bytes as packing its source without `index_only`.

    Args:
        index: folder of the index.
        source: what was packed; of a mixture a list of all sources, in order.
        output: folder to write.
        workers: as in `pack`.
        sync: as in `pack`.
        overwrite: as in `pack`.
        engine_options: as in `pack`.
        progress: as in `pack`.

    Raises:
        PackerError: the folder is no index, the source is another one, or as in `pack`.
    """
    folder = any_path(expanded(index))
    manifest = read_manifest(folder)
    if not manifest.options.index_only:
        raise PackerError(f"{folder} holds its tokens already, and only an index can be materialized: use it as it is")
    if manifest.options.lengths_column is not None:
        raise PackerError(f"{folder} was packed from lengths alone, so that there are no tokens to write")
    if manifest.generations:
        raise PackerError(
            f"{folder} has {len(manifest.generations)} generations, and only an index of one can be materialized: pack "
            "its first source without --index-only, and append the others"
        )
    sources = listed_sources(folder, manifest, expanded(source))
    return pack(
        sources if manifest.source.mixture else sources[0],
        output,
        options=replace(manifest.options, index_only=False),
        workers=workers,
        sync=sync,
        overwrite=overwrite,
        engine_options=engine_options,
        progress=progress,
        index=Index(folder=folder, manifest=manifest),
    )
