"""Open files for reading, be they local or in object storage: mapped, as a stream, or as Parquet.

Pipes, devices and sockets are refused before they are opened: reading a pipe may block, a device may never end.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.sources.mapped.ipc_headers import Headers, fetch_headers
from packer.stores import AnyPath, RemotePath
from packer.stores.mirror import fetch_later, map_whole, mirror

if TYPE_CHECKING:
    import pyarrow.parquet as pq

import os
import stat

from packer.errors import PackerError
from packer.sources.documents import reading

_PAGES = 1 << 16  # bytes read of an object for the first page of a column
_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def map_file(path: AnyPath) -> pa.Buffer:
    """Map an Arrow file into memory; of an object, only the messages' headers, see `packer.stores.mirror`."""
    if isinstance(path, RemotePath):
        found = path.pinned()
        return _with_headers(found, found.stat().etag)[0]
    return map_whole(path)


def map_parts(path: RemotePath, parts: NDArray[np.int64]) -> pa.Buffer:
    """Map an object of which these parts will be needed first; they are fetched by `packer.stores.mirror.settle`.

    Args:
        path: the object.
        parts: (parts, 2) first byte and number of bytes.
    """
    buffer = _mirrored(path, path.stat().etag)
    fetch_later(buffer.address + parts[:, 0], parts[:, 1])
    return buffer


@lru_cache(maxsize=1 << 16)  # a task that is unpickled finds what the one before it has fetched
def _mirrored(path: RemotePath, etag: str) -> pa.Buffer:
    return pa.py_buffer(mirror(path, path.stat().st_size))


@lru_cache(maxsize=1 << 16)
def _with_headers(path: RemotePath, etag: str) -> tuple[pa.Buffer, Headers]:
    buffer = _mirrored(path, etag)
    return buffer, fetch_headers(buffer)


def headers_of(path: RemotePath) -> Headers:
    """Return what the headers of the messages of an object say that is an Arrow stream or file."""
    found = path.pinned()
    return _with_headers(found, found.stat().etag)[1]


def open_stream(path: AnyPath) -> pa.NativeFile:
    """Open a file for reading."""
    return pa.PythonFile(path.open("rb"), mode="r") if isinstance(path, RemotePath) else pa.OSFile(str(path))


def open_parquet_footer(path: AnyPath) -> pq.ParquetFile:
    """Open a Parquet file to read its footer and a few pages."""
    import pyarrow.parquet as pq

    if isinstance(path, RemotePath):
        return pq.ParquetFile(path.open("rb"), buffer_size=_PAGES, pre_buffer=False)
    return pq.ParquetFile(path, memory_map=True)


def open_parquet_pages(path: AnyPath) -> pq.ParquetFile:
    """Open a Parquet file to read it page by page; the columns of an object are read ahead, a row group at a time."""
    import pyarrow.parquet as pq

    if isinstance(path, RemotePath):
        return pq.ParquetFile(path.open("rb"), pre_buffer=True)
    return pq.ParquetFile(path, memory_map=True, pre_buffer=False)


def require_regular(path: AnyPath, name: str) -> None:
    """Raise unless this is a regular file, which can be read more than once; links are followed.

    Args:
        path: the file.
        name: its name in messages.

    Raises:
        PackerError: the path leads to a pipe, a device, a socket, a folder or nothing, or is not UTF-8, which neither
            Arrow nor a manifest can hold.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise PackerError(f"{os.fsencode(str(path))!r}: the name is not UTF-8; rename it") from None
    with reading(name):
        if isinstance(path, RemotePath):
            path.stat()
            return
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise PackerError(
            f"{name}: {_SPECIAL.get(stat.S_IFMT(mode), 'a special file')}, where a file is expected that can be read "
            "more than once; write its content to a file"
        )
