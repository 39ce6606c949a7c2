"""Copy an object within its bucket."""

from __future__ import annotations

from packer.stores.remote_path import RemotePath
from packer.stores.requests import count, library, requested
from packer.stores.temporary_files import temporary_file

_MOST_COPIED = 5 << 30  # bytes that S3 copies in one request


def copy_object(path: RemotePath, to: RemotePath) -> None:
    """Copy an object to another path of the same bucket, where an object is overwritten; raises as `requested`.

    The store itself makes the copy, unless the object is too large for that.
    """
    obstore = library(str(path))

    if path.stat().st_size > _MOST_COPIED:
        with temporary_file(path.name) as copy:
            path.download(copy)
            to.upload(copy)
        return
    store = path.store
    count(writes=1)
    requested(str(path), lambda: obstore.copy(store, path.key, to.key))
