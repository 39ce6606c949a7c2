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
from packer.replacing import Kind, refuse_mount_point, restore, sibling, swap, sync_folder

RECORD = "_export.json"
"""Written last: what an export is. Readers of Parquet folders pass over names with an underscore."""

EXPORT = Kind(record=RECORD, building="export", listed=lambda record: [file["file"] for file in record["files"]])


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
    with _locked(sibling(out, "exporting"), out):
        restore(out, EXPORT)
        _refuse(out, overwrite=overwrite)
        refuse_mount_point(out)
        part = sibling(out, EXPORT.building)
        _remove(part)
        part.mkdir()
        try:
            yield part
            if sync:
                sync_folder(part)
            _refuse(out, overwrite=overwrite)  # others may have been here meanwhile
        except BaseException:
            _remove(part)
            raise
        swap(out, part, EXPORT, sync=sync)


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
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Hold the lock of an empty folder of its own, which never moves and goes when the lock is given up.

    Raises:
        PackerError: another process holds it, or has just deleted the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = None
    try:
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = folder.stat().st_ino == os.fstat(lock).st_ino
        except (BlockingIOError, FileNotFoundError):
            is_held = False
        if not is_held:
            raise PackerError(f"{out} is being written by another packer: wait for it, or choose another --output")
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _remove(folder: Path) -> None:
    """Delete a folder, its record first, so that what is half deleted does not look whole; or a link in its place."""
    if folder.is_symlink():
        folder.unlink()
        return
    (folder / RECORD).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
