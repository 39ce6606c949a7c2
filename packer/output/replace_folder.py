"""Replacement of a folder by a finished one in a single step. Users' files in the old folder move to the new one.

.OUT.packer-new     (or -tokenizing, -export) the replacement while it is built; right after the swap, the old output
.OUT.packer-old     the old output while it is removed

Only files that the record of the old output lists are deleted. First, all other files move to the new output. Then the
record is deleted, and then the rest. `restore` can therefore complete a replacement that was interrupted at any point.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from packer.errors import PackerError
from packer.output.unfinished_output import LOCK, OutputKind
from packer.shards.files import WORK
from packer.stores.local_files import sync_path, try_lock

_OLD = "old"
_MOUNTS = Path("/proc/self/mountinfo")
_CACHE = re.compile(r"cache-.*\.arrow")  # cache files of `datasets`, made from the replaced rows

log = logging.getLogger(__name__)


def swap(out: Path, replacement: Path, kind: OutputKind, *, sync: bool) -> None:
    """Replace an output, which may be missing or empty, by a complete folder next to it; delete the old output.

    The replacement is a single step if the system supports it.
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
        sync_path(out.parent)
    if replaces:
        _retire(old, out, kind, sync=sync)


def restore(out: Path, kind: OutputKind) -> None:
    """Complete an interrupted replacement of `out`.

    If it was interrupted between two renames, the old output is moved back. If the new output is in place, users' files
    move to `out`, and the old output is deleted.
    """
    old, building = sibling(out, _OLD), sibling(out, kind.building)
    if in_use(building) or in_use(out):  # the running process completes it
        return
    if old.is_symlink():  # not made by packer; following it would move files elsewhere
        old.unlink()
    if kind.is_complete(old) and not _holds_anything(out):
        old.rename(out)
    elif old.is_dir() and (kind.is_complete(out) or not kind.is_complete(old)):
        _retire(old, out, kind)
    if kind.is_complete(out):
        if kind.is_complete(building) and not (building / WORK).is_dir():
            building.rename(old)  # the replacement was interrupted right after the swap
            _retire(old, out, kind)
        if (out / WORK).is_dir() and kind.listed_in(out) is not None:
            shutil.rmtree(out / WORK, ignore_errors=True)


def prepare_beside(building: Path, out: Path, kind: OutputKind) -> None:
    """Prepare the hidden folder in which a replacement of `out` is built, to begin or resume."""
    if building.is_symlink():
        building.unlink()
    elif (building / WORK).is_dir():
        (building / kind.record).unlink(missing_ok=True)  # unfinished again, so its files are checked before reuse
    elif building.is_dir():
        _retire(building, out, kind)


def refuse_mount_point(out: Path) -> None:
    """Raise a PackerError if a file system is mounted at or below `out`, because `out` cannot be renamed then."""
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
    """Return the path of a hidden folder next to `out`: rows, new -> .rows.packer-new."""
    whole = Path(os.path.abspath(out))  # noqa: PTH100 ("." has no name, and links must stay)
    return whole.parent / f".{whole.name}.packer-{role}"


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically (Linux renameat2); return False if it is not supported."""
    at_current_folder, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if renameat2(at_current_folder, paths[0], at_current_folder, paths[1], exchange) == 0:
        return True
    if ctypes.get_errno() == errno.ENOENT:  # another process interfered; two renames now could lose a dataset
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(one))
    return False


def _retire(old: Path, out: Path, kind: OutputKind, *, sync: bool = False) -> None:
    """Move users' files from a replaced output to `out`; then delete the record, and then the rest."""
    own = kind.own_files(old)
    others = [path for path in old.iterdir() if path.name not in own]
    if others and not out.is_dir():
        return  # keeps the files until there is a folder to move them to
    # Files that keep their names go first.
    for path in sorted(others, key=lambda path: (os.path.lexists(out / path.name), path.name)):
        target = next(out / name for name in _names_for(path.name) if not os.path.lexists(out / name))
        if target.name != path.name:
            log.info("%s of the replaced output is kept as %s", path.name, target)
        with contextlib.suppress(FileNotFoundError):  # another command may have moved it at the same time
            path.rename(target)
    if sync and others:
        sync_path(out)
    (old / kind.record).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(old)


def _names_for(name: str) -> Iterator[str]:
    """Yield names for a user's file, the best first: NOTES.md, NOTES.md.old, NOTES.md.old2."""
    if not _CACHE.fullmatch(name):
        yield name
    yield f"{name}.old"
    yield from (f"{name}.old{number}" for number in itertools.count(2))


def _holds_anything(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def in_use(folder: Path) -> bool:
    """Whether a process holds the lock of a folder's work folder; False if the file system has no locks."""
    try:
        lock = try_lock(folder / WORK / LOCK, create=False)
    except OSError:
        return False
    if lock is not None:
        lock.release()
    return lock is None
