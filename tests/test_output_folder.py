"""A pack killed at any instant leaves a complete dataset, or the same command resumes to the same bytes.

Outputs in object storage are killed at the same instants; the process that resumes them is on another machine.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import packer
from packer.output import replace_folder
from packer.shards.manifest import is_packed
from packer.stores import AnyPath, local_files
from tests.helpers.kills import Killed, kill, named
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.small import shrink

MAX_LEN, SHARDS = 64, 23


def pack(source: Path, out: Path, **options):
    return packer.pack(source, out, **{"max_len": MAX_LEN, "shard_size": "6KB", "workers": 1, **options})


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A source, and two datasets that were packed from it undisturbed."""

    source: Path
    undisturbed: dict[str, str]
    old: Path


@pytest.fixture(scope="module", autouse=True)
def small_partitions():
    """Each shard is a partition, so that plans have several checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, partition_tokens=1)
        yield


@pytest.fixture(scope="module", params=["source.arrow", "source.jsonl"])
def made(request, small_partitions, tmp_path_factory) -> Made:
    """A source that is mapped, and one that must be decoded."""
    documents, folder = made_documents(300), tmp_path_factory.mktemp("made")
    path = folder / request.param
    if path.suffix == ".arrow":
        save_arrow(path, documents)
    else:
        path.write_text("".join(json.dumps({"input_ids": tokens}) + "\n" for tokens in documents))
    pack(path, folder / "undisturbed")
    pack(path, folder / "old", seed=9)
    return Made(source=path, undisturbed=hashes(folder / "undisturbed"), old=folder / "old")


@pytest.fixture
def source(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copy2(made.source, tmp_path))


@pytest.fixture
def undisturbed(made: Made) -> dict[str, str]:
    return made.undisturbed


def shards_in(out: AnyPath) -> set[str]:
    """Names of the committed shards."""
    return {path.name for path in out.iterdir() if path.name.startswith("data-")}


INSTANTS = {
    "after the request": ("request.json$", True, 0),
    "between a decoded stream and its checkpoint": (r"spill/.*-00000\.json$", False, 0),
    "before the mark of all streams": (r"\.unified$", False, 0),
    "before a checkpoint of the plan": ("checkpoints/.*/3$", False, 0),
    "after a checkpoint of the plan": ("checkpoints/.*/3$", True, 0),
    "before an entry": ("checkpoints/committed/11$", False, 11),
    "between an entry and its shard": (r"data-00011-.*\.arrow$", False, 11),
    "after a shard": (r"data-00011-.*\.arrow$", True, 12),
    "before the manifest": ("manifest.json$", False, SHARDS),
    "after the manifest": ("manifest.json$", True, SHARDS),
}


@pytest.mark.nightly(after=24)
@pytest.mark.parametrize("instant", INSTANTS)
def test_an_interrupted_pack_resumes_to_the_same_bytes(source, undisturbed, out, tmp_path, monkeypatch, instant):
    shrink(monkeypatch, heartbeat=0.05)
    name, after, shards = INSTANTS[instant]
    if "stream" in instant and source.suffix == ".arrow":
        pytest.skip("a mapped source is not decoded")
    if "all streams" in instant and isinstance(out, Path):
        pytest.skip("a single process needs no mark")
    named_again = []
    with monkeypatch.context() as striking:
        kill(striking, name, after=after)
        with pytest.raises(Killed):
            pack(source, out)
    assert is_packed(out) == (instant == "after the manifest")
    there = shards_in(out)
    assert bool(there) == bool(shards)
    assert len(there) == shards or not isinstance(out, Path)  # in a store, shards of the pool are written last
    with monkeypatch.context() as watching:
        watching.setattr(tempfile, "tempdir", tempfile.mkdtemp(dir=tmp_path))
        named(watching, lambda target, rename: (named_again.append(target), rename())[1])
        pack(source, out)
    planned = [target for target in named_again if "/checkpoints/" in target and "/committed/" not in target]
    assert bool(planned) == (shards == 0)  # nothing is planned again
    assert there.isdisjoint(target.rpartition("/")[2] for target in named_again)
    assert hashes(out) == undisturbed
    assert list(packer.verify(out, source)) == []


def test_a_partly_discarded_pack_is_not_mistaken_for_the_new_one(source, undisturbed, tmp_path):
    """A pack with --overwrite is killed after it removed the old request, but before it removed the rest."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as striking:
        kill(striking, "manifest.json$")
        with pytest.raises(Killed):
            pack(source, out, max_len=32, shard_size="3KB", seed=5)
    assert len(shards_in(out)) > SHARDS
    (out / ".packer" / "request.json").unlink()
    pack(source, out)
    assert hashes(out) == undisturbed


