"""Claim a complete packed dataset, to append a generation to it.

OUT/.packer/lock        held while a process appends, or several ranks together, so that nobody else appends, and none
                        replaces the dataset
OUT/.packer/append-N/   generation N, built as a packed dataset is, with the manifest that the dataset will have

`join_generation.py` moves a finished generation into the dataset. If the claim ends before that, the generation stays.
In object storage there is no lock: the process that begins generation N first makes it, and the manifest is replaced
only if it is still the one that was read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from packer.errors import PackerError
from packer.output import replace_folder
from packer.output.output_kind import LOCK
from packer.output.packed_output import PACKED
from packer.shards.file_names import WORK, is_appended_to, refuse_foreign_work
from packer.stores import AnyPath, RemotePath

_PREPARED_WITHIN = 10.0  # seconds; what another process that shares the dataset needs to prepare it


@contextlib.contextmanager
def claim_append(out: AnyPath, *, prepare: Callable[[], None], shared: bool = False) -> Iterator[None]:
    """Claim a dataset for this process, or together with others, to append to it.

    Args:
        out: folder of a complete packed dataset.
        prepare: called first, while no other process has the dataset; in object storage, where others cannot be kept
            out, each process calls it.
        shared: claim it together with other processes that do so.

    Raises:
        PackerError: another process appends to the dataset, or replaces it; or its work folder has links or files of
            other users, as a dataset from elsewhere may have.
    """
    if isinstance(out, RemotePath):
        prepare()
        yield
        return
    refuse_foreign_work(out, other_owners=False)
    busy = f"{out} is in use by another packer: wait for it, and repeat the command"
    if replace_folder.in_use(replace_folder.sibling(out, PACKED.building)):
        raise PackerError(busy)
    deadline = time.monotonic() + _PREPARED_WITHIN
    while (lock := _lock(out / WORK, prepare, shared=shared)) is None:
        if not shared or time.monotonic() > deadline:
            raise PackerError(busy)
        time.sleep(0.05)
    with lock:
        try:
            yield
        finally:
            is_last = _locked(lock, fcntl.LOCK_EX) and _is_in_place(lock, out / WORK)
            if is_last and not is_appended_to(out):
                shutil.rmtree(out / WORK, ignore_errors=True)


def _lock(work: Path, prepare: Callable[[], None], *, shared: bool) -> IO[str] | None:
    """Lock a dataset, and return the lock file; None if another process has it."""
    with contextlib.ExitStack() as stack:
        try:
            work.mkdir(exist_ok=True)
            lock = stack.enter_context((work / LOCK).open("a"))
            is_alone = _locked(lock, fcntl.LOCK_EX)
            if not (is_alone or (shared and _locked(lock, fcntl.LOCK_SH))) or not _is_in_place(lock, work):
                return None
        except FileNotFoundError:  # removed by the process that held it until now
            return None
        if is_alone:
            prepare()
        if shared and not _locked(lock, fcntl.LOCK_SH):
            return None
        stack.pop_all()
    return lock


def _locked(lock: IO[str], kind: int) -> bool:
    """Take or change a lock if no other process is in the way."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_in_place(lock: IO[str], work: Path) -> bool:
    """Whether a lock file has not been removed, so that no other process can have a newer one."""
    try:
        return (work / LOCK).stat().st_ino == os.fstat(lock.fileno()).st_ino
    except FileNotFoundError:
        return False
