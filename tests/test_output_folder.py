"""A pack killed at any instant leaves a complete dataset, or the same command resumes to the same bytes."""

import ctypes
import fcntl
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import packer
from packer.executors import Stopped, run_tasks
from packer.notes import Note, NotesInStore
from packer.output import replace_folder
from packer.output.claim_folder import claim
from packer.output.claim_pack import claim_pack
from packer.output.request import Request
from packer.output.unfinished_output import Output
from packer.output.unfinished_pack import PACKED, UnfinishedPack
from packer.shards.file_names import shard_name
from packer.shards.manifest import is_packed
from packer.shards.manifest_fields import ShardEntry
from packer.stores import file_locks
from packer.stores.store import Folder
from tests.test_pack import hashes, made_documents, save_arrow

pack_module = importlib.import_module("packer.pipeline.packing")

MAX_LEN, SHARDS = 64, 23


class Killed(BaseException):
    """Simulates a kill: no code but cleanup handles it."""


def pack(source: Path, out: Path, **options):
    return packer.pack(source, out, **{"max_len": MAX_LEN, "shard_size": "6KB", "workers": 1, **options})


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A source, and two datasets that were packed from it undisturbed."""

    source: Path
    undisturbed: dict[str, str]
    old: Path


@pytest.fixture(scope="module", params=["source.arrow", "source.jsonl"])
def made(request, tmp_path_factory) -> Made:
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


def file_hashes(out: Path) -> dict[str, str]:
    """Hashes of the files, without the work folder that a kill may leave in a complete dataset."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir() if path.is_file()}


