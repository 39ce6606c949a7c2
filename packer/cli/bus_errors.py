"""One line where the system ends the process because a mapped file has become shorter than it was (SIGBUS).

No exception is raised there: the page that is read does not exist any more. Whoever uses packer as a library has to
live with the signal; the command explains it, as far as the files in memory tell, and exits with 1.
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
    """Print one line and exit with 1 where a bus error would end the process without a word."""
    if threading.current_thread() is not threading.main_thread() or not _MAPS.exists():
        yield
        return
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_explain_and_exit)
    # subtle: Python's own handlers run later, in the main thread, and the access that failed would be tried again for
    # ever. This one is called on the spot: allowed, because the signal comes from that access, which holds no lock.
    before = libc.signal(signal.SIGBUS, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(signal.SIGBUS, before)


def _explain_and_exit(_: int) -> None:
    names = ", ".join(shrunken_files()) or "a file that is mapped into memory"
    line = f"packer: {names}: cannot be read: truncated while it was read, or its disk failed; restore it and repeat\n"
    os.write(2, line.encode(errors="backslashreplace"))
    os._exit(1)


def shrunken_files() -> list[str]:
    """The files of which more is mapped into this process than there is."""
    found = []
    for line in _MAPS.read_text(errors="surrogateescape").splitlines():
        addresses, access, offset, _, _, *path = line.split(maxsplit=5)
        if not path or not access.startswith("r--") or int(offset, 16):  # data is mapped whole, libraries in parts
            continue
        first, last = (int(address, 16) for address in addresses.split("-"))
        try:
            size = os.stat(path[0]).st_size  # noqa: PTH116 (a path is not made of thousands of names)
        except OSError:  # removed: what is mapped of it can still be read
            continue
        if last - first - size >= mmap.PAGESIZE:
            found.append(path[0])
    return sorted(set(found))
