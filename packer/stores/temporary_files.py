"""Temporary files for what lies in object storage: files to be uploaded, and copies of objects.

They are in a folder of the process in TMPDIR, which is removed when the process ends. What a killed process leaves
there is removed by the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import mmap
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from packer.errors import PackerError
from packer.stores.file_locks import FileLock, try_lock
from packer.stores.remote_path import AnyPath

_PREFIX = "packer-"
_LOCK = "lock"  # held while the process lives


@contextlib.contextmanager
def temporary_file(name: str) -> Iterator[Path]:
    """Yield the path of a local file to write, which is removed at the end. A full disk is a PackerError."""
    path = temporary_folder() / f"{name}.{uuid.uuid4().hex}"
    try:
        with _told_if_full(path.parent):
            yield path
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to report
            path.unlink(missing_ok=True)


def temporary_memory(size: int) -> bytearray | mmap.mmap:
    """Return writable memory of so many bytes, zeros, that the system may write to a temporary file.

    The file has no name, and ends with the memory. A full disk is a PackerError.
    """
    if not size:
        return bytearray()
    folder = temporary_folder()
    with _told_if_full(folder), tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):  # a disk that becomes full under mapped memory would end the process
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)


@contextlib.contextmanager
def _told_if_full(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PackerError(
            f"{folder.parent}: {error.strerror}: temporary files of what lies in object storage are written "
            "there; free some space, or name another folder with TMPDIR, and repeat the same command"
        ) from error


@contextlib.contextmanager
def local_copy(path: AnyPath) -> Iterator[Path]:
    """Yield a local path with the content of a file: the file itself, or a copy of an object for the time of the block.

    Raises an OSError if the object cannot be read, and a PackerError if the disk is full.
    """
    if isinstance(path, Path):
        yield path
        return
    with temporary_file(path.name) as copy:
        path.download(copy)
        yield copy


def temporary_folder() -> Path:
    """Return the folder of this process."""
    return _folder(os.getpid(), tempfile.gettempdir())[0]


@lru_cache(maxsize=1)
def _folder(pid: int, parent: str) -> tuple[Path, FileLock | None]:
    _remove_left(Path(parent))
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    lock = try_lock(hidden / _LOCK)
    folder = hidden.rename(hidden.with_name(hidden.name.removeprefix(".")))  # only now it may be looked at by others
    atexit.register(_remove, folder, pid)
    return folder, lock


def _remove(folder: Path, pid: int) -> None:
    """Remove the folder of a process, but not in a child that it was forked into."""
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(parent: Path) -> None:
    """Remove the folders of processes that have ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or removed by another process
            if folder.lstat().st_uid != os.getuid():
                continue
            if (lock := try_lock(folder / _LOCK, create=False)) is not None:
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)