def shards_in(out: Path) -> dict[str, tuple[int, int]]:
    """Inode and mtime of every committed shard, which change if it is written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.glob("data-*.arrow")}


def kill(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, call: int = 0, after: bool = False) -> None:
    """Raise `Killed` at a call of a function, before or after it runs, and at every later call."""
    usual, calls = getattr(owner, name), iter(range(10**6))

    def struck(*arguments, **options):
        number = next(calls)
        result = usual(*arguments, **options) if number < call or (number == call and after) else None
        if number >= call:
            raise Killed(name)
        return result

    monkeypatch.setattr(owner, name, struck)


INSTANTS = {
    "before the scan": (pack_module, "read_documents", 0, False),
    "before the plan": (pack_module, "plan_documents", 0, False),
    "before a note of the plan": (NotesInStore, "save", 3, False),
    "after a note of the plan": (NotesInStore, "save", 3, True),
    "when the plan is made": (pack_module, "plan_documents", 0, True),
    "before any shard": (UnfinishedPack, "commit", 0, False),
    "in the midst of the shards": (UnfinishedPack, "commit", SHARDS // 2, False),
    "after half of the shards": (UnfinishedPack, "commit", SHARDS // 2, True),
    "before the end": (Output, "finish", 0, False),
    "after the end": (Output, "finish", 0, True),
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_an_interrupted_pack_resumes_to_the_same_bytes(source, undisturbed, tmp_path, monkeypatch, instant):
    owner, name, call, after = INSTANTS[instant]
    out = tmp_path / "out"
    with monkeypatch.context() as striking:
        kill(striking, owner, name, call=call, after=after)
        with pytest.raises(Killed):
            pack(source, out)
    assert is_packed(out) == (instant == "after the end")
    there = shards_in(out)
    assert len(there) >= {"in the midst of the shards": SHARDS // 2, "after half of the shards": SHARDS // 2 + 1}.get(
        instant, 0
    )
    kept = any((out / ".packer" / "notes").glob("*-rest/0"))
    assert kept == (instant not in list(INSTANTS)[:4])
    with monkeypatch.context() as watching:
        if kept:
            watching.setattr(
                "packer.pipeline.partitions.partitioning.note_rows", lambda *_: 1 / 0
            )  # planning again would fail
        pack(source, out)
    assert hashes(out) == undisturbed
    assert there.items() <= shards_in(out).items()
    assert list(packer.verify(out, source)) == []


WRITTEN = ["state.json", "dataset_info.json", "manifest.json", "request.json", f"data-00003-of-{SHARDS:05d}.arrow.json"]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("step", ["open", "fsync", "rename"])
def test_a_kill_while_writing_a_small_file_leaves_no_trace(source, undisturbed, tmp_path, monkeypatch, name, step):
    out, struck = tmp_path / "out", []
    put = Folder.put

    def putting(self, path, content, **how):
        if Path(path).name != name:
            return put(self, path, content, **how)
        with monkeypatch.context() as striking:
            owner = {"open": Path, "fsync": os, "rename": Path}[step]
            kill(striking, owner, step)
            struck.append(path)
            return put(self, path, content, **how)

    with monkeypatch.context() as striking:
        striking.setattr(Folder, "put", putting)
        with pytest.raises(Killed):
            pack(source, out)
    assert struck
    assert not is_packed(out)
    pack(source, out)
    assert hashes(out) == undisturbed  # of all files, so no temporary file is left


def test_a_shard_killed_between_its_entry_and_its_rename_is_written_again(source, undisturbed, tmp_path, monkeypatch):
    out, put = tmp_path / "out", Folder.put

    def putting(self, path, content, **how):
        put(self, path, content, **how)
        if Path(path).name.startswith("data-00005"):
            raise Killed

    with monkeypatch.context() as striking:
        striking.setattr(Folder, "put", putting)
        with pytest.raises(Killed):
            pack(source, out)
    (name,) = (path.stem for path in (out / ".packer" / "committed").glob("data-00005*"))
    assert not (out / name).exists()
    pack(source, out)
    assert hashes(out) == undisturbed


def test_a_shard_truncated_after_its_commit_is_written_again(source, undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as striking:
        kill(striking, Output, "finish")
        with pytest.raises(Killed):
            pack(source, out)
    os.truncate(min(out.glob("data-*.arrow")), 100)
    pack(source, out)
    assert hashes(out) == undisturbed


def test_temporary_files_of_a_dead_process_are_removed(source, undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as striking:
        kill(striking, UnfinishedPack, "commit", call=3)
        with pytest.raises(Killed):
            pack(source, out)
    left = out / ".packer" / f"data-00007-of-{SHARDS:05d}.arrow.99999"
    left.write_bytes(b"half a shard")
    with monkeypatch.context() as striking:
        kill(striking, Output, "finish")
        with pytest.raises(Killed):
            pack(source, out)
    assert not left.exists()
    pack(source, out)
    assert hashes(out) == undisturbed


def test_a_pack_interrupted_repeatedly_completes(source, undisturbed, tmp_path, monkeypatch):
    out, runs = tmp_path / "out", 0
    while not is_packed(out):
        there, runs = shards_in(out), runs + 1
        with monkeypatch.context() as striking:
            kill(striking, UnfinishedPack, "commit", call=3)
            try:
                pack(source, out)
            except Killed:
                assert len(shards_in(out)) == len(there) + 3
        assert there.items() <= shards_in(out).items()
    assert runs == SHARDS // 3 + 1
    assert hashes(out) == undisturbed


def test_a_partly_discarded_pack_is_not_mistaken_for_the_new_one(source, undisturbed, tmp_path):
    """A pack with --overwrite is killed after it removed the old request, but before it removed the rest."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as striking:
        kill(striking, Output, "finish")
        with pytest.raises(Killed):
            pack(source, out, max_len=32, shard_size="3KB", seed=5)
    assert len(shards_in(out)) > SHARDS
    (out / ".packer" / "request.json").unlink()
    pack(source, out)
    assert hashes(out) == undisturbed


