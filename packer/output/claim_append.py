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
import shutil
from collections.abc import Callable, Iterator

from packer.errors import PackerError
from packer.output import replace_folder
from packer.output.unfinished_output import LOCK
from packer.output.unfinished_pack import PACKED
from packer.output.work_lock import in_use, lock_work
from packer.shards.file_names import WORK, is_appended_to, refuse_foreign_work
from packer.stores import AnyPath, RemotePath


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
    if in_use(replace_folder.sibling(out, PACKED.building)):
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