@pytest.mark.parametrize("work", ["empty", "with a file", "with an empty lock", "with checkpoints"])
@pytest.mark.parametrize("name", ["rejected.jsonl", "data-00000-of-00001.arrow", "notes.md"])
def test_a_folder_of_a_user_is_no_unfinished_pack_though_it_has_a_work_folder(source, out, name, work):
    inside = {
        "empty": [],
        "with a file": ["x"],
        "with an empty lock": ["lock"],
        "with checkpoints": ["checkpoints/0", "ranks/0"],
    }
    for each in (name, *(f".packer/{path}" for path in inside[work])):
        if isinstance(out, Path):
            (out / each).parent.mkdir(parents=True, exist_ok=True)
        (out / each).write_bytes(b"" if each.endswith("lock") else b"of a user")
    if work == "empty" and isinstance(out, Path):
        (out / ".packer").mkdir()
    for overwrite in (False, True):
        with pytest.raises(packer.PackerError, match="out exists and is not a packed dataset"):
            pack(source, out, overwrite=overwrite)
    assert (out / name).read_bytes() == b"of a user"
    assert shards_in(out) <= {name}


def test_a_folder_with_nothing_but_a_work_folder_is_packed_into(source, undisturbed, tmp_path):
    (tmp_path / "out" / ".packer").mkdir(parents=True)  # as a kill before the lock was made leaves it
    pack(source, tmp_path / "out")
    assert hashes(tmp_path / "out") == undisturbed


def test_an_unfinished_pack_with_shards_of_another_plan_is_not_resumed(source, undisturbed, tmp_path):
    """An earlier version placed documents by other rules, so its shards and the new ones would not fit together."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as striking:
        kill(striking, "manifest.json$")
        with pytest.raises(Killed):
            pack(source, out)
    request = out / ".packer" / "request.json"
    begun = json.loads(request.read_text())
    del begun["options"]["plan_version"]
    request.write_text(json.dumps(begun))
    with pytest.raises(packer.PackerError, match="unfinished pack of another version of packer, which places"):
        pack(source, out)
    pack(source, out, overwrite=True)
    assert hashes(out) == undisturbed


def test_a_partly_discarded_pack_is_not_resumed(source, undisturbed, tmp_path):
    """A pack with --overwrite is killed while it removes the plan; then the first command is repeated."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as striking:
        kill(striking, "manifest.json$")
        with pytest.raises(Killed):
            pack(source, out)
    with pytest.MonkeyPatch.context() as striking:

        def half(folder, **options):
            min(path for path in folder.rglob("*") if path.is_file()).unlink()
            raise Killed

        striking.setattr(shutil, "rmtree", half)
        with pytest.raises(Killed):
            pack(source, out, seed=5, overwrite=True)
    pack(source, out)
    assert hashes(out) == undisturbed


