"""Map whole files, local or in object storage."""

from __future__ import annotations

import pyarrow as pa

from packer.stores.mirror import fetch, mirror
from packer.stores.remote_path import AnyPath, RemotePath


def map_whole(path: AnyPath) -> pa.Buffer:
    """Map a file into memory; an object is read as a whole, and leaves memory with the buffer.

    Raises:
        OSError: the file or the store cannot be read.
    """
    if isinstance(path, RemotePath):
        found = path.pinned()
        buffer = pa.py_buffer(mirror(found, found.stat().st_size))
        fetch([buffer.address], [buffer.size])
        return buffer
    with pa.memory_map(str(path)) as file:  # closing frees the file descriptor; the buffer keeps the mapping
        return file.read_buffer()
