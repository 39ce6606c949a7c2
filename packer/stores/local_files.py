"""Local files: locks between processes, temporary files, and temporary memory for parts of objects.

Each process has a folder for temporary files in TMPDIR, which is removed when the process ends. If a process was
killed, a later process removes its folder. Locks use flock, so the system releases them when a process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from packer.errors import NoLocksError, PackerError
from packer.stores.remote_path import AnyPath

_PREFIX = "packer-tmp-"  # prefix of temporary folders
_LOCK = ".packer-lock"  # file in a temporary folder, locked while its process lives; a folder without it is kept


class FileLock:
    """A lock that this process holds until it is released or garbage collected."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()

    def change(self, *, shared: bool) -> bool:
        """Make the lock shared or exclusive. Returns False if another process prevents that."""
        return _locked(self._descriptor, shared=shared)

    def is_at(self, path: Path) -> bool:
        """Whether the locked file still has this path. If not, another process may lock a newer file."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def write(self, content: bytes) -> None:
        """Replace the content of the locked file."""
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))

    def read(self) -> bytes:
        """Return the content of the locked file."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def release(self) -> None:
        """Release the lock. A forked process only closes the file that it inherited."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if self._pid == os.getpid():  # explicitly, because forked processes may still have the file open
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        with contextlib.suppress(OSError, TypeError, AttributeError):  # at exit, parts of the interpreter may be gone
            self.release()


def try_lock(path: Path, *, shared: bool = False, create: bool = True) -> FileLock | None:
    """Lock a file without following links. Returns None if another process or thread has a lock that excludes this one.

    Raises a FileNotFoundError if the file is missing and `create` is false, and a NoLocksError if its file system does
    not support locks.
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
            return None
        # Another process removed the file before it was locked: try again.


def _locked(descriptor: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def temporary_file(name: str) -> Iterator[Path]:
    """Yield the path of a file to write, which is removed at the end. Raises a PackerError if the disk is full."""
    path = temporary_folder() / f"{name}.{uuid.uuid4().hex}"
    try:
        with told_if_full(path.parent):
            yield path
    finally:
        with contextlib.suppress(OSError):  # report the first error
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """Yield a folder for decoded sources, which is removed at the end. Raises a PackerError if the disk is full."""
    parent = temporary_folder()
    with told_if_full(parent), tempfile.TemporaryDirectory(prefix="decoded-", dir=parent) as folder:
        yield Path(folder)


def temporary_memory(size: int) -> bytearray | mmap.mmap:
    """Return `size` writable bytes, all 0, which the system may swap out to a temporary file.

    The file has no name and disappears with the memory. Raises a PackerError if the disk is full.
    """
    if not size:
        return bytearray()
    folder = temporary_folder()
    with told_if_full(folder), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a disk that becomes full under mapped memory would end the process
        return mmap.mmap(file.fileno(), size)


@contextlib.contextmanager
def told_if_full(folder: Path) -> Iterator[None]:
    """Raise a PackerError with the remedy if the disk of temporary files is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PackerError(
            f"{folder.parent}: {error.strerror}: temporary files are written there; free some "
            "space, or name another folder with TMPDIR, and repeat the same command"
        ) from error


@contextlib.contextmanager
def local_copy(path: AnyPath) -> Iterator[Path]:
    """Yield the path of a local file, or of a temporary copy of an object.

    Raises an OSError if the object cannot be read, and a PackerError if the disk is full.
    """
    if isinstance(path, Path):
        yield path
        return
    with temporary_file(path.name) as copy:
        path.download(copy)
        yield copy


def temporary_folder() -> Path:
    """Return the temporary folder of this process."""
    return _folder(os.getpid(), tempfile.gettempdir())[0]


@lru_cache(maxsize=1)
def _folder(pid: int, parent: str) -> tuple[Path, FileLock | None]:
    _remove_left(Path(parent))
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    lock = try_lock(hidden / _LOCK)
    folder = hidden.rename(hidden.with_name(hidden.name.removeprefix(".")))  # locked before other processes can see it
    atexit.register(_remove, folder, pid)
    return folder, lock


def _remove(folder: Path, pid: int) -> None:
    """Remove the folder of process `pid`, unless the current process is a forked child of it."""
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(parent: Path) -> None:
    """Remove the folders of processes that have ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's folder, or removed by another process
            if folder.lstat().st_uid != os.getuid():
                continue
            if (lock := try_lock(folder / _LOCK, create=False)) is not None:
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)


def delete(path: Path) -> None:
    """Remove a local file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """Sync the content of a local file, or of a folder, so that renames in the folder survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
