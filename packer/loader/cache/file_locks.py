"""Locks of files that processes of a machine share: flock, which the system releases when a process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from packer.errors import PackerError


class FileLock:
    """A lock that this process holds, until it is released or garbage collected."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()

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


def try_lock(path: Path, *, shared: bool, create: bool) -> FileLock | None:
    """Lock a file, or return None if a lock of another process or thread excludes it.

    Args:
        path: file to lock.
        shared: whether others may have shared locks at the same time.
        create: whether to create the file if it does not exist.

    Raises:
        FileNotFoundError: the file does not exist, and is not to be created.
        PackerError: the file system has no locks.
    """
    flags = os.O_CREAT | os.O_RDWR if create else os.O_RDONLY
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise PackerError(
                f"{path} cannot be locked ({error.strerror}): choose a folder on a local disk as cache_dir"
            ) from error
        if os.fstat(descriptor).st_nlink:
            return FileLock(descriptor)
        os.close(descriptor)  # another process removed the file before it was locked
