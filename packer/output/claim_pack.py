"""Claim a packed dataset, in a local folder or in object storage: to begin or resume it, or to append to it.

OUT/.packer/lock        held while a process appends, or several ranks together, so that nobody else appends, and none
                        replaces the dataset
OUT/.packer/append-N/   generation N, built as a packed dataset is, with the manifest that the dataset will have

`join_generation.py` moves a finished generation into the dataset. If the claim ends before that, the generation stays.
In object storage there is no lock: the process that begins a dataset or generation N first makes it, and a manifest is
replaced only if it is still the one that was read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

from packer.errors import PackerError, SourceError
from packer.heartbeats import Heartbeats
from packer.output.claim_folder import claim
from packer.output.replace_folder import restore, sibling
from packer.output.request import Request, resumes
from packer.output.unfinished_output import LOCK, PACKED, REQUEST, UnfinishedPack
from packer.output.work_lock import in_use, lock_work
from packer.shards.file_names import WORK, is_appended_to, or_other_output, refuse_foreign_work
from packer.stores import AnyPath, RemotePath
from packer.stores.store import store_at

log = logging.getLogger(__name__)


@contextlib.contextmanager
def claim_pack(
    out: AnyPath, request: Request, *, sync: bool, overwrite: bool, shared: bool, patience: float
) -> Iterator[UnfinishedPack]:
    """Claim a packed dataset for this process, or together with others; see `claim` for arguments and errors.

    If the block raises, the unfinished dataset is kept and can be resumed. It is removed if the source is at fault
    (`SourceError`). What lies in object storage is always shared, and never replaced; a process without a heartbeat for
    `patience` seconds is considered dead.
    """
    if isinstance(out, RemotePath):
        with _claim_stored(out, request, overwrite=overwrite, patience=patience) as stored:
            yield stored
        return
    with claim(out, PACKED, request, sync=sync, overwrite=overwrite, shared=shared) as folder:
        claimed = UnfinishedPack(out=out, store=folder.store, is_shared=shared)
        claimed.scratch("spill")
        claimed.folder("notes")
        claimed.folder("committed")
        yield claimed


@contextlib.contextmanager
def claim_append(out: AnyPath, *, prepare: Callable[[], None], shared: bool = False) -> Iterator[None]:
    """Claim a complete dataset for this process, or together with others, to append to it.

    `prepare` is called first, while no other process has the dataset; in object storage, where others cannot be kept
    out, each process calls it. Raises a PackerError if another process appends to the dataset, or replaces it; or its
    work folder has links or files of other users, as a dataset from elsewhere may have.
    """
    if isinstance(out, RemotePath):
        prepare()
        yield
        return
    refuse_foreign_work(out, other_owners=False)
    busy = f"{out} is in use by another packer: wait for it, and repeat the command"
    if in_use(sibling(out, PACKED.building)):
        raise PackerError(busy)
    lock = lock_work(out / WORK, prepare, shared=shared)
    if lock is None:
        raise PackerError(busy)
    with lock:
        try:
            yield
        finally:
            is_last = lock.change(shared=False) and lock.is_at(out / WORK / LOCK)
            if is_last and not is_appended_to(out):
                shutil.rmtree(out / WORK, ignore_errors=True)


def way_to_replace(out: AnyPath) -> str:
    """Return how a user can replace a complete dataset, for a message."""
    if isinstance(out, RemotePath):
        return f"remove it first (`{_removal_of(out)}`)"
    return "replace it with --overwrite"


def refuse_replacing(out: AnyPath) -> None:
    """Raise a PackerError for a complete dataset in object storage, which cannot be replaced in one step."""
    if isinstance(out, RemotePath):
        raise PackerError(
            f"{out} is complete, and nothing in object storage is replaced in one step, so readers would meet a "
            f"mixture of both: choose another --output, or remove it first (`{_removal_of(out)}`)"
        )


def finish_interrupted(out: AnyPath) -> None:
    """Finish what a process was doing to a dataset when it was killed: a replacement, or the removal of leftovers."""
    if isinstance(out, RemotePath):
        _finish_removal(out)
    else:
        restore(out, PACKED)


@contextlib.contextmanager
def _claim_stored(out: RemotePath, request: Request, *, overwrite: bool, patience: float) -> Iterator[UnfinishedPack]:
    """Claim a dataset in object storage together with all processes that have the same request.

    If the source is at fault (`SourceError`), the last process removes the unfinished dataset.
    """
    _refuse_foreign(out)
    claimed = _begun(out, request, overwrite=overwrite)
    try:
        yield claimed
    except SourceError:
        if _is_last(claimed, patience) and not claimed.is_complete():
            claimed.clear()
        raise
    _finish_removal(out)


def _finish_removal(out: RemotePath) -> None:
    """Remove what a process that was killed after it completed a dataset has left, or one that came late."""
    work = out / WORK
    try:
        if PACKED.is_complete(out) and work.is_dir() and not is_appended_to(out):
            work.remove_all()
    except OSError as error:  # leftovers do no harm
        log.warning(f"{work} is of no use any more, and cannot be removed: {error.strerror or error}")


def _refuse_foreign(out: RemotePath) -> None:
    holds_anything = out.exists()  # subtle: checked first, because another process may be about to begin it
    if holds_anything and not (out / WORK).is_dir():
        _refuse_finished(out)
        raise PackerError(f"{out} exists and is not {PACKED.name}: choose another --output")


def _refuse_finished(out: RemotePath) -> None:
    if PACKED.is_complete(out):
        raise PackerError(f"{out} was finished by another packer just now: repeat the command to compare")


def _begun(out: RemotePath, request: Request, *, overwrite: bool) -> UnfinishedPack:
    """Begin the dataset, or find it begun with an equal request."""
    store, path, content = store_at(out), out / WORK / REQUEST, json.dumps(request.to_dict()).encode()
    while True:
        mine = UnfinishedPack(out=out, store=store, is_shared=True, request=content)
        if store.put_if_absent(f"{WORK}/{REQUEST}", content):
            return mine
        try:
            found = path.read_bytes()
        except FileNotFoundError:  # removed just now
            continue
        if resumes(found, request, out, path=path, overwrite=overwrite):
            return replace(mine, request=found)
        if _is_alive(mine):
            raise PackerError(f"{out} is being written by another packer: wait for it{or_other_output(out)}")
        _refuse_finished(out)  # subtle: a process that finishes meanwhile has no more heartbeats, either
        mine.clear()


def _is_alive(claimed: UnfinishedPack) -> bool:
    """Whether a heartbeat of any process changes within some seconds."""
    heartbeats = Heartbeats(store=claimed.store, patience=0)
    heartbeats.patience = 2.5 * heartbeats.interval
    return heartbeats.any_changes()


def _is_last(claimed: UnfinishedPack, patience: float) -> bool:
    """Whether no other process works on the dataset; those without a heartbeat are waited for."""
    return not Heartbeats(store=claimed.store, patience=patience).any_changes()


def _removal_of(out: RemotePath) -> str:
    """Return the command that removes a folder in object storage."""
    if out.scheme.startswith("s3"):
        return f"aws s3 rm --recursive {out}/"
    if out.scheme == "gs":
        return f"gcloud storage rm --recursive {out}/"
    return f"az storage blob delete-batch --source {out.bucket} --pattern '{out.key}/*'"
