"""An error message for SIGBUS, the signal that ends a process when a memory-mapped file became shorter.

Python raises no exception, because the page to be read no longer exists. The command line names the file, if it can be
found among the mapped ones, and exits with 1. In a program that uses packer as a library, the signal is not handled.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAPS = Path("/proc/self/maps")


@contextmanager
def explained_bus_errors() -> Iterator[None]:
    """Print one line and exit with 1 on a bus error, which would otherwise end the process silently."""
    if threading.current_thread() is not threading.main_thread() or not _MAPS.exists():
        yield
        return
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_explain_and_exit)
    # subtle: a handler of the signal module would run later, in the main thread, and the access that failed would be
    # repeated forever. This handler runs immediately, which is safe: the access that raised the signal holds no lock.
    before = libc.signal(signal.SIGBUS, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(signal.SIGBUS, before)


def _explain_and_exit(_: int) -> None:
    names = ", ".join(shrunken_files()) or "a memory-mapped file"
    line = f"packer: {names}: cannot be read: truncated while it was read, or its disk failed; restore it and repeat\n"
    os.write(2, line.encode(errors="backslashreplace"))
    os._exit(1)


def shrunken_files() -> list[str]:
    """Files that are shorter than the part of them mapped into this process."""
    found = []
    for line in _MAPS.read_text(errors="surrogateescape").splitlines():
        addresses, access, offset, _, _, *path = line.split(maxsplit=5)
        if not path or not access.startswith("r--") or int(offset, 16):  # a library: data is mapped as a whole
            continue
        first, last = (int(address, 16) for address in addresses.split("-"))
        try:
            size = os.stat(path[0]).st_size  # noqa: PTH116 (a path is not made of thousands of names)
        except OSError:  # removed: its mapped pages can still be read
            continue
        if last - first - size >= mmap.PAGESIZE:
            found.append(path[0])
    return sorted(set(found))
