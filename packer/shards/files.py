"""Files of an output: names, hashes, and whether the files of a complete output are unchanged."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError
from packer.json_records import Count, JsonRecord, ShardEntry
from packer.stores import AnyPath, RemotePath
from packer.stores.remote_path import ObjectState
from packer.stores.store import store_at

if TYPE_CHECKING:
    from typing_extensions import Buffer

MANIFEST = "manifest.json"

EXPORT_RECORD = "_export.json"
"""Record of an export. Readers of Parquet folders ignore names that begin with an underscore."""

CARD = "README.md"
"""Dataset card of an export for the Hugging Face Hub, which the user may edit."""

WORK = ".packer"
"""Folder inside an unfinished output; removed when the output is complete."""

LISTED = re.compile(r".*\.arrow|rejected\.jsonl")
"""Names of files that the manifest must list if they are in the folder."""

HOLDOUT = "-holdout"
"""Suffix of the name of a dataset with held-out documents."""

MOST_SHARDS = 10_000_000


def holdout_of(out: AnyPath, *, is_holdout: bool = False) -> AnyPath:
    """Return the folder of a dataset's held-out documents, next to the dataset. With `is_holdout`, do the reverse."""
    if isinstance(out, Path) and out.name in ("", ".."):
        out = out.resolve()
    if out.parent == out:
        raise PackerError(f"{out} has no folder next to it for documents held out: choose an --output inside of it")
    return out.parent / (out.name.removesuffix(HOLDOUT) if is_holdout else f"{out.name}{HOLDOUT}")


def shard_name(shard: int, shards: int) -> str:
    """Return the file name of a shard, as in `datasets`: data-00000-of-00012.arrow.

    Names sort like numbers, even with more than 100,000 shards: data-099999-of-234000.arrow.
    """
    return f"data-{shard:0{max(5, len(str(shards - 1)))}d}-of-{shards:05d}.arrow"


def shard_number(name: str) -> int:
    """Return the number of a shard from its file name."""
    return int(name.split("-")[1])


def all_shard_names(shards: int) -> list[str]:
    """Return the file names of all shards in order."""
    return [shard_name(shard, shards) for shard in range(shards)]


def names_listed(content: Mapping[str, Any]) -> list[str]:
    """Return the names of all other files of a packed dataset, given the content of its manifest.

    Raises a LookupError, TypeError, ValueError or AttributeError if the content is damaged.
    """
    return [*all_shard_names(len(content["shards"]["rows"])), *content["files"]]


def refuse_foreign_work(out: AnyPath) -> None:
    """Raise a PackerError if the work folder of an output is a symbolic link, or contains one.

    Through a link, packer would delete and replace files elsewhere.
    """
    if isinstance(out, RemotePath):
        return
    folders = [out / WORK]
    _refuse_link(folders[0], folders[0].is_symlink())
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    _refuse_link(Path(entry.path), entry.is_symlink())
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
        except (FileNotFoundError, NotADirectoryError):  # missing, or another process has just removed it
            continue


def _refuse_link(path: Path, is_link: bool) -> None:
    if is_link:
        raise PackerError(f"{path} is a symbolic link, which packer does not make in its work folders: remove it")


_HASHED_TOGETHER = 16 << 20  # bytes
_WRITTEN_TOGETHER = 1 << 16  # bytes: Arrow writes headers, padding and short columns one by one


class HashingFile(io.BufferedWriter):
    """A binary file that hashes everything written to it."""

    def __init__(self, path: Path) -> None:
        import xxhash

        super().__init__(io.FileIO(path, "wb"), _WRITTEN_TOGETHER)
        self._hash = xxhash.xxh3_128()
        self.bytes = 0

    def write(self, data: Buffer) -> int:
        """Write all of `data`."""
        self._hash.update(data)
        size = super().write(data)
        self.bytes += size
        return size

    def hexdigest(self) -> str:
        """Return the hexadecimal xxh3-128 of all bytes written."""
        return self._hash.hexdigest()


def matches(path: AnyPath, digest: str) -> bool:
    """Whether a file exists and has this xxh3-128.

    An object in a store only has to exist, because it appears completely, and the store checks its content.
    """
    if isinstance(path, RemotePath):
        return path.is_file()
    return path.is_file() and hash_file(path) == digest


def hash_file(path: AnyPath) -> str:
    """Return the hexadecimal xxh3-128 of a file."""
    import xxhash  # imported here, because datasets are loaded without it

    hashed = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASHED_TOGETHER):
            hashed.update(block)
    return hashed.hexdigest()


_CLOCKS_DIFFER_BY = 3600 * 10**9  # ns; stores refuse requests from clocks that differ by 15 minutes
_REMEDY = "restore it, or write the whole output again with --overwrite"


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenFile(JsonRecord):
    """Entry of a file in the record of an output."""

    file: str
    """File name, in the folder of the record."""

    rows: Count | None = None
    """Number of rows in the file; None if it is not recorded."""

    bytes: Count
    xxh3_128: str
    """Hexadecimal hash of the file."""


def check_files(record: AnyPath, shards: Iterable[WrittenFile | ShardEntry], small_files: Mapping[str, str]) -> None:
    """Check that every file listed in a record (manifest.json or tokenized.json) exists and is unchanged.

    Shards are compared by size; in a local folder also by hash, if they were changed after the record was written.
    Small files are compared by hash. small_files: xxh3-128 by name.
    """
    folder = record.parent
    store = store_at(folder)
    sizes = store.sizes()
    for shard in shards:
        path = folder / shard.file
        size = sizes.get(shard.file)
        if size is None:
            raise PackerError(f"{path} is missing, {record.name} lists it: {_REMEDY}")
        if size != shard.bytes:
            raise PackerError(f"{path} has {size:,} bytes, {record.name} says {shard.bytes:,}: {_REMEDY}")
        if not store.is_remote and changed_since(record, [path]) and hash_file(path) != shard.xxh3_128:
            raise PackerError(f"{path} does not match its hash in {record.name}: {_REMEDY}")
    for name, digest in small_files.items():
        path = folder / name
        if not path.is_file() or hash_file(path) != digest:
            raise PackerError(f"{path} is {'damaged' if path.is_file() else 'missing'}: {_REMEDY}")


def changed_since(record: AnyPath, paths: Iterable[AnyPath], *, in_content: bool = False) -> AnyPath | None:
    """Return the first file that was written, renamed or copied after the record. Returns None if there is none.

    The record is written last. The clock of a store may differ from this machine's, so files in a store must be an hour
    older than the record. With `in_content`, only the time of the last write counts; renaming and some copies keep this
    time.
    """
    written = record.stat().st_mtime_ns
    if isinstance(record, RemotePath):
        written -= _CLOCKS_DIFFER_BY
    for path in paths:
        stat = path.stat()
        renamed = 0 if in_content or isinstance(stat, ObjectState) else stat.st_ctime_ns  # objects cannot be renamed
        if max(stat.st_mtime_ns, renamed) >= written:
            return path
    return None
