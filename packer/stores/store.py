"""A store: the files of a folder, on a disk or in object storage, each of which appears completely or not at all.

Outputs, checkpoints and heartbeats are written through it, so that nothing else depends on where they are. (The
LocalStore of obstore syncs neither files nor folders, so that a crash of the system would lose what it has written.)
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar

from packer.errors import PackerError
from packer.stores.buckets import in_parallel
from packer.stores.local_files import delete, sync_path, temporary_file
from packer.stores.remote_path import AnyPath, RemotePath

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAPPED = 64 << 10  # bytes of a local file that is mapped instead of read
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


class ClaimLostError(PackerError):
    """An output does not belong to this process any more; another one may be building its own there."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Right of a process, or of several ranks together, to write in a folder. Can be pickled.

    The lock of a folder holds another content for each claim, so whoever compares it finds out whether the folder was
    removed and begun again while this process was slow.
    """

    out: Path
    """Output that is claimed, for messages."""

    lock: Path
    """Lock file, inside the folder that is written to."""

    content: bytes
    """Content that it has as long as the claim lasts."""

    def check(self) -> None:
        """Raise a `ClaimLostError` unless the folder is still the one that was claimed."""
        try:
            is_held = self.lock.read_bytes() == self.content
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            is_held = False
        if not is_held:
            raise ClaimLostError(
                f"{self.out} was finished, removed or started again by another packer: repeat the command, or choose "
                "another --output"
            )


@dataclass(frozen=True, slots=True)
class Folder:
    """A store on a disk. Names are relative to the folder, such as "manifest.json" or "checkpoints/solved"."""

    root: Path
    sync: bool = False
    """Whether files and folders are fsynced."""

    temporaries: str = ""
    """Name of the folder of temporary files; it must exist."""

    claim: Claim | None = None
    """Claim under which files are put in place and removed; None if no other process can be in the way."""

    is_remote: ClassVar[bool] = False
    """Whether it is in object storage: no locks, no renames, content that is checked, and a request per look."""

    def get(self, name: str, most: int | None = None) -> bytes | mmap.mmap:
        """Return the content of a file, or its first bytes; large local content is mapped. Raises FileNotFoundError."""
        path = self.root / name
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise FileNotFoundError(errno.ENOENT, "it is not a regular file", str(path))
                if most is not None or os.fstat(file.fileno()).st_size < _MAPPED:
                    return file.read(most)
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error

    def sizes(self, folder: str = "", among: Collection[str] | None = None) -> dict[str, int]:
        """Return the bytes of the files directly in a folder by name, listed once; only those with names in `among`.

        It is empty for a missing folder, which may be that of an output that another process has completed.
        """
        if among is not None and not among:
            return {}
        names, sizes = frozenset(among) if among is not None else None, {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.root / folder) as entries:
            for entry in entries:
                if (names is None or entry.name in names) and entry.is_file():
                    with contextlib.suppress(FileNotFoundError):  # removed just now
                        sizes[entry.name] = entry.stat().st_size
        return sizes

    def put(self, name: str, content: bytes, *, lasting: bool = True) -> None:
        """Write a file, and replace one that exists. If not `lasting`, a crash of the system may damage it."""
        with self._written(name, content, lasting=lasting) as temporary:
            self._rename(temporary, self.root / name)
        if lasting:
            self._sync((self.root / name).parent)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists; return whether it was written.

        In object storage, a file of the same content counts as written: it may be the result of a request whose answer
        was lost. A file system without hard links is a PackerError.
        """
        path = self.root / name
        with self._written(name, content, lasting=True) as temporary:
            self.check_claim()
            try:
                path.hardlink_to(temporary)
                is_written = True
            except FileExistsError:  # over a network, perhaps the link whose answer was lost
                is_written = path.samefile(temporary)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise PackerError(
                    f"{path.parent}: its file system has no hard links, by which several processes agree "
                    f"({error.strerror}): use one process, or a folder on another file system"
                ) from error
            temporary.unlink()
        self._sync(path.parent)
        return is_written

    def put_file(self, name: str, file: Path) -> None:
        """Put a local file in place; it is synced and renamed, or uploaded."""
        self._sync(file)
        self._rename(file, self.root / name)
        self._sync(self.root)

    @contextlib.contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Yield a local path to write to, for `put_file`. An exception removes the file."""
        flat = name.removeprefix(f"{self.temporaries}/").replace("/", "-")
        path = self.root / self.temporaries / f"{flat}.{uuid.uuid4().hex}"  # of no process on another machine, either
        try:
            yield path
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                path.unlink(missing_ok=True)
            raise

    def check_claim(self) -> None:
        """Raise a `ClaimLostError` if this process may not write here any more.

        Subtle: it is called when the temporary file exists, right before that is renamed. If the folder is removed in
        between, the temporary file is removed with it, and renaming it fails.
        """
        if self.claim is not None:
            self.claim.check()

    def delete(self, name: str) -> None:
        """Remove a file, or a local folder, if it exists."""
        self.check_claim()
        delete(self.root / name)

    def delete_all(self, folder: str, keep: Collection[str] = ()) -> None:
        """Remove a folder with everything in it, except for files directly inside with names to keep."""
        self.check_claim()
        for path in (self.root / folder).iterdir() if keep else [self.root / folder]:
            if path.name not in keep:
                delete(path)

    def each(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call a function that reads or writes for each item, in object storage for several at the same time."""
        return [task(item) for item in items]

    @contextlib.contextmanager
    def _written(self, name: str, content: bytes, *, lasting: bool) -> Iterator[Path]:
        """Yield a temporary file with this content, which the block renames."""
        with self.temporary(name) as temporary:
            temporary.write_bytes(content)
            if lasting:
                self._sync(temporary)
            yield temporary

    def _rename(self, temporary: Path, path: Path) -> None:
        """Rename a file; make its folder if it is missing, and remove what is damaged and in the way."""
        self.check_claim()
        try:
            temporary.rename(path)
        except FileNotFoundError:
            path.parent.mkdir(exist_ok=True)  # but not that of an output that was removed meanwhile
            self._sync(path.parent.parent)
            temporary.rename(path)
        except IsADirectoryError:
            delete(path)
            temporary.rename(path)
        except NotADirectoryError:
            delete(path.parent)
            path.parent.mkdir()
            temporary.rename(path)

    def _sync(self, path: Path) -> None:
        if self.sync:
            sync_path(path)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a pipe, which packer does not make, is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


