"""Build a folder so that it appears complete or not at all.

OUT                       a packed dataset is built here, unless a complete output exists
.OUT.packer-new           its replacement is built here and swapped in at the end
.OUT.packer-tokenizing    a tokenized dataset is built here, and an export in .OUT.packer-export; never in OUT
    .packer/lock            lock held by the working process; moves along with the swap
    .packer/request.json    options and source files of the output; only an equal request resumes it
    .packer/*               files being written, and temporary files of each kind of output

Every file is written under a temporary name, synced and renamed. The record is written last: without it, an output is
unfinished.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packer.errors import PackerError
from packer.facts import REJECTED
from packer.output import replace_folder
from packer.output.output_kind import LOCK, Kind
from packer.shards.file_names import SHARDS, WORK

REQUEST = "request.json"
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions raised by reading damaged JSON."""

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
_NESTED = re.compile(r"\d{5}")  # folders inside a scratch folder, one per source of a mixture
SHARD = re.compile(r"data-\d{5,}-of-\d{5,}\.arrow")


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFolder:
    """An output folder that this process has claimed."""

    out: Path
    """Path of the finished output."""

    building: Path
    """Folder to write files to: `out` itself, or a hidden folder next to it."""

    kind: Kind
    """Kind of the output."""

    sync: bool
    """Whether files and folders are fsynced."""

    is_shared: bool = False
    """Whether other processes write to it, too, so files that look left over must not be removed."""

    @property
    def work(self) -> Path:
        """Folder of everything that is removed once the output is complete."""
        return self.building / WORK

    def scratch(self, name: str) -> Path:
        """Return a folder in `work`, created if missing; partly written files of an interrupted run are removed.

        If other processes write to it, too, everything stays.
        """
        folder = self.work / name
        if self.is_shared:
            folder.mkdir(exist_ok=True)
            return folder
        if not folder.is_dir():
            delete(folder)
            folder.mkdir()
        _remove_leftovers(folder)
        return folder

    @contextlib.contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Yield a temporary path to write to. The caller renames the file; an exception removes it."""
        path = self.work / f"{name}.{uuid.uuid4().hex}"  # also on another machine
        try:
            yield path
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                path.unlink(missing_ok=True)
            raise

    def is_complete(self) -> bool:
        """Whether the record is written."""
        return self.kind.is_complete(self.building)

    def write_file(self, path: Path, content: bytes, *, if_absent: bool = False) -> bool:
        """Write a small file atomically; with `if_absent`, keep one that exists. Return whether it was written."""
        is_written = True
        with self.temporary(path.name) as temporary:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                if self.sync:
                    os.fsync(file.fileno())
            if if_absent:
                try:
                    path.hardlink_to(temporary)
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
            else:
                temporary.rename(path)
        self.sync_folder(path.parent)
        return is_written

    def sync_folder(self, folder: Path) -> None:
        """Sync a folder, so that renames in it survive a crash."""
        if self.sync:
            replace_folder.sync_folder(folder)

    def put(self, temporary: Path, name: str) -> None:
        """Move a written file to its final name in the output."""
        temporary.rename(self.building / name)
        self.sync_folder(self.building)

    def finish(self, record: bytes, files: Mapping[str, bytes]) -> bool:
        """Write small files, then the record, which makes the output complete.

        Returns:
            False if another process that shares the folder has just written the record.
        """
        for name, content in files.items():
            self.write_file(self.building / name, content)
        return self.write_file(self.building / self.kind.record, record, if_absent=self.is_shared)

    def shards(self) -> list[Path]:
        """Return the paths of the shards in place."""
        return [path for path in self.building.iterdir() if SHARD.fullmatch(path.name)]

    def clear(self) -> None:
        """Remove everything but the lock; the request first, so that an interrupted removal is never resumed."""
        delete(self.work / REQUEST)
        small = (self.building / REJECTED, self.building / SHARDS)
        begun = (*self.shards(), *small) if self.building == self.out else self.building.iterdir()
        for path in (*self.work.iterdir(), *begun):
            if path not in (self.work, self.work / LOCK):
                delete(path)

    def discard(self) -> None:
        """Remove an unfinished output that cannot be finished."""
        self.clear()
        self.leave()

    def leave(self) -> None:
        """Remove the work folder, and the folder itself if it is empty."""
        shutil.rmtree(self.work, ignore_errors=True)
        with contextlib.suppress(OSError):  # it may hold files of the user
            self.building.rmdir()


def delete(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove hidden files, and all folders except those of the sources of a mixture (00000, 00001, ...)."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink() and _NESTED.fullmatch(left.name):
            _remove_leftovers(left)
        elif left.name.startswith(".") or not left.is_file():
            delete(left)
