"""Check that a complete output is intact, and whether its source files were changed after it was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from packer.errors import PackerError
from packer.shards.files import hash_file
from packer.stores import AnyPath, RemotePath
from packer.stores.folder_sizes import folder_sizes
from packer.stores.remote_path import ObjectState

_CLOCKS_DIFFER_BY = 3600 * 10**9  # ns; stores refuse requests from clocks that differ by 15 minutes
_REMEDY = "restore it, or write the whole output again with --overwrite"


class WrittenFile(Protocol):
    """Entry of a file in a record."""

    @property
    def file(self) -> str:
        """File name, in the folder of the record."""

    @property
    def bytes(self) -> int:
        """Size of the file."""

    @property
    def xxh3_128(self) -> str:
        """Hash of the file, hexadecimal."""


def check_files(record: AnyPath, shards: Iterable[WrittenFile], small_files: Mapping[str, str]) -> None:
    """Check that every file listed in a record exists and is unchanged.

    Shards are compared by size, and in a local folder also by hash if they were touched after the record; small files
    by hash.

    Args:
        record: manifest.json or tokenized.json, which was written last.
        shards: entries of the shards in the record.
        small_files: xxh3-128 of the other files, by name.

    Raises:
        PackerError: a file is missing or differs.
    """
    folder = record.parent
    sizes = folder_sizes(folder) if isinstance(folder, RemotePath) else None
    for shard in shards:
        path = folder / shard.file
        local_size = path.stat().st_size if sizes is None and path.is_file() else None
        size = local_size if sizes is None else sizes.get(shard.file)
        if size is None:
            raise PackerError(f"{path} is missing, {record.name} lists it: {_REMEDY}")
        if size != shard.bytes:
            raise PackerError(f"{path} has {size:,} bytes, {record.name} says {shard.bytes:,}: {_REMEDY}")
        if isinstance(path, Path) and changed_since(record, [path]) and hash_file(path) != shard.xxh3_128:
            raise PackerError(f"{path} does not match its hash in {record.name}: {_REMEDY}")
    for name, digest in small_files.items():
        path = folder / name
        if not path.is_file() or hash_file(path) != digest:
            raise PackerError(f"{path} is {'damaged' if path.is_file() else 'missing'}: {_REMEDY}")


def changed_since(record: AnyPath, paths: Iterable[AnyPath], *, in_content: bool = False) -> AnyPath | None:
    """Return the first file that was written to, renamed or copied after the record, or None.

    The clock of a store may differ from that of this machine, so there it has to be an hour before the record.

    Args:
        record: file that was written last.
        paths: files that existed before it.
        in_content: compare only the time of the last write, which renaming keeps and copying may keep.
    """
    written = record.stat().st_mtime_ns
    if isinstance(record, RemotePath):
        written -= _CLOCKS_DIFFER_BY
    for path in paths:
        stat = path.stat()
        renamed = 0 if in_content or isinstance(stat, ObjectState) else stat.st_ctime_ns  # objects are not renamed
        if max(stat.st_mtime_ns, renamed) >= written:
            return path
    return None