def test_a_swap_whose_second_rename_fails_undoes_the_first(source, old, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(replace_folder, "exchange", lambda one, other: False)
    rename = Path.rename

    def failing(self, target):
        if self.name.endswith("packer-new"):
            raise PermissionError(13, "Permission denied", str(self))
        return rename(self, target)

    with monkeypatch.context() as refusing:
        refusing.setattr(Path, "rename", failing)
        with pytest.raises(packer.PackerError, match="Permission denied"):
            pack(source, out, overwrite=True)
    assert hashes(out) == old


def test_a_file_system_without_locks_does_not_count_as_in_use(source, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(local_files.fcntl, "flock", refuse)
    with pytest.raises(packer.PackerError, match="Function not implemented"):
        pack(source, tmp_path / "out")


# --overwrite


@pytest.fixture
def old(made: Made, tmp_path: Path) -> dict[str, str]:
    """Hashes of a complete dataset at tmp_path/out that is about to be replaced."""
    return hashes(shutil.copytree(made.old, tmp_path / "out"))


def test_an_output_behind_a_link_is_replaced_in_place(source, undisturbed, old, tmp_path):
    (tmp_path / "link").symlink_to("out")
    pack(source, tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert hashes(tmp_path / "out") == undisturbed


# fsync


def watched(monkeypatch) -> list[tuple[str, set[int]]]:
    """Record every later sync, rename and removal: (operation, inodes of the path and of its content)."""
    done: list[tuple[str, set[int]]] = []
    fsync, rename, unlink = os.fsync, Path.rename, Path.unlink

    def syncing(descriptor):
        fsync(descriptor)
        done.append(("sync", {os.fstat(descriptor).st_ino}))

    def renaming(self, target):
        if not target.parent.is_dir() or {"checkpoints", "spill"} & {*target.parts}:
            return rename(self, target)  # fails, and is repeated; most of these are not synced, but made again
        inside = self.iterdir() if self.is_dir() else ()
        done.append(("rename", {path.stat().st_ino for path in (self, *inside)}))
        done.append(("into", {target.parent.stat().st_ino}))
        return rename(self, target)

    def unlinking(self, **options):
        done.append((f"remove {self.name}", set()))
        unlink(self, **options)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "rename", renaming)
    monkeypatch.setattr(Path, "unlink", unlinking)
    return done


def test_files_are_synced_before_renames_and_folders_right_after(source, tmp_path, monkeypatch):
    done = watched(monkeypatch)
    pack(source, tmp_path / "out")
    renames = [number for number, (what, _) in enumerate(done) if what == "rename"]
    assert len(renames) >= SHARDS + 4  # shards, the request, three small files
    for number in renames:
        (_, inodes), (_, folder) = done[number : number + 2]
        assert inodes <= set().union(*(synced for what, synced in done[:number] if what == "sync"))
        assert done[number + 2] == ("sync", folder)
    synced = [inodes for what, inodes in done if what == "sync"]
    assert synced[-2:] == [{path.stat().st_ino} for path in (tmp_path / "out", tmp_path)]


@pytest.mark.parametrize("exchanges", [True, False], ids=["renameat2", "two renames"])
def test_a_replacement_is_synced_before_the_old_one_is_removed(source, old, tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(replace_folder, "exchange", lambda one, other: False)
    done = watched(monkeypatch)
    pack(source, tmp_path / "out", overwrite=True)
    steps = [what if inodes != {tmp_path.stat().st_ino} else f"{what} here" for what, inodes in done]
    removed = steps.index("remove manifest.json")
    assert steps[removed - 3 : removed] == ["rename", "into here", "sync here"]


def test_nothing_is_synced_without_sync(source, tmp_path, monkeypatch):
    pack(source, tmp_path / "out", sync=False)
    done = watched(monkeypatch)
    pack(source, tmp_path / "out", sync=False, overwrite=True)
    assert {what for what, _ in done} >= {"rename", "remove manifest.json"}
    assert "sync" not in {what for what, _ in done}


# lock


def test_two_equal_packs_at_once_produce_one_dataset(source, tmp_path):
    def started(out: Path) -> subprocess.Popen:
        command = [sys.executable, "-m", "packer", "pack", str(source), "-o", str(out)]
        command += ["--max-len", str(MAX_LEN), "--shard-size", "6KB"]
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    both = [started(tmp_path / "out") for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert 0 in [process.returncode for process in both]
    for process, error in zip(both, errors, strict=True):
        assert process.returncode == 0 or "another packer" in error
    started(tmp_path / "alone").communicate(timeout=120)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "alone")
