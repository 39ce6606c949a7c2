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
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from packer.errors import PackerError, SourceError
from packer.facts import kinds_of
from packer.facts.kinds import check_fields
from packer.output import replace_folder
from packer.output.output_kind import LOCK, WORK, Kind
from packer.output.request import Request, difference

REQUEST = "request.json"
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions raised by reading damaged JSON."""

_WAIT = "wait for it, or choose another --output"
_NESTED = re.compile(r"\d{5}")  # folders inside a scratch folder, one per source of a mixture
_SHARD = re.compile(r"data-\d{5,}-of-\d{5,}\.arrow")


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFolder:
    """An output folder that this process has claimed."""

    out: Path
    """Path of the finished output."""

    building: Path
    """Folder to write files to: `out` itself, or a hidden folder beside it."""

    kind: Kind
    """Kind of the output."""

    sync: bool
    """Whether files and folders are fsynced."""

    @property
    def work(self) -> Path:
        """Folder of everything that is removed once the output is complete."""
        return self.building / WORK

    def scratch(self, name: str) -> Path:
        """Return a folder in `work`, created if missing; partly written files of an interrupted run are removed."""
        folder = self.work / name
        if not folder.is_dir():
            delete(folder)
            folder.mkdir()
        _remove_leftovers(folder)
        return folder

    @contextlib.contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Yield a temporary path to write to. The caller renames the file; an exception removes it."""
        path = self.work / f"{name}.{os.getpid()}"
        try:
            yield path
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                path.unlink(missing_ok=True)
            raise

    def write_file(self, path: Path, content: bytes) -> None:
        """Write a small file atomically."""
        with self.temporary(path.name) as temporary:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                if self.sync:
                    os.fsync(file.fileno())
            temporary.rename(path)
        self.sync_folder(path.parent)

    def sync_folder(self, folder: Path) -> None:
        """Sync a folder, so that renames in it survive a crash."""
        if self.sync:
            replace_folder.sync_folder(folder)

    def finish(self, record: bytes, files: Mapping[str, bytes]) -> None:
        """Write small files, then the record, which makes the output complete."""
        for name, content in {**files, self.kind.record: record}.items():
            self.write_file(self.building / name, content)

    def shards(self) -> list[Path]:
        """Return the paths of the shards in place."""
        return [path for path in self.building.iterdir() if _SHARD.fullmatch(path.name)]

    def clear(self) -> None:
        """Remove everything but the lock; the request first, so that an interrupted removal is never resumed."""
        delete(self.work / REQUEST)
        begun = self.shards() if self.building == self.out else self.building.iterdir()
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


@contextlib.contextmanager
def claim(out: Path, kind: Kind, request: Request | None, *, sync: bool, overwrite: bool) -> Iterator[OutputFolder]:
    """Claim an output for this process, to begin or resume it; once finished, it is moved into place.

    If the block raises, the unfinished output is kept and can be resumed. It is removed if there is no request, or if
    the source is at fault (`SourceError`).

    Args:
        out: path of the output; missing parent folders are created.
        kind: kind of the output.
        request: request for the output; an unfinished output is resumed only if its request is equal. None: never.
        sync: fsync files and folders.
        overwrite: replace a complete output, and discard an unfinished one that is damaged or has another request.

    Raises:
        PackerError: the output is in use, damaged, unfinished with another request, or not made by packer; or it is
            complete and `overwrite` is false.
    """
    _refuse_foreign(out, kind, overwrite=overwrite)
    in_place = kind.in_place and not kind.is_complete(out)
    building = out if in_place else replace_folder.sibling(out, kind.building)
    folder = OutputFolder(out=out, building=building, kind=kind, sync=sync)
    fresh = overwrite or not in_place
    busy = f"{out} is {'being written' if request is None else 'in use'} by another packer"
    if not in_place:
        replace_folder.refuse_mount_point(out)
        if replace_folder.in_use(building) or replace_folder.in_use(out):
            raise PackerError(f"{busy}: {_WAIT}")
        replace_folder.prepare_beside(building, out, kind)
    with _lock(folder, busy, fresh=fresh):
        if not in_place and replace_folder.in_use(out):  # another process has just moved its output there
            folder.leave()
            raise PackerError(f"{busy}: {_WAIT}")
        if request is None:
            folder.clear()
        else:
            _begin_or_resume(folder, request, fresh=fresh)
        try:
            yield folder
            if not in_place:
                _refuse_foreign(out, kind, overwrite=overwrite)  # another process may have written there meanwhile
        except BaseException as error:
            if request is None or isinstance(error, SourceError):
                folder.discard()
            raise
        if not in_place and kind.is_complete(building):
            replace_folder.swap(out, building, kind, sync=sync)
    if kind.is_complete(out):
        shutil.rmtree(out / WORK, ignore_errors=True)  # leftovers do no harm
        folder.sync_folder(out)
        folder.sync_folder(out.parent)


