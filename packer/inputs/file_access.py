"""Open files for reading, be they local or in object storage, and decompress them.

Pipes, devices and sockets are refused before they are opened: reading a pipe may block, a device may never end.
"""

from __future__ import annotations

import os
import stat

import pyarrow as pa

from packer.errors import PackerError
from packer.inputs.document_errors import reading
from packer.stores import AnyPath, RemotePath

CODECS = {".gz": "gzip", ".zst": "zstd"}

_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def open_stream(path: AnyPath) -> pa.NativeFile:
    """Open a file for reading."""
    return pa.PythonFile(path.open("rb"), mode="r") if isinstance(path, RemotePath) else pa.OSFile(str(path))


def decompressed(path: AnyPath, file: pa.NativeFile) -> pa.NativeFile:
    """Return the content of an open file, decompressed if the ending of its path says so."""
    codec = CODECS.get(path.suffix)
    return pa.CompressedInputStream(file, codec) if codec else file


def require_regular(path: AnyPath, name: str) -> None:
    """Raise a PackerError unless this is a regular file, which can be read more than once; links are followed.

    Its path must be UTF-8, since neither Arrow nor a manifest can hold another.
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
