"""The lock of a work folder, which one process holds, or several together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from packer.output.unfinished_output import LOCK
from packer.shards.file_names import WORK
from packer.stores.file_locks import FileLock, try_lock

_PREPARED_WITHIN = 10.0  # seconds; what another process that shares the folder needs to prepare it


def lock_work(work: Path, prepare: Callable[[], None], *, shared: bool) -> FileLock | None:
    """Lock a work folder for this process, or with others that share it; return None if another process has it.

    `prepare` is called while no other process has the folder, so only by the first one of those that share it.
    These are waited for while one prepares the folder.
    """
    deadline = time.monotonic() + _PREPARED_WITHIN
    while (lock := _locked(work, prepare, shared=shared)) is None and shared and time.monotonic() < deadline:
        time.sleep(0.05)
    return lock


def _locked(work: Path, prepare: Callable[[], None], *, shared: bool) -> FileLock | None:
    path = work / LOCK
    with contextlib.ExitStack() as stack:
        try:
            work.mkdir(parents=True, exist_ok=True)
            lock = alone = try_lock(path)
            if alone is None and shared:
                lock = try_lock(path, shared=True)
        except FileNotFoundError:  # removed by the process that held it until now
            return None
        if lock is None:
            return None
        stack.enter_context(lock)
        if not lock.is_at(path):
            return None
        if alone is not None:
            prepare()
        if shared and not lock.change(shared=True):
            return None
        stack.pop_all()
    return lock


def in_use(folder: Path) -> bool:
    """Whether a process holds the lock of the work folder in a folder; not where the file system has no locks."""
    try:
        lock = try_lock(folder / WORK / LOCK, create=False)
    except OSError:
        return False
    if lock is None:
        return True
    lock.release()
    return False
