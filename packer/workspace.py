"""An output folder while it is not finished: claimed, resumed, committed, swapped into place.

OUT/.packer/lock            held while a process works here
OUT/.packer/request.json    what is being made: options and source files; decides what can be resumed
OUT/.packer/spill/          sources that cannot be mapped, decoded once
OUT/.packer/plan/           the plan, whole or not there
OUT/.packer/committed/      what the manifest will say of each shard that is there
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.shards.manifest import MANIFEST, Manifest, ShardEntry, is_packed

WORK = ".packer"
REQUEST = "request.json"


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

    def save_plan(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Keep the plan: arrays, and what else the manifest will say; whole or not at all."""
        temporary = self.work / "plan.part"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", array)
            (temporary / "facts.json").write_text(json.dumps(facts))
            if self.sync:
                for path in temporary.iterdir():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                sync_folder(temporary)
            temporary.rename(self.work / "plan")
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self.sync_folder(self.work)

    def load_plan(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """Return the plan that was kept, its arrays mapped, or None."""
        folder = self.work / "plan"
        if not folder.is_dir():
            return None
        arrays = {path.stem: np.load(path, mmap_mode="r").view(np.ndarray) for path in folder.glob("*.npy")}
        return arrays, json.loads((folder / "facts.json").read_text())

    def committed(self, name: str) -> ShardEntry | None:
        """Return the entry of a shard that is there, written by this run or one before it."""
        note = self.work / "committed" / f"{name}.json"
        try:
            entry = ShardEntry(**json.loads(note.read_text()))
            return entry if (self.out / name).stat().st_size == entry.bytes else None
        except FileNotFoundError:
            return None

    def committed_bytes(self) -> int:
        """Bytes of the shards that are in place."""
        return sum(shard.stat().st_size for shard in self.out.glob("data-*-of-*.arrow"))

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
        self.write_file(self.work / "committed" / f"{entry.file}.json", json.dumps(asdict(entry)).encode())
        temporary.rename(self.out / entry.file)
        self.sync_folder(self.out)

    def finish(self, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        """Write the small files, then the manifest: from then on the dataset is complete."""
        for name, content in files.items():
            self.write_file(self.out / name, content)
        self.write_file(self.out / MANIFEST, manifest.to_bytes())

    def discard(self) -> None:
        """Remove what was begun here: an output that cannot be finished."""
        (self.work / REQUEST).unlink(missing_ok=True)  # first: what is half removed is not resumed
        for shard in self.out.glob("data-*-of-*.arrow"):
            shard.unlink()
        shutil.rmtree(self.work, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may keep files here
            self.out.rmdir()


@contextlib.contextmanager
def claim(out: Path, request: Mapping[str, Any], *, sync: bool, fresh: bool) -> Iterator[Workspace]:
    """Take an output folder for this process, to begin a pack or to resume the same one.

    Args:
        out: made when it is not there.
        request: what is to be made; an unfinished folder is resumed only for an equal request.
        sync: whether the workspace syncs.
        fresh: give up what another request has begun here.

    Raises:
        PackerError: the folder is in use, holds an unfinished pack of another request, or something else.
    """
    workspace = Workspace(out=out, sync=sync)
    _refuse_foreign(out)
    workspace.work.mkdir(parents=True, exist_ok=True)
    lock = (workspace.work / "lock").open("w")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PackerError(f"{out} is in use by another packer: wait for it, or choose another --output") from error
        if (out / MANIFEST).is_file():  # the process before us has just finished it
            shutil.rmtree(workspace.work, ignore_errors=True)
            raise PackerError(f"{out} was finished by another packer just now: repeat the command to compare")
        _begin_or_resume(workspace, request, fresh=fresh)
        yield workspace
    finally:
        lock.close()
    if (out / MANIFEST).is_file():
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
    begun = json.loads(path.read_text()) if path.is_file() else None
    if begun is not None and begun != request and not fresh:
        raise PackerError(
            f"{workspace.out} is an unfinished pack {difference(begun, request)}: "
            "repeat that command to finish it, or start afresh with --overwrite"
        )
    if begun != request:  # where there is no request, whatever else is there was half removed
        path.unlink(missing_ok=True)
        for entry in workspace.work.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
        for shard in workspace.out.glob("data-*-of-*.arrow"):
            shard.unlink()
    workspace.spill.mkdir(exist_ok=True)
    for left in (*workspace.work.glob("data-*"), *workspace.spill.glob(".*")):  # of a process that died writing it
        left.unlink()
    (workspace.work / "committed").mkdir(exist_ok=True)
    workspace.write_file(path, json.dumps(request).encode())


def difference(begun: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """Say how what is there differs from what is asked for: "with max_len 2048, not 4096"."""
    one, other = ([file["name"] for file in part["files"]] for part in (begun, request))
    # before the options, unless there are other sources on purpose: a source may bring another column or padding
    if one != other and begun.get("options", {}).get("weights") == request.get("options", {}).get("weights"):
        pair = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), None)
        return "of other source files" + (f" ({pair[0]}, not {pair[1]})" if pair else "")
    for part in ("options", "text"):
        asked, made = _flat(request.get(part, {})), _flat(begun.get(part, {}))
        for name in dict.fromkeys([*asked, *made]):
            if made.get(name) != asked.get(name):
                return f"with {name} {_short(made.get(name))}, not {_short(asked.get(name))}"
    return "of other source files" if one != other else "of a source that has changed since"


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of several sources as facts: {"web": {"eos": True}} -> {"eos of web": True}."""
    flat = {}
    for name, value in facts.items():
        flat.update(
            {f"{key} of {name}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return flat


def _short(value: object) -> str:
    """A value in one line; a chat template has many."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def beside(out: Path) -> Path:
    """Return the folder in which a replacement of `out` is built, without one that was finished but not swapped in."""
    replacement = sibling(out, "new")
    if is_packed(replacement):  # it is quicker to make it again than to trust it
        replacement.rename(sibling(out, "old"))
        _remove(sibling(out, "old"))
    return replacement


def swap(out: Path, replacement: Path, *, sync: bool) -> None:
    """Put a complete dataset in the place of another, at one stroke where the system can, and delete the old one."""
    old = sibling(out, "old")
    if exchange(replacement, out):
        replacement.rename(old)
    else:
        try:
            out.rename(old)
            replacement.rename(out)
        except BaseException:
            if is_packed(old) and not out.exists():
                old.rename(out)
            raise
    if sync:
        sync_folder(out.parent)
    _remove(old)


def restore(out: Path) -> None:
    """Finish what a kill left undone around a complete dataset.

    A dataset whose replacement was killed between two renames comes back; what was to be deleted is deleted.
    """
    old = sibling(out, "old")
    if is_packed(old) and not out.exists():
        old.rename(out)
    elif old.is_dir():
        _remove(old)
    if is_packed(out):
        shutil.rmtree(out / WORK, ignore_errors=True)


def sibling(out: Path, role: str) -> Path:
    """Return a hidden name beside `out`: rows -> .rows.packer-new."""
    whole = Path(os.path.abspath(out))  # noqa: PTH100 ("." has no name, and links must stay)
    return whole.parent / f".{whole.name}.packer-{role}"


def _remove(dataset: Path) -> None:
    """Delete a dataset; the manifest first, so that what is half deleted does not look whole."""
    (dataset / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(dataset)


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