def test_an_unfinished_pack_with_shards_of_another_plan_is_not_resumed(source, undisturbed, tmp_path):
    """An earlier version placed documents by other rules, so its shards and the new ones would not fit together."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as striking:
        kill(striking, Output, "finish")
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
        kill(striking, Output, "finish")
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

    monkeypatch.setattr(file_locks.fcntl, "flock", refuse)
    with pytest.raises(packer.PackerError, match="Function not implemented"):
        pack(source, tmp_path / "out")


def test_leftovers_of_a_kill_are_removed_from_a_complete_dataset(source, undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as striking:
        kill(striking, Output, "finish", after=True)
        with pytest.raises(Killed):
            pack(source, out)
    assert (out / ".packer").is_dir()
    assert len(packer.load(out)) == pack(source, out).packs
    assert hashes(out) == undisturbed


# --overwrite


@pytest.fixture
def old(made: Made, tmp_path: Path) -> dict[str, str]:
    """Hashes of a complete dataset at tmp_path/out that is about to be replaced."""
    return hashes(shutil.copytree(made.old, tmp_path / "out"))


REPLACING = INSTANTS | {
    "before the swap": (replace_folder, "swap", 0, False),
    "after the swap": (replace_folder, "swap", 0, True),
    "after the exchange": (replace_folder, "exchange", 0, True),
    "before the old one is removed": (replace_folder, "_retire", 0, False),
}


AT_THE_SWAP = list(REPLACING)[len(INSTANTS) - 2 :]


@pytest.mark.parametrize(
    ("instant", "exchanges"), [*((name, True) for name in REPLACING), *((name, False) for name in AT_THE_SWAP)]
)
def test_a_complete_dataset_survives_a_kill_during_its_replacement(
    source, undisturbed, old, tmp_path, monkeypatch, instant, exchanges
):
    owner, name, call, after = REPLACING[instant]
    out = tmp_path / "out"
    if not exchanges:
        monkeypatch.setattr(replace_folder, "exchange", lambda one, other: False)
    with monkeypatch.context() as striking:
        kill(striking, owner, name, call=call, after=after)
        with pytest.raises(Killed):
            pack(source, out, overwrite=True)
    replaced = (instant in ("after the exchange",) and exchanges) or instant in (
        "after the swap",
        "before the old one is removed",
    )
    assert file_hashes(out) == (undisturbed if replaced else old)
    assert len(packer.load(out)) > 0
    pack(source, out, overwrite=True)
    assert hashes(out) == undisturbed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", source.name]


@pytest.mark.parametrize("exchanges", [True, False], ids=["renameat2", "two renames"])
def test_a_kill_while_removing_the_old_dataset_leaves_nothing_in_the_way(
    source, undisturbed, old, tmp_path, monkeypatch, exchanges
):
    out = tmp_path / "out"
    if not exchanges:
        monkeypatch.setattr(replace_folder, "exchange", lambda one, other: False)
    with monkeypatch.context() as striking:
        rmtree = shutil.rmtree

        def half(folder, **options):
            if Path(folder).name.endswith("-old"):
                assert not is_packed(folder)  # a partly deleted dataset does not look complete
                min(folder.glob("data-*")).unlink()
                raise Killed
            rmtree(folder, **options)

        striking.setattr(shutil, "rmtree", half)
        with pytest.raises(Killed):
            pack(source, out, overwrite=True)
    assert file_hashes(out) == undisturbed
    assert len(list(tmp_path.iterdir())) == 3
    pack(source, out, seed=9, overwrite=True)
    assert hashes(out) == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", source.name]


def test_a_kill_between_the_two_renames_loses_nothing(source, undisturbed, old, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(replace_folder, "exchange", lambda one, other: False)
    with monkeypatch.context() as striking:
        rename, moved = Path.rename, []

        def struck(self, target):
            if self == out:
                moved.append(target)
            elif moved:
                raise Killed
            return rename(self, target)

        striking.setattr(Path, "rename", struck)
        with pytest.raises(Killed):
            pack(source, out, overwrite=True)
    assert not out.exists()
    assert hashes(moved[0]) == old
    replace_folder.restore(out, PACKED)
    assert hashes(out) == old
    pack(source, out, overwrite=True)
    assert hashes(out) == undisturbed


def test_a_partly_removed_old_dataset_does_not_come_back(source, undisturbed, tmp_path):
    out, leftover = tmp_path / "out", tmp_path / ".out.packer-old"
    leftover.mkdir()
    (leftover / f"data-00001-of-{SHARDS:05d}.arrow").write_bytes(b"half")
    pack(source, out)
    assert not leftover.exists()
    assert hashes(out) == undisturbed


def test_swap_replaces_one_folder_by_another(tmp_path):
    for name, content in (("out", "old"), ("new", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"shards": [{"file": "content"}], "files": {}}))
        (tmp_path / name / "content").write_text(content)
    replace_folder.swap(tmp_path / "out", tmp_path / "new", PACKED, sync=True)
    assert (tmp_path / "out" / "content").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_swap_without_renameat2_uses_two_renames(tmp_path, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: object())  # a C library without renameat2
    assert replace_folder.exchange(tmp_path / "one", tmp_path / "other") is False
    test_swap_replaces_one_folder_by_another(tmp_path)


def test_a_swap_with_a_missing_replacement_keeps_the_dataset(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    with pytest.raises(FileNotFoundError):
        replace_folder.swap(tmp_path / "out", tmp_path / "gone", PACKED, sync=True)
    assert (tmp_path / "out").is_dir()


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
        if not target.parent.is_dir():
            return rename(self, target)  # fails, and is repeated when the folder is made
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
    save = NotesInStore.save  # most notes are not synced, because damaged ones are made again
    monkeypatch.setattr(
        NotesInStore, "save", lambda self, name, note, lasting=False: save(self, name, note, lasting=True)
    )
    done = watched(monkeypatch)
    pack(source, tmp_path / "out")
    renames = [number for number, (what, _) in enumerate(done) if what == "rename"]
    assert len(renames) >= 2 * SHARDS + 5  # shards and notes, the request, the plan, three small files
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


def test_only_one_process_works_in_a_folder(tmp_path):
    out, request = tmp_path / "out", Request(options={}, files=(), texts={})
    with (
        claim(out, PACKED, request, sync=False, overwrite=False) as claimed,
        pytest.raises(packer.PackerError, match="in use by another packer"),
        claim(out, PACKED, request, sync=False, overwrite=True),
    ):
        pass
    assert claimed.work.is_dir()
    with claim(out, PACKED, request, sync=False, overwrite=False):
        pass


def test_a_process_that_waited_while_another_finished_reports_it(tmp_path, monkeypatch):
    flock, out = fcntl.flock, tmp_path / "out"

    def finishing(lock, operation):
        (out / "manifest.json").write_text("{}")
        flock(lock, operation)

    monkeypatch.setattr(file_locks.fcntl, "flock", finishing)
    claiming = claim(out, PACKED, Request(options={}, files=(), texts={}), sync=False, overwrite=True)
    with pytest.raises(packer.PackerError, match="finished by another packer just now"), claiming:
        pass
    assert [path.name for path in out.iterdir()] == ["manifest.json"]


def test_two_equal_packs_at_once_produce_one_dataset(source, undisturbed, tmp_path):
    command = [sys.executable, "-m", "packer", "pack", str(source), "-o", str(tmp_path / "out")]
    command += ["--max-len", str(MAX_LEN), "--shard-size", "6KB"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in both]
    assert 0 in [process.returncode for process in both]
    for process, error in zip(both, errors, strict=True):
        assert process.returncode == 0 or "another packer" in error
    assert hashes(tmp_path / "out") == undisturbed


def test_after_an_error_tasks_that_have_not_begun_are_cancelled():
    begun = []

    def task(number: int, raise_if_cancelled) -> None:
        begun.append(number)
        time.sleep(0.01)
        raise packer.PackerError(f"task {number}")

    with pytest.raises(packer.PackerError, match="task 0"):
        list(run_tasks(task, range(100), 1))
    assert len(begun) < 10


def test_looking_for_very_many_files_opens_only_those_that_are_there(tmp_path, monkeypatch):
    """A rank that waits looks again and again, perhaps over a network."""
    request = Request(options={}, files=(), texts={})
    with claim_pack(tmp_path / "out", request, sync=False, overwrite=False, shared=False, patience=1) as claimed:
        notes = NotesInStore(claimed)
        notes.save("stage-7", Note(facts={"rows": 3}))
        (claimed.work / "shard").write_bytes(b"12345")
        counts = {"rows": 1, "tokens": 1, "trained": 0, "untrained_segments": 0}
        entry = ShardEntry(file=shard_name(8, 50_000), bytes=5, xxh3_128="0" * 32, **counts)
        claimed.commit(claimed.work / "shard", entry)
        opened = []
        usual = Path.open
        monkeypatch.setattr(
            Path, "open", lambda path, *how, **more: opened.append(path.name) or usual(path, *how, **more)
        )
        assert notes.facts_of("stage", range(50_000)) == {7: {"rows": 3}}
        assert claimed.committed([shard_name(number, 50_000) for number in range(50_000)]) == {entry.file: entry}
        assert opened == ["7", f"{entry.file}.json"]
        shutil.rmtree(claimed.work)
        assert notes.facts_of("stage", range(9)) == claimed.committed([entry.file]) == {}


def test_few_tasks_wait_however_many_there_are():
    """A million tasks that wait would take a gigabyte."""
    taken, ended, waiting = [], [], []

    class Tasks(list):
        def __iter__(self):
            for number in super().__iter__():
                taken.append(number)
                waiting.append(len(taken) - len(ended))
                yield number

    found = []
    for number in run_tasks(lambda number, _: number, Tasks(range(200)), 2):
        ended.append(number)
        found.append(number)
    assert sorted(found) == list(range(200))
    assert max(waiting) <= 7


def test_after_an_error_tasks_that_have_begun_are_stopped():
    begun, stopped = threading.Event(), threading.Event()

    def task(number: int, raise_if_cancelled) -> None:
        if number == 0:
            begun.wait(60)
            raise MemoryError
        begun.set()
        try:
            while True:
                raise_if_cancelled()
                time.sleep(0.001)
        except Stopped:
            stopped.set()
            raise

    with pytest.raises(MemoryError):
        list(run_tasks(task, range(2), 2))
    assert stopped.is_set()


# a process that is really killed


def kill_halfway(source: Path, out: Path) -> tuple[int, str]:
    """Run the command in another process and kill it after its first shards; return (exit code, stderr).

    If the process finishes before it is killed because the machine is busy, it is run again.
    """
    command = [sys.executable, "-m", "packer", "pack", str(source), "-o", str(out), "--max-len", "512"]
    command += ["--shard-size", "400KB", "--workers", "2"]
    for _ in range(5):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while len(list(out.glob("data-*.arrow"))) < 3 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.kill()
        error = process.communicate(timeout=60)[1]
        if process.returncode:
            break
        shutil.rmtree(out)
    return process.returncode, error


def test_the_same_command_finishes_what_a_killed_process_left(tmp_path):
    """A source that takes long enough to pack to be interrupted halfway."""
    source, out, whole = tmp_path / "source.arrow", tmp_path / "out", tmp_path / "whole"
    save_arrow(source, made_documents(40_000, longest=400))
    packer.pack(source, whole, max_len=512, shard_size="400KB")
    code, error = kill_halfway(source, out)
    assert code == -signal.SIGKILL
    assert "packer: " not in error
    there = shards_in(out)
    assert 3 <= len(there) < len(shards_in(whole))  # it was killed halfway
    with pytest.raises(packer.PackerError, match="unfinished"):
        packer.load(out)
    packer.pack(source, out, max_len=512, shard_size="400KB")
    assert hashes(out) == hashes(whole)
    assert there.items() <= shards_in(out).items()
