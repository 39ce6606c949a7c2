"""Refuse what is no ordinary file before it is opened: a pipe would wait for ever, a device never ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from packer.errors import PackerError
from packer.sources.documents import reading

_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def require_regular(path: Path, name: str) -> None:
    """Raise unless this is a file that can be read more than once; links are followed.

    Args:
        path: where it is.
        name: what messages call it.

    Raises:
        PackerError: it is a pipe, a device, a socket or a folder, or not there; or its path is not UTF-8, which
            neither Arrow nor a manifest can hold.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise PackerError(f"{os.fsencode(path)!r}: the name is not UTF-8; rename it") from None
    with reading(name):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise PackerError(
            f"{name}: {_SPECIAL.get(stat.S_IFMT(mode), 'no ordinary file')}, where a file is expected that can be read "
            "more than once; write its content to a file"
        )
