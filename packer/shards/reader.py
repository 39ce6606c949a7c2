"""Reading packed datasets: the manifest, shards mapped into memory, and the list of rejected records."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from packer.arrow import is_compressed
from packer.errors import PackerError, StoreError, first_line, shortage
from packer.json_records import RejectedRecord, ShardEntry
from packer.shards.files import MANIFEST, WORK, all_shard_names
from packer.shards.manifest import FORMAT_VERSION, Manifest, is_sealed
from packer.shards.row_checks import rows_fault
from packer.stores import AnyPath, RemotePath
from packer.stores.hub import is_cached_file
from packer.stores.mirror import map_whole
from packer.stores.store import store_at

_RESTORE = "restore it, or pack again to another folder"
_REMEDY = f"changed after packing; {_RESTORE}"

_SCHEMA_BYTES = 1 << 20  # more than the size of the schema at the beginning of a shard


class OlderVersionError(PackerError):
    """A packed dataset has an older format version, which this package does not read."""


def read_manifest(folder: AnyPath, *, intact: bool = False) -> Manifest:
    """Read the manifest of a packed dataset. With `intact`, also check its checksum.

    Use `intact` in commands that copy content of the manifest to other files. Raises a PackerError if the
    manifest is missing, damaged or of an unknown format version (an OlderVersionError if it is older), or if a file of
    the dataset is not a regular file.
    """
    path = folder / MANIFEST
    if not _is_regular_file(path):
        if not folder.exists():
            raise PackerError(f"{folder}: no such file or folder; check the path")
        if (folder / WORK).is_dir():
            raise PackerError(f"{folder} is an unfinished pack: repeat the command that began it, to finish it")
        raise PackerError(f"{folder} is not a packed dataset: it has no {MANIFEST}; `packer pack` makes one")
    try:
        text = path.read_bytes()
        content = json.loads(text)
        version = content["format_version"]
    except OSError as error:
        raise PackerError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackerError(f"{path} is damaged, or was not written by packer ({_reason(error)}): {_RESTORE}") from error
    if type(version) is not int or version != FORMAT_VERSION:
        is_older = type(version) is int and version < FORMAT_VERSION
        raise (OlderVersionError if is_older else PackerError)(
            f"{path} has format version {str(version)[:40]}, this package reads {FORMAT_VERSION}: "
            f"{'' if is_older else 'upgrade packer, or '}pack again to another folder"
        )
    try:
        manifest = Manifest.from_dict(content)
    except (KeyError, TypeError) as error:
        raise PackerError(f"{path} is damaged ({_reason(error)}): {_RESTORE}") from error
    if isinstance(folder, Path):
        _refuse_irregular(folder, manifest)
    if intact and not is_sealed(text, content):
        raise PackerError(f"{path} does not match its own checksum: {_REMEDY}")
    return manifest


@contextmanager
def _arrow_errors(path: AnyPath) -> Iterator[None]:
    """Convert errors of an Arrow stream to a PackerError. Passes on a StoreError, because the data is not at fault."""
    try:
        yield
    except StoreError:
        raise
    except MemoryError as error:  # too little memory, or a damaged length asks for too much
        raise PackerError(f"{path}: {shortage(error)}, unless the file is damaged") from error
    except TypeError as error:
        raise PackerError(f"{path} is damaged: {error}; {_RESTORE}") from error
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: a name that is not UTF-8
        if (short := shortage(error)) is not None:
            raise PackerError(f"{path}: {short}") from error
        reason = first_line(error)
        raise PackerError(f"{path} cannot be read as an Arrow stream ({reason}): {_REMEDY}") from error


def _refuse_irregular(folder: Path, manifest: Manifest) -> None:
    """Raise a PackerError if a listed file exists and is not a regular file.

    The folder is listed once, instead of examining each of 100,000 files.
    """
    try:
        with os.scandir(folder) as entries:
            irregular = {entry.name for entry in entries if not entry.is_file(follow_symlinks=False)}
    except OSError as error:
        raise PackerError(f"{folder} cannot be read: {error.strerror or error}") from error
    if irregular:
        for name in irregular.intersection([*all_shard_names(len(manifest.shards)), *manifest.files]):
            _is_regular_file(folder / name)


def _is_regular_file(path: AnyPath) -> bool:
    """Whether a regular file exists. Raises a PackerError for anything else, because a link could lead anywhere."""
    if isinstance(path, RemotePath):
        return path.is_file()
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise PackerError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISLNK(mode) and not is_cached_file(path):
        raise PackerError(
            f"{path} is a symbolic link, and packed datasets are read from regular files only: "
            "copy the folder with its links resolved (cp -rL), or download it with snapshot_download(local_dir=...)"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise PackerError(f"{path} is not a regular file: {_REMEDY}")
    return True


def check_sizes(folder: AnyPath, manifest: Manifest) -> None:
    """Do what `check_size` does for all shards, but list their folder only once."""
    try:
        sizes = store_at(folder).sizes()
    except StoreError:
        raise
    except OSError as error:
        raise PackerError(f"{folder} cannot be read: {error.strerror or error}") from error
    expected = manifest.shards.column("bytes").tolist()
    for number, (name, size) in enumerate(zip(all_shard_names(len(manifest.shards)), expected, strict=True)):
        if sizes.get(name) != size:
            check_size(folder, manifest.shards[number])


def check_size(folder: AnyPath, entry: ShardEntry) -> AnyPath:
    """Check that a shard has the size stated in the manifest. Returns its path.

    Raises a PackerError if the shard is missing, cannot be read or has another size. Raises a StoreError if the store
    does not answer; the data is not at fault then.
    """
    path = folder / entry.file
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise PackerError(f"{path} is missing, but listed in the manifest: {_REMEDY}") from error
    except StoreError:
        raise
    except OSError as error:
        raise PackerError(f"{path} cannot be read: {error.strerror or error}") from error
    if size != entry.bytes:
        raise PackerError(f"{path} has {size:,} bytes, the manifest says {entry.bytes:,}: {_REMEDY}")
    return path


def open_shard(folder: AnyPath, entry: ShardEntry, manifest: Manifest, copy: Path | None = None) -> pa.Table:
    """Map a shard, or its local copy `copy`, and compare rows and columns with the manifest. Reads no tokens.

    Raises a PackerError if the file is missing, or its size, rows or columns contradict the manifest.
    """
    path = check_size(folder, entry) if copy is None else folder / entry.file
    with _arrow_errors(path):
        content = map_whole(copy or path)
        if is_compressed(content):  # decompressing a few bytes could take all memory
            raise PackerError(f"{path} is compressed, and packed datasets are not: {_REMEDY}")
        table = pa.ipc.open_stream(content).read_all()
        names = table.column_names
        table.validate()
    if table.num_rows != entry.rows:
        raise PackerError(f"{path} has {table.num_rows:,} rows, the manifest says {entry.rows:,}: {_REMEDY}")
    expected, options = manifest.row_format.schema, manifest.options
    wanted = [*expected.names, *options.kept, *options.stored_keep_tokens]
    if sorted(names) != sorted(wanted):
        raise PackerError(
            f"{path} has the columns {', '.join(names)}, and the manifest names {', '.join(wanted)}: {_REMEDY}"
        )
    for column in expected:
        found = table.schema.field(column.name).type
        if found != column.type:
            raise PackerError(f"{path}: {column.name} is {found}, it should be {column.type}: {_REMEDY}")
    return table


def read_types(folder: AnyPath, entry: ShardEntry) -> dict[str, str]:
    """Read the names and types of a shard's columns from the beginning of the file."""
    path = folder / entry.file
    with _arrow_errors(path), path.open("rb") as file:
        return types_of(pa.ipc.open_stream(file.read(_SCHEMA_BYTES)).schema)


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return the types of columns as text, by name."""
    return {field.name: str(field.type) for field in schema}


def checked_batches(
    folder: AnyPath, entry: ShardEntry, manifest: Manifest, *, compares_hash: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a shard, for commands that copy its content.

    Raises a PackerError for any damage. The structure of each batch is checked, and with `compares_hash` the hash of
    the shard.
    """
    from packer.shards.files import hash_file  # imported here, because datasets are loaded without xxhash
    from packer.stores.local_files import local_copy

    path = check_size(folder, entry)
    with local_copy(path) as copy:
        table = open_shard(folder, entry, manifest, copy)
        if compares_hash and hash_file(copy) != entry.xxh3_128:
            raise PackerError(f"{path} does not match its hash in the manifest: {_REMEDY}")
        for batch in table.to_batches():
            check_batch(batch, path, manifest)
            yield batch


def read_rejected(path: AnyPath) -> Iterator[RejectedRecord]:
    """Yield the rejected records that a file lists. Raises a PackerError for a damaged line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = RejectedRecord.from_dict(json.loads(line))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise PackerError(f"{path} line {number} is damaged ({error}): restore it") from None
            yield record


def check_batch(batch: pa.RecordBatch, path: AnyPath, manifest: Manifest) -> None:
    """Check the structure of a record batch of `open_shard` before its values are read. Reads no token.

    Raises a PackerError for damaged buffers, segments that do not form rows of max_len, and wrong kept columns.
    """
    fault = rows_fault(batch, manifest)
    if fault is not None:
        raise PackerError(f"{path}: {fault}: {_REMEDY}")


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