@dataclass(frozen=True, slots=True)
class Objects:
    """A store in object storage; see `Folder` for its methods."""

    root: RemotePath
    is_remote: ClassVar[bool] = True
    sync: ClassVar[bool] = False  # what is uploaded lasts

    def get(self, name: str, most: int | None = None) -> bytes:
        path = self.root / name
        return path.read_bytes() if most is None else bytes(path.read_range(0, most))

    def sizes(self, folder: str = "", among: Collection[str] | None = None) -> dict[str, int]:
        if among is not None and not among:  # without a request, of which there is one per 1,000 files
            return {}
        found = {path.name: path.state.st_size for path in (self.root / folder).iterdir() if path.state is not None}
        return found if among is None else {name: found[name] for name in among if name in found}

    def put(self, name: str, content: bytes, *, lasting: bool = True) -> None:
        (self.root / name).write_bytes(content)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        try:
            (self.root / name).write_bytes(content, if_absent=True)
        except FileExistsError:
            return False
        return True

    def put_file(self, name: str, file: Path) -> None:
        (self.root / name).upload(file)

    def temporary(self, name: str) -> contextlib.AbstractContextManager[Path]:
        return temporary_file(name)  # removed at the end, not only by an exception

    def delete(self, name: str) -> None:
        (self.root / name).unlink()

    def delete_all(self, folder: str, keep: Collection[str] = ()) -> None:
        path = self.root / folder
        path.remove_all([path / name for name in keep])

    def each(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return in_parallel(task, items)


Store: TypeAlias = Folder | Objects
"""Files in a folder. Can be pickled."""


def store_at(root: AnyPath, *, sync: bool = False) -> Store:
    """Return the store of the files in a folder; see `Folder` for the arguments."""
    return Objects(root) if isinstance(root, RemotePath) else Folder(root, sync)