def delete(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _refuse_foreign(out: Path, kind: Kind, *, overwrite: bool) -> None:
    """Raise a `PackerError` if `out` was not made by packer, or is complete and `overwrite` is false."""
    if out.exists() and not out.is_dir():
        raise PackerError(f"{out} exists and is not a folder: choose another --output")
    if kind.is_complete(out):
        if not overwrite:
            raise PackerError(f"{out} exists: choose another --output, or replace it with --overwrite")
    elif out.is_dir() and any(out.iterdir()) and not (kind.in_place and (out / WORK).is_dir()):
        raise PackerError(f"{out} exists and is not {kind.name}: choose another --output")


def _lock(folder: OutputFolder, busy: str, *, fresh: bool) -> IO[str]:
    """Lock the folder that is being built, and return the lock file; closing it releases the lock.

    Raises:
        PackerError: another process holds the lock, or held it until a moment ago.
    """
    path = folder.work / LOCK
    folder.work.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        if not fresh:
            raise _damaged(path)
        delete(path)
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(path.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = path.stat().st_ino == os.fstat(lock.fileno()).st_ino
        except BlockingIOError as error:
            raise PackerError(f"{busy}: {_WAIT}") from error
        except FileNotFoundError:  # the folder was moved or removed meanwhile
            is_held = False
        if folder.building == folder.out and folder.kind.is_complete(folder.out):
            folder.leave()
            raise PackerError(f"{folder.out} was finished by another packer just now: repeat the command to compare")
        if not is_held:
            raise PackerError(f"{busy}: {_WAIT}")
        stack.pop_all()
    return lock


def _begin_or_resume(folder: OutputFolder, request: Request, *, fresh: bool) -> None:
    """Prepare the folder for `request`: keep what an equal request has begun, and remove everything else."""
    path = folder.work / REQUEST
    begun, other, damaged = None, None, False
    if path.exists():
        try:
            content = json.loads(path.read_bytes())
            check_fields(content, kinds_of(Request))
            begun = Request.from_dict(content)
            other = difference(begun, request) if begun != request else None
        except (*UNREADABLE, IsADirectoryError):
            damaged = True
    if other is not None and not fresh:
        raise PackerError(
            f"{folder.out} is an unfinished pack {other}: "
            "repeat that command to finish it, or start afresh with --overwrite"
        )
    if damaged and not fresh:
        raise _damaged(path)
    if damaged or begun != request:  # a missing request means an interrupted removal
        folder.clear()
    for left in folder.work.iterdir():
        if left.name not in (LOCK, REQUEST) and not left.is_dir():
            left.unlink()  # temporary file of a process that died
    folder.write_file(path, json.dumps(request.to_dict()).encode())


def _damaged(path: Path) -> PackerError:
    return PackerError(f"{path} is damaged, so the unfinished output cannot be resumed: start afresh with --overwrite")


def _remove_leftovers(folder: Path) -> None:
    """Remove hidden files, and all folders except those of the sources of a mixture (00000, 00001, ...)."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink() and _NESTED.fullmatch(left.name):
            _remove_leftovers(left)
        elif left.name.startswith(".") or not left.is_file():
            delete(left)
