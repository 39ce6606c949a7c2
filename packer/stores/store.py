"""Stores: files of a folder on a disk or in object storage. Each file appears completely or not at all.

Outputs, checkpoints and heartbeats are written through a store, so other code need not know where they are. obstore's
own LocalStore does not sync files or folders, so a crash of the system would lose them.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar

from packer.errors import PackerError
from packer.stores.buckets import in_parallel
from packer.stores.local_files import delete, sync_path, temporary_file
from packer.stores.remote_path import AnyPath, RemotePath

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAPPED = 64 << 10  # minimum bytes of a local file that is mapped instead of read
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


class ClaimLostError(PackerError):
    """Raised if an output no longer belongs to this process; another process may be writing there."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Right of one process, or of several ranks together, to write in a folder. Can be pickled.

    The content of the lock file differs for each claim. By comparing it, a process notices that its folder was removed
    and begun again.
    """

    out: Path
    """The claimed output, for messages."""

    lock: Path
    """Lock file, inside the folder where files are written."""

    content: bytes
    """Content of the lock file while the claim is valid."""

    def check(self) -> None:
        """Raise a `ClaimLostError` if the folder is missing or another process has claimed it."""
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
    """Claim that must be valid to put files in place or remove them; None if no other process writes there."""

    is_remote: ClassVar[bool] = False
    """Whether the store is in object storage, which has no locks or renames, and needs a request per access."""

    def get(self, name: str, most: int | None = None) -> bytes | mmap.mmap:
        """Return the content of a file, or its first `most` bytes. Large local files are mapped.

        Raises a FileNotFoundError if there is no regular file of this name.
        """
        path = self.root / name
        try:
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise FileNotFoundError(errno.ENOENT, "it is not a regular file", str(path))
                if most is not None or os.fstat(file.fileno()).st_size < _MAPPED:
                    return file.read(most)
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error

    def sizes(self, folder: str = "", among: Collection[str] | None = None) -> dict[str, int]:
        """Return the sizes in bytes of the files directly inside a folder, by name.

        With `among`, returns only files with these names. Returns an empty dict for a missing folder, because another
        process may have just completed the output.
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
        """Write or replace a file. If `lasting` is false, it is not synced, so a crash of the system may damage it."""
        with self._written(name, content, lasting=lasting) as temporary:
            self._rename(temporary, self.root / name)
        if lasting:
            self._sync((self.root / name).parent)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists. Returns whether it was written.

        In object storage, a file with the same content counts as written, because it may come from a request whose
        answer was lost. Raises a PackerError if the file system has no hard links.
        """
        path = self.root / name
        with self._written(name, content, lasting=True) as temporary:
            try:
                self._named(path, lambda: path.hardlink_to(temporary))
                is_written = True
            except FileExistsError:  # over a network, the link may exist because its answer was lost
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

    def put_files(self, files: Mapping[str, Path]) -> None:
        """Put local files in place, by their names there: sync and rename them, or upload them."""
        for name, file in files.items():
            self._sync(file)
            self._rename(file, self.root / name)
        self._sync(self.root)

    @contextlib.contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Yield a local path to write to, for `put_files`. The file is removed if an exception occurs."""
        flat = name.removeprefix(f"{self.temporaries}/").replace("/", "-")
        path = self.root / self.temporaries / f"{flat}.{uuid.uuid4().hex}"  # unique across machines
        try:
            yield path
        except BaseException:
            with contextlib.suppress(OSError):  # report the first error
                path.unlink(missing_ok=True)
            raise

    def check_claim(self) -> None:
        """Raise a `ClaimLostError` if this process may no longer write here.

        Subtle: call it after the temporary file is written and right before it is renamed. If another process removes
        the folder in between, the temporary file is gone, and renaming it fails.
        """
        if self.claim is not None:
            self.claim.check()

    def delete(self, name: str) -> None:
        """Remove a file, or a local folder, if it exists."""
        self.check_claim()
        delete(self.root / name)

    def delete_all(self, folder: str, keep: Collection[str] = ()) -> None:
        """Remove a folder and everything in it, except files directly inside whose names are in `keep`."""
        self.check_claim()
        for path in (self.root / folder).iterdir() if keep else [self.root / folder]:
            if path.name not in keep:
                delete(path)

    def each(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call a function that reads or writes for each item, several at a time in object storage."""
        return [task(item) for item in items]

    @contextlib.contextmanager
    def _written(self, name: str, content: bytes, *, lasting: bool) -> Iterator[Path]:
        """Yield a temporary file with this content, for the block to rename."""
        with self.temporary(name) as temporary:
            temporary.write_bytes(content)
            if lasting:
                self._sync(temporary)
            yield temporary

    def _rename(self, temporary: Path, path: Path) -> None:
        """Rename a file. Creates its folder if it is missing, and removes a damaged file or folder of that name."""
        try:
            self._named(path, lambda: temporary.rename(path))
        except IsADirectoryError:
            delete(path)
            temporary.rename(path)

    def _named(self, path: Path, give_name: Callable[[], object]) -> None:
        """Call `give_name`. Creates the folder of `path` if it is missing, and replaces a damaged file there.

        Never creates the store's own folders again, because another process may have removed or replaced them since
        the claim was checked.
        """
        self.check_claim()
        try:
            give_name()
        except (FileNotFoundError, NotADirectoryError) as error:
            if path.parent in (self.root, self.root / self.temporaries):
                raise
            if isinstance(error, NotADirectoryError):
                delete(path.parent)
            path.parent.mkdir(exist_ok=True)  # only one level
            self._sync(path.parent.parent)
            give_name()

    def _sync(self, path: Path) -> None:
        if self.sync:
            sync_path(path)


@dataclass(frozen=True, slots=True)
class Objects:
    """A store in object storage; see `Folder` for its methods."""

    root: RemotePath
    is_remote: ClassVar[bool] = True
    sync: ClassVar[bool] = False  # uploads are durable

    def get(self, name: str, most: int | None = None) -> bytes:
        path = self.root / name
        return path.read_bytes() if most is None else bytes(path.read_range(0, most))

    def sizes(self, folder: str = "", among: Collection[str] | None = None) -> dict[str, int]:
        if among is not None and not among:  # saves requests, one per 1,000 files
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

    def put_files(self, files: Mapping[str, Path]) -> None:
        self.each(lambda name: (self.root / name).upload(files[name]), list(files))

    def temporary(self, name: str) -> contextlib.AbstractContextManager[Path]:
        return temporary_file(name)  # always removed at the end

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
