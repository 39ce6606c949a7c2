"""A folder that appears whole or not at all: built beside its place, in a hidden folder that is locked meanwhile.

.OUT.packer-export/         locked while a process works here, until the last file of the old export is deleted
.OUT.packer-export/new/     the folder that is being built; after an exchange, the old one, being deleted
.OUT.packer-export/old/     the old one, where folders cannot be exchanged
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packer.errors import PackerError
from packer.workspace import exchange, sibling, sync_folder

RECORD = "_export.json"
"""Written last: what an export is. Readers of Parquet folders pass over names with an underscore."""


@contextmanager
def whole_folder(out: Path, *, overwrite: bool, sync: bool) -> Iterator[Path]:
    """Give a new folder that takes the place of `out` when the block ends; when it fails, nothing is left.

    What a kill leaves is hidden beside `out`, and goes with the next attempt.

    Args:
        out: where it goes; folders above it are made.
        overwrite: whether an export that is there may be replaced.
        sync: fsync the folders.

    Raises:
        PackerError: there is something at `out`, or another process is making it.
    """
    _refuse(out, overwrite=overwrite)
    work = sibling(out, "export")
    work.mkdir(parents=True, exist_ok=True)
    with _locked(work, out):
        try:
            _restore(work, out)
            _refuse(out, overwrite=overwrite)
            for left in work.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            part = work / "new"
            part.mkdir()
            yield part
            if sync:
                sync_folder(part)
            _refuse(out, overwrite=overwrite)  # others may have been here meanwhile
            _put(part, out)
            if sync:
                sync_folder(out.parent)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _refuse(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise PackerError(f"{out} exists and is not a folder: choose another --output")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / RECORD).is_file():
        raise PackerError(f"{out} exists and is not an export: choose another --output")
    if not overwrite:
        raise PackerError(f"{out} exists: choose another --output, or replace it with --overwrite")


@contextmanager
def _locked(work: Path, out: Path) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        PackerError: another process holds it, or has just deleted the folder.
    """
    lock = None
    try:
        try:
            lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = work.stat().st_ino == os.fstat(lock).st_ino
        except (BlockingIOError, FileNotFoundError):
            is_held = False
        if not is_held:
            raise PackerError(f"{out} is being written by another packer: wait for it, or choose another --output")
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _restore(work: Path, out: Path) -> None:
    """Put back the export whose replacement was killed between two renames."""
    if not out.exists() and all((work / name / RECORD).is_file() for name in ("old", "new")):
        (work / "old").rename(out)


def _put(part: Path, out: Path) -> None:
    """Move the folder to its place, at one stroke where the system can; what was there comes to lie beside it."""
    if not out.exists():
        part.rename(out)
    elif not exchange(part, out):
        old = part.with_name("old")
        out.rename(old)
        try:
            part.rename(out)
        except BaseException:
            old.rename(out)
            raise
