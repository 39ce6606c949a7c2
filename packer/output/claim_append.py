"""Claim a complete packed dataset, to append a generation to it.

OUT/.packer/lock      held while a process appends, so that no other one appends, and none replaces the dataset
OUT/.packer/append/   the generation, built as a packed dataset is, with the manifest that the dataset will have

`join_generation.py` puts a finished generation in place. What was begun stays when the claim ends without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from packer.errors import PackerError
from packer.output import replace_folder
from packer.output.output_kind import LOCK, WORK
from packer.output.packed_output import PACKED
from packer.shards.file_names import appending_folder


@contextlib.contextmanager
def claim_append(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Claim a dataset for this process, to append to it.

    Args:
        out: folder of a complete packed dataset.
        overwrite: discard a generation that was begun and is not finished.

    Raises:
        PackerError: another process appends to the dataset, or replaces it.
    """
    busy = f"{out} is in use by another packer: wait for it, and repeat the command"
    if replace_folder.in_use(replace_folder.sibling(out, PACKED.building)):
        raise PackerError(busy)
    work, building = out / WORK, appending_folder(out)
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
        if overwrite and (building / WORK).is_dir() and not PACKED.is_complete(building):
            shutil.rmtree(building)
        try:
            yield
        finally:
            if not building.exists():
                shutil.rmtree(work, ignore_errors=True)
