"""Providers of shards for the cache of a node: downloads, and an index whose source is in object storage.

Shards of an index are made with their tokens, and have the bytes of the copied dataset's shards. No manifest lists
their sizes and hashes, so both are appended to the file; readers of Arrow streams stop before them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.errors import PackerError
from packer.loader.open_shards import OpenShard
from packer.manifest_fields import ShardEntry
from packer.shards.manifest import Manifest, ShardTable, key_of
from packer.stores import AnyPath, RemotePath
from packer.stores.mirror import map_whole

if TYPE_CHECKING:
    from packer.loader.index_tokens import IndexTokens

_RESTORE = "restore it, or pack again to another folder"
_DIGEST_BYTES = 16
_END_BYTES = 8 + _DIGEST_BYTES
_HEADER = 1 << 8  # bytes at most of a column in the header of the stream or of a record batch, padding included


@dataclass(frozen=True, slots=True)
class DownloadedShards:
    """Shards of a dataset in object storage."""

    folder: RemotePath

    def sizes(self, shards: ShardTable) -> NDArray[np.int64]:
        """Return the sizes in the manifest."""
        return shards.column("bytes")

    def write(self, entry: ShardEntry, to: Path) -> None:
        """Download a shard, and once more if it does not match the manifest."""
        source = self.folder / entry.file
        for _ in range(2):
            try:
                source.download(to)
            except OSError as error:
                if error.errno is not None and error.filename != str(source):
                    raise  # of the local file
                reason = f"{source}: {error.strerror}" if error.strerror else str(error)
                if isinstance(error, FileNotFoundError):
                    reason = f"{source} is missing, but listed in the manifest: {_RESTORE}"
                raise PackerError(reason) from error
            fault = _fault(to, entry)
            if fault is None:
                return
        raise PackerError(f"{source} {fault}, also when fetched again: it was changed after packing; {_RESTORE}")

    def found(self, path: Path, entry: ShardEntry, *, intact: bool) -> ShardEntry | None:
        """Return the entry if the file has its size, and with `intact` its hash."""
        is_found = _fault(path, entry) is None if intact else path.stat().st_size == entry.bytes
        return entry if is_found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsWithTokens:
    """Shards of an index, made from its source."""

    folder: AnyPath  # of the index
    manifest: Manifest
    tokens: IndexTokens

    @property
    def key(self) -> str:
        """Name of the folder in the cache: a hash of the rows and the versions of the source's files."""
        states: list[tuple[object, ...]] = []
        for file in self.tokens.documents.source.files:
            if file.path is None:
                raise PackerError(
                    f"{file.name} is in memory, and another source in object storage: save it with "
                    "save_to_disk, and give its path"
                )
            for path in file.paths:
                if isinstance(path, RemotePath):
                    state = path.stat()
                    states.append((str(path), state.st_size, state.etag, state.st_mtime_ns, state.version))
        states += [(str(path), *state) for path, (_, state) in self.tokens.watch.states.items()]
        return blake2b(json.dumps([key_of(self.manifest), states]).encode(), digest_size=16).hexdigest()

    def sizes(self, shards: ShardTable) -> NDArray[np.int64]:
        """Return upper bounds of the sizes: shards of the index, tokens, and headers."""
        rows, row_format = shards.column("rows"), self.tokens.row_format
        _, most = next(row_format.batches(int(rows.max())))  # rows of a record batch
        columns = len(row_format.token_columns) + len(row_format.kept_tokens)
        headers = (1 - (-rows // most)) * columns * _HEADER
        sizes: NDArray[np.int64] = shards.column("bytes") + rows * row_format.row_bytes + headers + _END_BYTES
        return sizes

    def write(self, entry: ShardEntry, to: Path) -> None:
        """Make a shard, with as few reads of the source as possible."""
        from packer.shards.files import HashingFile  # imports xxhash, which local datasets do not need

        index = self._index_shard(entry)
        segments = [index.view(number).segments for number in range(index.batches)]
        with closing(HashingFile(to)) as file:
            with pa.ipc.new_stream(file, self.tokens.row_format.schema) as stream:
                for number, located in enumerate(self.tokens.read(segments)):
                    batch = index.batch(number)
                    columns = self.tokens.columns(segments[number], batch.num_rows, located)
                    stream.write_batch(self._with_tokens(batch, columns))
            file.write(file.bytes.to_bytes(8, "little") + bytes.fromhex(file.hexdigest()))
        self.tokens.watch.check()

    def found(self, path: Path, entry: ShardEntry, *, intact: bool) -> ShardEntry | None:
        """Return the entry with the size of the file; None if the appended size, or with `intact` the hash, differs."""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            end = os.pread(file.fileno(), _END_BYTES, size - _END_BYTES) if size > _END_BYTES else b""
        is_found = int.from_bytes(end[:-_DIGEST_BYTES], "little") == size - _END_BYTES
        if is_found and intact:
            import xxhash

            is_found = end[-_DIGEST_BYTES:] == xxhash.xxh3_128_digest(memoryview(map_whole(path))[:-_END_BYTES])
        return replace(entry, bytes=size) if is_found else None

    def _index_shard(self, entry: ShardEntry) -> OpenShard:
        """Map a shard of the index; one in object storage is downloaded, since it is small."""
        if not isinstance(self.folder, RemotePath):
            return OpenShard(self.folder, entry, self.manifest)
        with tempfile.TemporaryDirectory(prefix="packer-") as folder:
            DownloadedShards(self.folder).write(entry, Path(folder, entry.file))
            return OpenShard(Path(folder), entry, self.manifest)

    def _with_tokens(self, batch: pa.RecordBatch, columns: Mapping[str, NDArray[Any]]) -> pa.RecordBatch:
        """Return a record batch of the copied dataset, given that of the index and the columns that it lacks."""
        schema = self.tokens.row_format.schema
        arrays = [as_arrow(columns[name]) if name in columns else batch[name] for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


ShardProvider: TypeAlias = DownloadedShards | ShardsWithTokens
"""Writes the shards of a dataset to a cache, and finds complete ones there. Can be pickled.

Raises PackerError if the source cannot be read or does not match the manifest, and OSError if a file of the cache is
missing or cannot be written.
"""


def _fault(path: Path, entry: ShardEntry) -> str | None:
    """Return how a file differs from its entry in the manifest, or None."""
    from packer.shards.files import hash_file  # imports xxhash, which local datasets do not need

    size = path.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes, the manifest says {entry.bytes:,}"
    return None if hash_file(path) == entry.xxh3_128 else "does not match its hash in the manifest"
