"""An output folder while it is not finished: claimed, resumed, committed.

OUT/.packer/lock            held while a process works here
OUT/.packer/request.json    what is being made: options and source files; decides what can be resumed
OUT/.packer/spill/          sources that cannot be mapped, decoded once
OUT/.packer/notes/          what finished tasks of the plan leave for those after them
OUT/.packer/committed/      what the manifest will say of each shard that is there, its hash included

Whatever is found there counts only if it matches its hash: a note, decoded source or shard that does not is made again,
a damaged request is an error that --overwrite gets out of.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packer.errors import PackerError
from packer.replacing import LOCK, WORK, Kind, sync_folder
from packer.request import difference
from packer.shards.files import hash_file
from packer.shards.manifest import MANIFEST, Manifest, ShardEntry, checksum

REQUEST = "request.json"
PACKED = Kind(
    record=MANIFEST,
    building="new",
    listed=lambda manifest: [*(shard["file"] for shard in manifest["shards"]), *manifest["files"]],
)


_SOURCE = re.compile(r"\d{5}")
_SHARD = re.compile(r"data-\d{5,}-of-\d{5,}\.arrow")
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # what damaged JSON comes to


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """A claimed output folder. Every file appears in it whole: written to another name, synced, renamed."""

    out: Path
    """The folder that becomes the dataset."""

    sync: bool
    """Whether files and folders are fsynced."""

    @property
    def work(self) -> Path:
        """The folder of everything that goes when the dataset is complete."""
        return self.out / WORK

    @property
    def spill(self) -> Path:
        """Where decoded sources lie."""
        return self.work / "spill"

    @property
    def notes(self) -> Path:
        """Where the notes of the plan lie."""
        return self.work / "notes"

    def write_file(self, path: Path, content: bytes) -> None:
        """Write a small file so that it appears whole; what a kill leaves of it goes with the work folder."""
        with self.temporary(path.name) as temporary:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                if self.sync:
                    os.fsync(file.fileno())
            temporary.rename(path)
        self.sync_folder(path.parent)

    def sync_folder(self, folder: Path) -> None:
        """Make renames within a folder last."""
        if self.sync:
            sync_folder(folder)

    def committed(self, name: str) -> ShardEntry | None:
        """Return what was noted of a shard that is there with its size, by this run or one before it."""
        try:
            entry = ShardEntry(**_read_checked_json(self._note(name)))
            return entry if (self.out / name).stat().st_size == entry.bytes else None
        except (*_UNREADABLE, FileNotFoundError):
            return None

    def is_intact(self, entry: ShardEntry) -> bool:
        """Whether a shard that is there has the bytes that were written: by its hash."""
        return hash_file(self.out / entry.file) == entry.xxh3_128

    def forget_plan(self) -> None:
        """Remove the plan and everything that was made by it."""
        for made in (self.notes, *self._shards(), self.work / "committed"):
            _delete(made)
        self.notes.mkdir()
        (self.work / "committed").mkdir()

    def committed_bytes(self) -> int:
        """Bytes of the shards that are in place."""
        return sum(shard.stat().st_size for shard in self._shards())

    @contextlib.contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Give a name to write to until what is there is renamed; on an error it is removed."""
        path = self.work / f"{name}.{os.getpid()}"
        try:
            yield path
        except BaseException:
            with contextlib.suppress(OSError):  # what went wrong first is what the user is told
                path.unlink(missing_ok=True)
            raise

    def commit(self, temporary: Path, entry: ShardEntry) -> None:
        """Put a written shard in place: first what will be said of it, then the shard itself."""
        self.write_file(self._note(entry.file), _checked_json(asdict(entry)))
        temporary.rename(self.out / entry.file)
        self.sync_folder(self.out)

    def finish(self, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        """Write the small files, then the manifest: from then on the dataset is complete."""
        for name, content in files.items():
            self.write_file(self.out / name, content)
        self.write_file(self.out / MANIFEST, manifest.to_bytes())

    def discard(self) -> None:
        """Remove what was begun here: an output that cannot be finished."""
        self.clear()
        shutil.rmtree(self.work, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may keep files here
            self.out.rmdir()

    def clear(self) -> None:
        """Remove whatever was begun, the lock apart; the request first: what is half removed is not resumed."""
        _delete(self.work / REQUEST)
        for begun in (*self.work.iterdir(), *self._shards()):
            if begun.name != LOCK:
                _delete(begun)

    def tidy(self) -> None:
        """Remove what a process was writing when it died, and what is no file where a file belongs."""
        for left in self.work.glob("data-*"):
            _delete(left)
        for folder in (self.spill, self.notes, self.work / "committed"):
            if not folder.is_dir():
                _delete(folder)
                folder.mkdir()
            _tidy(folder)

    def _note(self, name: str) -> Path:
        """Where it is noted that a shard is committed."""
        return self.work / "committed" / f"{name}.json"

    def _shards(self) -> list[Path]:
        return [path for path in self.out.iterdir() if _SHARD.fullmatch(path.name)]


@contextlib.contextmanager
def claim(
    out: Path, request: Mapping[str, Any], *, sync: bool, fresh: bool, kind: Kind = PACKED
) -> Iterator[Workspace]:
    """Take an output folder for this process, to begin an output or to resume the same one.

    Args:
        out: made when it is not there.
        request: what is to be made; an unfinished folder is resumed only for an equal request.
        sync: whether the workspace syncs.
        fresh: give up what another request has begun here, and what is damaged.
        kind: what is made.

    Raises:
        PackerError: the folder is in use, damaged, holds an unfinished output of another request, or something else.
    """
    workspace = Workspace(out=out, sync=sync)
    _refuse_foreign(out)
    workspace.work.mkdir(parents=True, exist_ok=True)
    path = workspace.work / LOCK
    if path.is_dir() and fresh:
        _delete(path)
    elif path.is_dir():
        raise _damaged(path)
    lock = path.open("w")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PackerError(f"{out} is in use by another packer: wait for it, or choose another --output") from error
        if kind.is_complete(out):  # the process before us has just finished it
            shutil.rmtree(workspace.work, ignore_errors=True)
            raise PackerError(f"{out} was finished by another packer just now: repeat the command to compare")
        _begin_or_resume(workspace, request, fresh=fresh)
        yield workspace
    finally:
        lock.close()
    if kind.is_complete(out):
        shutil.rmtree(workspace.work, ignore_errors=True)  # what cannot be removed does no harm
        workspace.sync_folder(out)
        workspace.sync_folder(out.parent)


def _refuse_foreign(out: Path) -> None:
    """Refuse a path that packer did not make."""
    if out.exists() and not out.is_dir():
        raise PackerError(f"{out} exists and is not a folder: choose another --output")
    if out.is_dir() and not (out / WORK).is_dir() and any(out.iterdir()):
        raise PackerError(f"{out} exists and is not a packed dataset: choose another --output")


def _begin_or_resume(workspace: Workspace, request: Mapping[str, Any], *, fresh: bool) -> None:
    """Bring the folder to the state that `request` goes on from."""
    path = workspace.work / REQUEST
    begun, other, damaged = None, None, None
    if path.exists():
        try:
            begun = json.loads(path.read_bytes())
            other = difference(begun, request) if begun != request else None
        except (*_UNREADABLE, IsADirectoryError):
            damaged = path
    if other is not None and not fresh:
        raise PackerError(
            f"{workspace.out} is an unfinished pack {other}: "
            "repeat that command to finish it, or start afresh with --overwrite"
        )
    if damaged is not None and not fresh:
        raise _damaged(damaged)
    if damaged is not None or begun != request:  # where there is no request, whatever else is there was half removed
        workspace.clear()
    workspace.tidy()
    workspace.write_file(path, json.dumps(request).encode())


def _damaged(path: Path) -> PackerError:
    return PackerError(f"{path} is damaged, and with it what was begun: start afresh with --overwrite")


def _tidy(folder: Path) -> None:
    """Remove what is hidden, and folders, but for those of the sources of a mixture, named 00000, 00001 and so on."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink() and _SOURCE.fullmatch(left.name):
            _tidy(left)
        elif left.name.startswith(".") or not left.is_file():
            _delete(left)


def _delete(path: Path) -> None:
    """Remove a file, a folder, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _checked_json(content: dict[str, Any]) -> bytes:
    """JSON with a hash of itself."""
    return json.dumps({**content, "checksum": checksum(content)}).encode()


def _read_checked_json(path: Path) -> dict[str, Any]:
    """Read what `_checked_json` gave; raises a ValueError, or another of _UNREADABLE, where it was changed."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    if content.pop("checksum") != checksum(content):
        raise ValueError(f"{path} was changed")
    return content
