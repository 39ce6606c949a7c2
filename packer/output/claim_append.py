"""Claim a complete packed dataset, to append a generation to it.

OUT/.packer/lock        held while a process appends, so that no other one appends, and none replaces the dataset
OUT/.packer/append-N/   generation N, built as a packed dataset is, with the manifest that the dataset will have

`join_generation.py` puts a finished generation in place. What was begun stays when the claim ends without it. In object
storage there is no lock: whoever begins generation N first makes it, and the manifest is replaced on a condition.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from packer.errors import PackerError
from packer.output import replace_folder
from packer.output.output_kind import LOCK, WORK
from packer.output.packed_output import PACKED
from packer.shards.file_names import is_appended_to
from packer.stores import AnyPath, RemotePath


@contextlib.contextmanager
def claim_append(out: AnyPath) -> Iterator[None]:
    """Claim a dataset for this process, to append to it.

    Args:
        out: folder of a complete packed dataset.

    Raises:
        PackerError: another process appends to the dataset, or replaces it.
    """
    if isinstance(out, RemotePath):
        yield
        return
    busy = f"{out} is in use by another packer: wait for it, and repeat the command"
    if replace_folder.in_use(replace_folder.sibling(out, PACKED.building)):
        raise PackerError(busy)
    work = out / WORK
    with contextlib.ExitStack() as stack:
        try:
            work.mkdir(exist_ok=True)
            lock = stack.enter_context((work / LOCK).open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = (work / LOCK).stat().st_ino == os.fstat(lock.fileno()).st_ino
        except (BlockingIOError, FileNotFoundError):  # missing: removed by the process that held it until now
            is_held = False
        if not is_held:
            raise PackerError(busy)
        try:
            yield
        finally:
            if not is_appended_to(out):
                shutil.rmtree(work, ignore_errors=True)
