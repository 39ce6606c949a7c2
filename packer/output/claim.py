"""Claims of outputs, in a local folder or in object storage, to begin or resume them.

A process, or several ranks together, hold the lock OUT/.packer/lock while they work, so no other process can. Object
storage has no locks; there, the request of the process that begins first decides.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from packer.engines import ranks
from packer.engines.ranks import Heartbeats
from packer.errors import PackerError, SourceError
from packer.options import RunOptions
from packer.output import replace_folder
from packer.output.replace_folder import in_use
from packer.output.unfinished_output import LOCK, PACKED, REQUEST, Output, OutputKind, Request, resumes
from packer.shards.files import WORK, refuse_foreign_work
from packer.signals import raise_if_interrupted
from packer.stores import AnyPath, RemotePath
from packer.stores.local_files import FileLock, delete, sync_path, try_lock
from packer.stores.store import Claim, ClaimLostError, Folder, store_at

_PREPARED_WITHIN = 10.0  # seconds after which a locked folder that no rank prepares is considered in use
_PREPARING = b"preparing "  # beginning of a lock's content while a rank prepares the folder for all ranks

log = logging.getLogger(__name__)


def claim(
    out: AnyPath, kind: OutputKind, request: Request | None, run: RunOptions, *, shared: bool = False
) -> contextlib.AbstractContextManager[Output]:
    """Return a context manager that claims an output, new or unfinished, and moves it into place at the end.

    If the block raises, the unfinished output is kept, and an equal request resumes it. The output is removed if it has
    no request, or if the source is at fault (`SourceError`). With `run.overwrite`, a complete output is replaced, and
    an unfinished output that is damaged or has another request is discarded. With `shared`, which excludes `overwrite`,
    other processes may claim the output for the same request. Outputs in object storage are always shared and never
    replaced; there, a process without a heartbeat for `ranks.PATIENCE` seconds is considered dead.

    Raises a PackerError if the output is in use, damaged, unfinished with another request, or not made by packer; if
    its work folder has symbolic links; or if it is complete and `run.overwrite` is false.
    """
    if isinstance(out, RemotePath):
        assert request is not None
        return _claim_stored(out, kind, request, run)
    return _claim_folder(out, kind, request, run, shared=shared)


@contextlib.contextmanager
def _claim_folder(
    out: Path, kind: OutputKind, request: Request | None, run: RunOptions, *, shared: bool
) -> Iterator[Output]:
    _refuse_foreign(out, kind, overwrite=run.overwrite)
    in_place = kind.in_place and not kind.is_complete(out)
    building = out if in_place else replace_folder.sibling(out, kind.building)
    refuse_foreign_work(building)
    output = Output(out=out, store=Folder(building, run.sync, WORK), kind=kind, is_shared=shared)
    state = "being written" if request is None else "in use"
    busy = f"{out} is {state} by another packer: wait for it, or choose another --output"
    if not in_place:
        replace_folder.refuse_mount_point(out)
        if in_use(building) or in_use(out):
            raise PackerError(busy)
        replace_folder.prepare_beside(building, out, kind)
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, building)
        lock, output = _locked(output, request, busy, replace(run, overwrite=run.overwrite or not in_place))
        stack.enter_context(lock)
        if not in_place and in_use(out):  # another process has just moved its output there
            output.leave()
            raise PackerError(busy)
        try:
            yield output
            if not in_place:
                _refuse_foreign(out, kind, overwrite=run.overwrite)  # another process may have written there meanwhile
                output.check_claim()
        except BaseException as error:
            is_ours, is_of_source = lock.is_at(output.work / LOCK), isinstance(error, SourceError)
            if shared and kind.is_complete(out):  # another process completed it, but may have left files of this one
                output.leave()
            elif is_ours and (request is None or is_of_source) and lock.change(shared=False):
                output.clear()
                output.leave()
            if not is_ours and isinstance(error, (OSError, PackerError)) and not is_of_source:
                output.check_claim()  # raises an error that explains why a file is missing
            raise
        if not in_place and output.is_complete():
            replace_folder.swap(out, building, kind, sync=run.sync)
    if kind.is_complete(out):
        shutil.rmtree(out / WORK, ignore_errors=True)  # leftovers do no harm
        if run.sync:
            sync_path(out)
            sync_path(out.parent)


def _remove_empty(building: Path) -> None:
    """Remove an empty work folder. On NFS or FUSE, that works only after its removed lock file is closed."""
    with contextlib.suppress(OSError):  # not empty, or already removed
        (building / WORK).rmdir()
        building.rmdir()


def _refuse_foreign(out: Path, kind: OutputKind, *, overwrite: bool) -> None:
    """Raise a PackerError if `out` was not made by packer, or if it is complete and `overwrite` is false."""
    if out.exists() and not out.is_dir():
        raise PackerError(f"{out} exists and is not a folder: choose another --output")
    if kind.is_complete(out):
        if not overwrite:
            raise PackerError(f"{out} exists: choose another --output, or replace it with --overwrite")
        if kind.listed_in(out) is None:
            raise PackerError(f"{out / kind.record} is damaged, or was not written by packer: choose another --output")
    elif out.is_dir() and any(out.iterdir()) and not (kind.in_place and _is_begun(out)):
        raise PackerError(f"{out} exists and is not {kind.name}: choose another --output")


def _is_begun(out: AnyPath) -> bool:
    """Whether a folder contains only an unfinished output, because users' files must not be removed.

    An unfinished output has a request. If its removal was interrupted, it has no request, but its lock has content. If
    it has just begun, it contains only the work folder.
    """
    work = out / WORK
    if all(path.name == WORK for path in out.iterdir()):
        return work.is_dir()
    lock = work / LOCK
    return (work / REQUEST).is_file() or (isinstance(lock, Path) and lock.is_file() and lock.stat().st_size > 0)


def _locked(output: Output, request: Request | None, busy: str, run: RunOptions) -> tuple[FileLock, Output]:
    """Lock the folder in which the output is built, and prepare it for a request.

    Returns the lock, which is released when it is closed, and the output claimed by it.
    """
    if request is not None:
        output = replace(output, request=json.dumps(request.to_dict()).encode())
    if os.path.lexists(output.work / LOCK) and not (output.work / LOCK).is_file():  # damaged, and not locked
        delete(output.work / LOCK)

    prepare = partial(_prepare, output=output, request=request, run=run)
    lock = _lock_work(output.work, prepare, shared=output.is_shared, patience=ranks.PATIENCE)
    _refuse_finished(output)
    if lock is None:
        raise PackerError(busy)
    if output.is_shared and request is not None and not resumes(output.begun(), request, output, run):
        raise PackerError(busy)
    return lock, _claimed_by(lock, output)


def _claimed_by(lock: FileLock, output: Output) -> Output:
    """Return an output that puts files in place only while its folder has this lock."""
    assert isinstance(output.store, Folder)
    assert isinstance(output.out, Path)
    claim = Claim(out=output.out, lock=output.work / LOCK, content=lock.read())
    return replace(output, store=replace(output.store, claim=claim))


def _prepare(lock: FileLock, *, output: Output, request: Request | None, run: RunOptions) -> None:
    """Remove the parts of an unfinished output that a request cannot use, and write the request."""
    _refuse_finished(output)
    is_resumed = request is not None and resumes(output.begun(), request, output, run)
    content, new = lock.read(), uuid.uuid4().hex.encode()
    if not is_resumed or not content or content.startswith(_PREPARING):
        content = new  # otherwise, processes with the same request share a claim, because they write the same bytes
    lock.write(_PREPARING + new if output.is_shared else content)
    output = _claimed_by(lock, output)
    if not is_resumed:
        output.clear()  # even without a request, because a removal was interrupted
    if request is None:
        return
    for left in output.work.iterdir():
        if left.name not in (LOCK, REQUEST) and not left.is_dir():
            left.unlink(missing_ok=True)  # temporary file of a process that died or lost its claim
    assert isinstance(output.spill, Path)
    for folder in (output.spill.parent, output.spill, output.spill.with_name("checkpoints")):
        if not folder.is_dir():
            delete(folder)  # damaged
            folder.mkdir()
    for left in output.spill.iterdir():
        if left.name.startswith(".") or not left.is_file():
            delete(left)
    assert output.request is not None
    output.store.put(f"{WORK}/{REQUEST}", output.request)
    lock.write(content)


def _refuse_finished(output: Output) -> None:
    """Raise a PackerError if another process has just completed the output."""
    if output.store.root == output.out and output.is_complete():
        if not output.store.is_remote:
            output.leave()
        raise PackerError(f"{output.out} was finished by another packer just now: repeat the command to compare")


def _lock_work(work: Path, prepare: Callable[[FileLock], object], *, shared: bool, patience: float) -> FileLock | None:
    """Lock a work folder, exclusively or `shared` with others. Returns None if another process has it.

    The first process calls `prepare` with the lock, while the others wait. If it makes no progress for `patience`
    seconds, another process removes its lock, which ends its claim.
    """
    path, seen, since = work / LOCK, b"", time.monotonic()
    while (lock := _try_lock_work(work, prepare, shared=shared)) is None and shared:
        raise_if_interrupted()
        now, content = time.monotonic(), path.read_bytes() if path.is_file() else b""
        is_preparing = content.startswith(_PREPARING)
        if content != seen:
            seen, since = content, now
        elif is_preparing and now - since > patience:
            path.unlink(missing_ok=True)
        elif not is_preparing and now - since > _PREPARED_WITHIN:
            break
        time.sleep(0.05)
    return lock


def _try_lock_work(work: Path, prepare: Callable[[FileLock], object], *, shared: bool) -> FileLock | None:
    path = work / LOCK
    _make_folder(work)
    with contextlib.ExitStack() as stack:
        try:
            lock = alone = try_lock(path)
            if alone is None and shared:
                lock = try_lock(path, shared=True)
        except FileNotFoundError:  # removed by the process that held it until now
            return None
        if lock is None:
            return None
        stack.enter_context(lock)
        if not lock.is_at(path):
            return None
        if alone is not None:
            try:
                prepare(alone)
            except (OSError, ClaimLostError):
                if not lock.is_at(path):  # removed, and perhaps begun again by another process
                    return None
                raise
            if not lock.is_at(path):
                return None
        if shared and not lock.change(shared=True):
            return None
        stack.pop_all()
    return lock


def _make_folder(work: Path) -> None:
    """Create a work folder, unless it exists. Raises a PackerError if no folder can be created, as below /proc."""
    for is_last in (False, True):  # another process may remove a folder above it meanwhile
        try:
            work.mkdir(parents=True, exist_ok=True)
            return
        except FileNotFoundError as error:
            if is_last:
                raise PackerError(f"{work.parent}: no folder can be made there: choose another --output") from error


# Object storage.


@contextlib.contextmanager
def _claim_stored(out: RemotePath, kind: OutputKind, request: Request, run: RunOptions) -> Iterator[Output]:
    """Claim an output in object storage, together with all processes of the same request.

    If the source is at fault (`SourceError`), the last process removes the unfinished output.
    """
    content = json.dumps(request.to_dict()).encode()
    output = Output(out=out, store=store_at(out), kind=kind, is_shared=True, request=content)
    if out.exists() and not _is_begun(out):
        _refuse_finished(output)
        raise PackerError(f"{out} exists and is not {kind.name}: choose another --output")
    output = _begun(output, request, run)
    try:
        yield output
    except SourceError:
        if not _is_alive(output, ranks.PATIENCE) and not output.is_complete():
            output.clear()
        raise
    _finish_removal(out)


def _begun(output: Output, request: Request, run: RunOptions) -> Output:
    """Begin an output in object storage, or join processes that have begun it with an equal request."""
    assert output.request is not None
    while not output.store.put_if_absent(f"{WORK}/{REQUEST}", output.request):
        begun = output.begun()
        if begun is None:  # removed just now
            continue
        if resumes(begun, request, output, run):
            return replace(output, request=begun)
        if _is_alive(output):
            raise PackerError(
                f"{output.out} is being written by another packer: wait for it, or choose another --output"
            )
        _refuse_finished(output)  # subtle: a process that has just finished has no heartbeat either
        output.clear()
    return output


def _is_alive(output: Output, patience: float | None = None) -> bool:
    """Whether another process works on an output: a heartbeat changes within `patience` seconds, by default a few."""
    heartbeats = Heartbeats(store=output.store, patience=0)
    heartbeats.patience = 2.5 * heartbeats.interval if patience is None else patience
    return heartbeats.any_changes()


def finish_interrupted(out: AnyPath) -> None:
    """Complete the replacement of a dataset, or the removal of leftovers, that a killed process left unfinished."""
    if not isinstance(out, RemotePath):
        replace_folder.restore(out, PACKED)
    elif PACKED.is_complete(out):
        _finish_removal(out)


def _finish_removal(out: RemotePath) -> None:
    """Remove the work folder of a complete dataset, which a killed or slow process may have left."""
    work = out / WORK
    try:
        if work.is_dir() and PACKED.listed_in(out) is not None:
            work.remove_all()
    except OSError as error:  # leftovers do no harm
        log.warning(f"{work} is obsolete, and cannot be removed: {error.strerror or error}")


def way_to_replace(out: AnyPath) -> str:
    """Return the part of a message that says how to replace a complete dataset."""
    if not isinstance(out, RemotePath):
        return "replace it with --overwrite"
    if out.scheme.startswith("s3"):
        command = f"aws s3 rm --recursive {out}/"
    elif out.scheme == "gs":
        command = f"gcloud storage rm --recursive {out}/"
    else:
        command = f"az storage blob delete-batch --source {out.bucket} --pattern '{out.key}/*'"
    return f"remove it first (`{command}`)"
