"""Map a packed dataset's shards; numpy and pyarrow alone."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from packer.errors import PackerError
from packer.shards.columns import SEGMENT_COLUMNS
from packer.shards.manifest import FORMAT_VERSION, MANIFEST, Manifest, ShardEntry


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a packed dataset.

    Raises:
        PackerError: there is none, it is damaged, or of a format version this package does not know.
    """
    path = folder / MANIFEST
    if not path.is_file():
        if not folder.exists():
            raise PackerError(f"{folder}: no such file or folder")
        if (folder / ".packer").is_dir():
            raise PackerError(f"{folder} is an unfinished pack: repeat the command that began it, to finish it")
        raise PackerError(f"{folder} is not a packed dataset: it has no {MANIFEST}; `packer pack` makes one")
    try:
        content = json.loads(path.read_bytes())
        version = content["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise PackerError(f"{path} is damaged ({error}): pack again") from error
    if version != FORMAT_VERSION:
        raise PackerError(
            f"{path} has format version {version}, this package reads {FORMAT_VERSION}: upgrade packer, or pack again"
        )
    try:
        return Manifest.from_dict(content)
    except (KeyError, TypeError) as error:
        raise PackerError(f"{path} is damaged ({type(error).__name__}: {error}): pack again") from error


def open_shard(folder: Path, entry: ShardEntry, max_len: int) -> pa.Table:
    """Map a shard and check its structure against the manifest; no token is read.

    Raises:
        PackerError: the file is missing, or its size, rows or columns are not what the manifest says.
    """
    path = folder / entry.file
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            raise PackerError(f"{path} has {size:,} bytes, the manifest says {entry.bytes:,}: changed after packing")
        with pa.memory_map(str(path)) as mapped:
            table = pa.ipc.open_stream(mapped).read_all()
    except FileNotFoundError as error:
        raise PackerError(f"{path} is missing, the manifest names it: restore it or pack again") from error
    except (OSError, pa.ArrowException) as error:
        raise PackerError(f"{path} cannot be read as an Arrow stream ({error}): changed after packing") from error
    if table.num_rows != entry.rows:
        raise PackerError(f"{path} has {table.num_rows:,} rows, the manifest says {entry.rows:,}")
    missing = [name for name in ("input_ids", *SEGMENT_COLUMNS) if name not in table.column_names]
    if missing:
        raise PackerError(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(table.column_names)}")
    if table.schema.field("input_ids").type != pa.list_(pa.int32(), max_len):
        found = table.schema.field("input_ids").type
        raise PackerError(f"{path}: input_ids is {found}, the manifest says {max_len} int32 a row")
    return table
