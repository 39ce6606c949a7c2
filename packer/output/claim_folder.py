"""Claim an output folder for this process, or together with others, to begin or resume an output."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from packer.errors import PackerError, SourceError
from packer.output import replace_folder
from packer.output.output_folder import REQUEST, UNREADABLE, OutputFolder, delete
from packer.output.output_kind import LOCK, Kind
from packer.output.request import Request, difference
from packer.shards.file_names import WORK, or_other_output, refuse_foreign_work
from packer.stores import AnyPath

_PREPARED_WITHIN = 10.0  # seconds; what another process that shares the folder needs to prepare it


@contextlib.contextmanager
def claim(
    out: Path, kind: Kind, request: Request | None, *, sync: bool, overwrite: bool, shared: bool = False
) -> Iterator[OutputFolder]:
    """Claim an output for this process, to begin or resume it; once finished, it is moved into place.

    If the block raises, the unfinished output is kept and can be resumed. It is removed if there is no request, or if
    the source is at fault (`SourceError`).

    Args:
        out: path of the output; missing parent folders are created.
        kind: kind of the output.
        request: request for the output; an unfinished output is resumed only if its request is equal. None: never.
        sync: fsync files and folders.
        overwrite: replace a complete output, and discard an unfinished one that is damaged or has another request.
        shared: claim it together with other processes that do so for the same request; never with `overwrite`.

    Raises:
        PackerError: the output is in use, damaged, unfinished with another request, or not made by packer; or has
            symbolic links in its work folder; or is complete and `overwrite` is false.
    """
    _refuse_foreign(out, kind, overwrite=overwrite)
    in_place = kind.in_place and not kind.is_complete(out)
    building = out if in_place else replace_folder.sibling(out, kind.building)
    refuse_foreign_work(building)
    folder = OutputFolder(out=out, building=building, kind=kind, sync=sync, is_shared=shared)
    fresh = overwrite or not in_place
    state = "being written" if request is None else "in use"
    busy = f"{out} is {state} by another packer: wait for it{or_other_output(out)}"
    if not in_place:
        replace_folder.refuse_mount_point(out)
        if replace_folder.in_use(building) or replace_folder.in_use(out):
            raise PackerError(busy)
        replace_folder.prepare_beside(building, out, kind)
    with _lock_together(folder, busy, request) if shared and request else _lock(folder, busy, fresh=fresh) as lock:
        if not in_place and replace_folder.in_use(out):  # another process has just moved its output there
            folder.leave()
            raise PackerError(busy)
        if request is None:
            folder.clear()
        elif not shared:
            _begin_or_resume(folder, request, fresh=fresh)
        try:
            yield folder
            if not in_place:
                _refuse_foreign(out, kind, overwrite=overwrite)  # another process may have written there meanwhile
        except BaseException as error:
            if shared and kind.is_complete(out):  # by another process, whose removal may have met new files of this one
                folder.leave()
            elif (request is None or isinstance(error, SourceError)) and (not shared or _upgraded(lock)):
                folder.discard()
            raise
        if not in_place and kind.is_complete(building):
            replace_folder.swap(out, building, kind, sync=sync)
    if kind.is_complete(out):
        shutil.rmtree(out / WORK, ignore_errors=True)  # leftovers do no harm
        folder.sync_folder(out)
        folder.sync_folder(out.parent)


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
            raise PackerError(busy) from error
        except FileNotFoundError:  # the folder was moved or removed meanwhile
            is_held = False
        if folder.building == folder.out and folder.kind.is_complete(folder.out):
            folder.leave()
            raise PackerError(f"{folder.out} was finished by another packer just now: repeat the command to compare")
        if not is_held:
            raise PackerError(busy)
        stack.pop_all()
    return lock


def _lock_together(folder: OutputFolder, busy: str, request: Request) -> IO[str]:
    """Lock the folder together with other processes that have the same request; the first one prepares it.

    Raises:
        PackerError: a process holds the lock alone, the output was begun with another request, or is complete.
    """
    path, deadline = folder.work / LOCK, time.monotonic() + _PREPARED_WITHIN
    while True:
        folder.work.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(path.open("a"))
            if folder.kind.is_complete(folder.out):
                folder.leave()
                raise PackerError(
                    f"{folder.out} was finished by another packer just now: repeat the command to compare"
                )
            try:
                if _upgraded(lock):
                    _begin_or_resume(folder, request, fresh=False)
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                begun = _begun(folder)
                if begun is not None:
                    if begun != request:
                        raise refused(folder.out, difference(begun, request))
                    stack.pop_all()
                    return lock
            except BlockingIOError:
                pass
        if time.monotonic() > deadline:
            raise PackerError(busy)
        time.sleep(0.05)


def _upgraded(lock: IO[str]) -> bool:
    """Take the lock alone if no other process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _begun(folder: OutputFolder) -> Request | None:
    """Return the request with which the folder was begun; None if there is none.

    Raises:
        PackerError: it is damaged.
    """
    path = folder.work / REQUEST
    try:
        return begun_in(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise _damaged(path) from error


def begun_in(content: bytes, path: AnyPath) -> Request:
    """Return the request that a file at this path holds.

    Raises:
        PackerError: it is damaged.
    """
    try:
        return Request.from_dict(json.loads(content))
    except UNREADABLE as error:
        raise _damaged(path) from error


def _begin_or_resume(folder: OutputFolder, request: Request, *, fresh: bool) -> None:
    """Prepare the folder for `request`: keep what an equal request has begun, and remove everything else."""
    try:
        begun = _begun(folder)
    except PackerError:
        if not fresh:
            raise
        begun = None
    if begun is not None and begun != request and not fresh:
        raise refused(folder.out, difference(begun, request))
    if begun != request:  # a missing request means an interrupted removal
        folder.clear()
    for left in folder.work.iterdir():
        if left.name not in (LOCK, REQUEST) and not left.is_dir():
            left.unlink(missing_ok=True)  # temporary file of a process that died, or is about to
    folder.write_file(folder.work / REQUEST, json.dumps(request.to_dict()).encode())


def refused(out: AnyPath, other: str) -> PackerError:
    """Return the error for an unfinished output of another request, which differs in `other`."""
    return PackerError(
        f"{out} is an unfinished pack {other}: repeat that command to finish it, or start afresh with --overwrite"
    )


def _damaged(path: AnyPath) -> PackerError:
    return PackerError(f"{path} is damaged, so the unfinished output cannot be resumed: start afresh with --overwrite")
