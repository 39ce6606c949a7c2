"""A folder that appears whole or not at all: built beside its place, under a hidden name."""

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
    restore(out, EXPORT)
    _refuse(out, overwrite=overwrite)
    refuse_mount_point(out)
    part = sibling(out, EXPORT.building)
    part.mkdir(parents=True, exist_ok=True)
    lock = os.open(part, os.O_RDONLY)
    try:
        _take(lock, part, out)
        try:
            for left in part.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield part
            if sync:
                sync_folder(part)
            _refuse(out, overwrite=overwrite)  # others may have been here meanwhile
        except BaseException:
            _remove(part)
            raise
        swap(out, part, EXPORT, sync=sync)
    finally:
        os.close(lock)


def _refuse(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise PackerError(f"{out} exists and is not a folder: choose another --output")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / RECORD).is_file():
        raise PackerError(f"{out} exists and is not an export: choose another --output")
    if not overwrite:
        raise PackerError(f"{out} exists: choose another --output, or replace it with --overwrite")


def _take(lock: int, part: Path, out: Path) -> None:
    """Lock the folder; it is the one at `part` also when another process has just put its own in place."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = part.is_dir() and part.stat().st_ino == os.fstat(lock).st_ino
    except OSError:
        mine = False
    if not mine:
        raise PackerError(f"{out} is being written by another packer: wait for it, or choose another --output")


def _remove(folder: Path) -> None:
    """Delete a folder; its record first, so that what is half deleted does not look whole."""
    (folder / RECORD).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
