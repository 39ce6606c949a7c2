"""Claim an output folder for this process, or together with others, to begin or resume an output."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from packer.errors import PackerError, SourceError
from packer.output import replace_folder
from packer.output.request import Request, damaged, resumes
from packer.output.unfinished_output import LOCK, REQUEST, Kind, Output
from packer.output.work_lock import in_use, lock_work
from packer.shards.file_names import WORK, or_other_output, refuse_foreign_work
from packer.stores.file_locks import FileLock
from packer.stores.store import Folder, delete, sync_folder


@contextlib.contextmanager
def claim(
    out: Path, kind: Kind, request: Request | None, *, sync: bool, overwrite: bool, shared: bool = False
) -> Iterator[Output]:
    """Claim an output for this process, to begin or resume it; once finished, it is moved into place.

    If the block raises, the unfinished output is kept and can be resumed by an equal request. It is removed if there is
    no request, or if the source is at fault (`SourceError`). With `overwrite`, a complete output is replaced, and an
    unfinished one that is damaged or has another request is discarded. With `shared`, never together with `overwrite`,
    other processes may claim it for the same request.

    Raises a PackerError if the output is in use, damaged, unfinished with another request, or not made by packer; or
    has symbolic links in its work folder; or is complete and `overwrite` is false.
    """
    _refuse_foreign(out, kind, overwrite=overwrite)
    in_place = kind.in_place and not kind.is_complete(out)
    building = out if in_place else replace_folder.sibling(out, kind.building)
    refuse_foreign_work(building)
    folder = Output(out=out, store=Folder(building, sync, WORK), kind=kind, is_shared=shared)
    fresh = overwrite or not in_place
    state = "being written" if request is None else "in use"
    busy = f"{out} is {state} by another packer: wait for it{or_other_output(out)}"
    if not in_place:
        replace_folder.refuse_mount_point(out)
        if in_use(building) or in_use(out):
            raise PackerError(busy)
        replace_folder.prepare_beside(building, out, kind)
    with _locked(folder, request, busy, fresh=fresh) as lock:
        if not in_place and in_use(out):  # another process has just moved its output there
            folder.leave()
            raise PackerError(busy)
        try:
            yield folder
            if not in_place:
                _refuse_foreign(out, kind, overwrite=overwrite)  # another process may have written there meanwhile
        except BaseException as error:
            if shared and kind.is_complete(out):  # by another process, whose removal may have met new files of this one
                folder.leave()
            elif (request is None or isinstance(error, SourceError)) and (not shared or lock.change(shared=False)):
                folder.discard()
            raise
        if not in_place and kind.is_complete(building):
            replace_folder.swap(out, building, kind, sync=sync)
    if kind.is_complete(out):
        shutil.rmtree(out / WORK, ignore_errors=True)  # leftovers do no harm
        if sync:
            sync_folder(out)
            sync_folder(out.parent)


def _refuse_foreign(out: Path, kind: Kind, *, overwrite: bool) -> None:
    """Raise a `PackerError` if `out` was not made by packer, or is complete and `overwrite` is false."""
    if out.exists() and not out.is_dir():
        raise PackerError(f"{out} exists and is not a folder: choose another --output")
    if kind.is_complete(out):
        if not overwrite:
            raise PackerError(f"{out} exists: choose another --output, or replace it with --overwrite")
    elif out.is_dir() and any(out.iterdir()) and not (kind.in_place and (out / WORK).is_dir()):
        raise PackerError(f"{out} exists and is not {kind.name}: choose another --output")


def _locked(folder: Output, request: Request | None, busy: str, *, fresh: bool) -> FileLock:
    """Lock the folder that is being built and prepare it for a request; closing the lock releases it."""
    path = folder.work / LOCK
    if path.is_dir():
        if not fresh:
            raise damaged(path)
        delete(path)

    def prepare() -> None:
        _refuse_finished(folder)
        if request is None:
            folder.clear()
        else:
            _begin_or_resume(folder, request, fresh=fresh)

    lock = lock_work(folder.work, prepare, shared=folder.is_shared)
    _refuse_finished(folder)
    begun = _begun(folder) if folder.is_shared else b""
    if lock is None or begun is None:
        raise PackerError(busy)
    if folder.is_shared and request is not None:
        resumes(begun, request, folder.out, path=folder.work / REQUEST, overwrite=False)
    return lock


def _refuse_finished(folder: Output) -> None:
    if folder.building == folder.out and folder.kind.is_complete(folder.out):
        folder.leave()
        raise PackerError(f"{folder.out} was finished by another packer just now: repeat the command to compare")


def _begun(folder: Output) -> bytes | None:
    """Return the request with which the folder was begun; None if there is none."""
    try:
        return (folder.work / REQUEST).read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return b""  # which is damaged, too


def _begin_or_resume(folder: Output, request: Request, *, fresh: bool) -> None:
    """Prepare the folder for `request`: keep what an equal request has begun, and remove everything else."""
    begun = _begun(folder)
    if begun is None or not resumes(begun, request, folder.out, path=folder.work / REQUEST, overwrite=fresh):
        folder.clear()  # also without a request, which means an interrupted removal
    for left in folder.work.iterdir():
        if left.name not in (LOCK, REQUEST) and not left.is_dir():
            left.unlink(missing_ok=True)  # temporary file of a process that died, or is about to
    folder.store.put(f"{WORK}/{REQUEST}", json.dumps(request.to_dict()).encode())
