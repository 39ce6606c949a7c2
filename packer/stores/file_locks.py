"""Locks of files that processes of a machine share: flock, which the system releases when a process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class NoLocksError(OSError):
    """A file system has no locks."""


class FileLock:
    """A lock that this process holds, until it is released or garbage collected."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()

    def change(self, *, shared: bool) -> bool:
        """Share the lock with others, or take it alone; return False if another process is in the way."""
        return _locked(self._descriptor, shared=shared)

    def is_at(self, path: Path) -> bool:
        """Whether the locked file has this path still; if not, another process may lock a newer one."""
        try:
            return path.stat().st_ino == os.fstat(self._descriptor).st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock. A forked process, which inherits the open file, only closes it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if self._pid == os.getpid():  # explicitly, because forked processes may have the file open still
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        with contextlib.suppress(OSError, TypeError, AttributeError):  # the interpreter may be shutting down
            self.release()


def try_lock(path: Path, *, shared: bool = False, create: bool = True) -> FileLock | None:
    """Lock a file, links not followed, or return None if a lock of another process or thread excludes it.

    Raises a FileNotFoundError if the file is missing and not to be created, and a NoLocksError if its file system has
    no locks.
    """
    flags = os.O_CREAT | os.O_RDWR if create else os.O_RDONLY
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            is_locked = _locked(descriptor, shared=shared)
        except OSError as error:
            os.close(descriptor)
            raise NoLocksError(error.errno, error.strerror, str(path)) from error
        if is_locked and os.fstat(descriptor).st_nlink:
            return FileLock(descriptor)
        os.close(descriptor)
        if not is_locked:
            return None  # if not, another process removed the file before it was locked


def _locked(descriptor: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
