"""Replace a complete output by another: built beside it, swapped in at one stroke; what users put there moves along.

.OUT.packer-new     (or -tokenizing, -export) the replacement while it is built; right after the swap, the old output
.OUT.packer-old     the old output while it is removed

Only files that the old output's own record names are deleted. The record goes first, after everything that is not
named has moved to the new output, so that a kill at any instant leaves a state that `restore` can finish.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.errors import PackerError

WORK = ".packer"
"""Folder inside an output, while it is unfinished or not yet swapped in."""

LOCK = "lock"
"""File in WORK, locked by the process that works there."""

_OLD = "old"
_MOUNTS = Path("/proc/self/mountinfo")
_MADE_HERE = re.compile(r"(data-\d+-of-\d+|\d{5}-\d{5})(\.\w+)+|state\.json|dataset_info\.json|lock")
_CACHE = re.compile(r"cache-.*\.arrow")  # of `datasets`, made from the rows that are replaced

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of output: a packed dataset, a tokenized one, an export."""

    record: str
    """File that is written last, as JSON; a folder without it is not complete."""

    building: str
    """Role of the hidden folder in which a replacement is built: "new" for .OUT.packer-new."""

    listed: Callable[[Any], Iterable[str]]
    """Takes the content of the record; returns the names of the other files that belong to the output."""

    def is_complete(self, folder: Path) -> bool:
        """Whether the record is there."""
        return (folder / self.record).is_file()

    def own_files(self, folder: Path) -> set[str]:
        """Names of the files that packer wrote: those that the record names, or, without a readable one, by pattern."""
        try:
            named = set(self.listed(json.loads((folder / self.record).read_bytes())))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            named = {name for name in os.listdir(folder) if _MADE_HERE.fullmatch(name)}  # noqa: PTH208 (names)
        return named | {self.record, WORK}


def swap(out: Path, replacement: Path, kind: Kind, *, sync: bool) -> None:
    """Put a complete output in the place of another, at one stroke where the system can, and delete the old one.

    Args:
        out: what is replaced; may be missing, or an empty folder.
        replacement: what takes its place, a sibling of `out`.
        kind: of both.
        sync: fsync the folders.
    """
    old = sibling(out, _OLD)
    replaces = _holds_anything(out)
    if not replaces:
        replacement.rename(out)
    elif exchange(replacement, out):
        replacement.rename(old)
    else:
        try:
            out.rename(old)
            replacement.rename(out)
        except BaseException:
            if kind.is_complete(old) and not out.exists():
                old.rename(out)
            raise
    if sync:
        sync_folder(out.parent)
    if replaces:
        _retire(old, out, kind, sync=sync)
    shutil.rmtree(out / WORK, ignore_errors=True)


def restore(out: Path, kind: Kind) -> None:
    """Finish what a kill left undone around an output.

    An output whose replacement was killed between two renames comes back. What had been replaced is deleted, after
    what users put beside it has moved to `out`.
    """
    if _in_use(out):  # its process does this
        return
    old, building = sibling(out, _OLD), sibling(out, kind.building)
    if kind.is_complete(old) and not _holds_anything(out):
        old.rename(out)
    elif old.is_dir() and (kind.is_complete(out) or not kind.is_complete(old)):
        _retire(old, out, kind)
    if kind.is_complete(out):
        if kind.is_complete(building) and not (building / WORK).is_dir() and not _in_use(building):
            building.rename(old)  # the swap was done, and nothing more
            _retire(old, out, kind)
        shutil.rmtree(out / WORK, ignore_errors=True)


def beside(out: Path, kind: Kind) -> Path:
    """Return the folder in which a replacement of `out` is built; one that was finished but not swapped in goes on.

    Raises:
        PackerError: `out` cannot be replaced, because it is a mount point or holds one; or another process is at it.
    """
    refuse_mount_point(out)
    replacement = sibling(out, kind.building)
    if replacement.is_dir() and _in_use(replacement):
        raise PackerError(f"{out} is in use by another packer: wait for it, or choose another --output")
    if (replacement / WORK).is_dir():
        (replacement / kind.record).unlink(missing_ok=True)  # unfinished again: its files are checked before they count
    elif replacement.is_dir():
        _retire(replacement, out, kind)
    return replacement


def refuse_mount_point(out: Path) -> None:
    """Raise a PackerError if a file system is mounted at `out` or below it: such a folder cannot be renamed."""
    whole = os.path.realpath(out)
    try:
        fields = (line.split()[4] for line in _MOUNTS.read_bytes().splitlines())
        points = [os.fsdecode(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), field)) for field in fields]
    except (OSError, LookupError):
        points = [whole] if os.path.ismount(whole) else []
    for point in points:
        if point == whole:
            raise PackerError(
                f"{out} is a mount point, which cannot be replaced as a whole: "
                f"choose a folder inside it, as in --output {out / 'NAME'}"
            )
        if point.startswith(whole + "/"):
            raise PackerError(
                f"{out} holds the mount point {point} and cannot be replaced: unmount it, or choose another --output"
            )


def sibling(out: Path, role: str) -> Path:
    """Return a hidden name beside `out`: rows -> .rows.packer-new."""
    whole = Path(os.path.abspath(out))  # noqa: PTH100 ("." has no name, and links must stay)
    return whole.parent / f".{whole.name}.packer-{role}"


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically (Linux renameat2); False where the system or the file system cannot."""
    at_current_folder, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if renameat2(at_current_folder, paths[0], at_current_folder, paths[1], exchange) == 0:
        return True
    if ctypes.get_errno() == errno.ENOENT:  # another process was here; renaming one by one would lose a dataset
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(one))
    return False


def sync_folder(folder: Path) -> None:
    """Make renames within a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _retire(old: Path, out: Path, kind: Kind, *, sync: bool = False) -> None:
    """Move what users put into a replaced output to `out`, then delete the rest, the record first."""
    own = kind.own_files(old)
    others = [path for path in old.iterdir() if path.name not in own]
    if others and not out.is_dir():
        return  # nowhere to go: it stays until there is
    for path in sorted(
        others, key=lambda path: (os.path.lexists(out / path.name), path.name)
    ):  # who keeps a name first
        target = next(out / name for name in _names_for(path.name) if not os.path.lexists(out / name))
        if target.name != path.name:
            log.info("%s of the replaced output is kept as %s", path.name, target)
        with contextlib.suppress(FileNotFoundError):  # two commands may tidy up at once
            path.rename(target)
    if sync and others:
        sync_folder(out)
    (old / kind.record).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(old)


def _names_for(name: str) -> Iterator[str]:
    """Names under which a user's file may be kept, the best one first: NOTES.md, NOTES.md.old, NOTES.md.old2."""
    if not _CACHE.fullmatch(name):
        yield name
    yield f"{name}.old"
    yield from (f"{name}.old{number}" for number in itertools.count(2))


def _holds_anything(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _in_use(folder: Path) -> bool:
    """Whether another process works in a folder: holds the lock inside it, or on the folder itself."""
    for path in (folder, folder / WORK / LOCK):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            continue
        finally:
            os.close(descriptor)
    return False
