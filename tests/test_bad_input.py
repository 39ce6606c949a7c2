"""Outputs that cannot be written, used or believed: one line that helps, and nothing is left that looks whole."""

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.bad_input import write_source
from tests.helpers.commands import refused, succeeded
from tests.helpers.kills import kill
from tests.helpers.pack import hashes, made_documents, save_arrow


def size_of(path: Path) -> int:
    return path.stat().st_size


# What is at OUT


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_arrow(tmp_path / "source.arrow", made_documents(300))


def pack_command(source: Path, out: Path, *more: object) -> tuple[object, ...]:
    """A command of about 14 shards."""
    return ("pack", source, "-o", out, "--max-len", 64, "--shard-size", "6KB", "--workers", 1, *more)


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything by which a rewritten file gives itself away; a lock is opened by whoever asks."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@contextlib.contextmanager
def interrupted(shards: int):
    with pytest.MonkeyPatch.context() as monkeypatch:
        kill(monkeypatch, f"data-{shards:05d}-", error=KeyboardInterrupt)
        yield


@pytest.fixture
def unfinished(tmp_path: Path, source: Path) -> Path:
    out = tmp_path / "out"
    with interrupted(3):
        refused(*pack_command(source, out), words=("interrupted", "the same command"), code=130)
    assert len(list(out.glob("data-*.arrow"))) == 3
    return out


@pytest.fixture
def complete(tmp_path: Path, source: Path) -> Path:
    succeeded(*pack_command(source, tmp_path / "out"))
    return tmp_path / "out"


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_file_or_a_folder_of_others_is_never_touched(tmp_path, source, more):
    file, folder, named_alike = tmp_path / "file", tmp_path / "folder", tmp_path / "alike"
    file.write_text("mine")
    for mine, name in ((folder, "thesis.tex"), (named_alike, "manifest.json")):
        mine.mkdir()
        (mine / name).write_text('{"mine": 1}')
    before = state_of(tmp_path)
    refused(*pack_command(source, file, *more), words=(str(file), "not a folder", "another --output"))
    refused(*pack_command(source, folder, *more), words=(str(folder), "not a packed dataset", "another --output"))
    refused(
        *pack_command(source, named_alike, *more),
        words=(str(named_alike), "was not written by packer", "another folder"),
    )
    refused(
        *pack_command(source, file / "below", *more), words=(str(file / "below"), "Not a directory", "another folder")
    )
    assert state_of(tmp_path) == before


def test_an_empty_folder_is_taken(tmp_path, source):
    (tmp_path / "out").mkdir()
    succeeded(*pack_command(source, tmp_path / "out"))


@pytest.mark.parametrize("out", [".", "..", "", "/"])
def test_folders_without_a_name_of_their_own_are_refused(tmp_path, source, monkeypatch, out):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    refused(*pack_command(source, Path(out)), words=("not a packed dataset", "--output"))
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_command_on_a_complete_dataset_says_so_and_touches_nothing(source, complete):
    before = state_of(complete)
    assert "is complete" in succeeded(*pack_command(source, complete))
    assert json.loads(succeeded(*pack_command(source, complete, "--json")))["found_complete"] is True
    assert state_of(complete) == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--max-len", 32), ("max_len 64, not 32",)),
        (("--algorithm", "ffd"), ("algorithm auto, not ffd",)),
        (("--seed", 7), ("seed 0, not 7",)),
        (("--long", "drop"), ("long split, not drop",)),
        (("--no-labels",), ("labels True, not False",)),
        (("--max-segments", 2), ("max_segments None, not 2",)),
    ],
)
def test_other_options_are_refused_with_both_values(source, complete, more, words):
    before = state_of(complete)
    refused(*pack_command(source, complete, *more), words=(str(complete), *words, "--output", "--overwrite"))
    assert state_of(complete) == before


@pytest.mark.parametrize("more", [("--max-len", 32), ("--seed", 7)])
def test_an_unfinished_pack_of_other_options_is_refused_with_both_values(source, unfinished, more):
    before = state_of(unfinished)
    word = f"{more[0][2:].replace('-', '_')} {64 if more[1] == 32 else 0}, not {more[1]}"
    words = (str(unfinished), "unfinished", word, "repeat that command", "--overwrite")
    refused(*pack_command(source, unfinished, *more), words=words)
    assert state_of(unfinished) == before
    succeeded(*pack_command(source, unfinished))


def test_an_unfinished_pack_is_no_source(source, unfinished):
    words = (str(unfinished), "unfinished", "give the dataset it is packed from")
    refused("pack", unfinished, "--max-len", 64, words=words)
    refused("stats", unfinished, words=words)


@pytest.mark.parametrize("name", ["rows.arrow", "rows.parquet", "rows.jsonl.gz"])
def test_another_or_a_changed_source_is_refused(tmp_path, name):
    documents = made_documents(50)
    source, out = write_source(tmp_path / name, documents), tmp_path / "out"
    succeeded("pack", source, "-o", out, "--max-len", 64)
    before = state_of(out)
    other = write_source(tmp_path / f"other-{name}", documents)
    refused("pack", other, "-o", out, "--max-len", 64, words=("other source files", "--overwrite"))
    write_source(source, documents[:-1])
    refused("pack", source, "-o", out, "--max-len", 64, words=("has changed since", "--overwrite"))
    assert state_of(out) == before
    succeeded("pack", source, "-o", out, "--max-len", 64, "--overwrite")
    assert "is verified" in succeeded("verify", out, "--source", source)


def test_lengths_that_change_within_a_file_of_the_same_size_are_noticed(tmp_path, complete):
    documents = made_documents(300)
    source = save_arrow(tmp_path / "source.arrow", [*documents[100:200], *documents[:100], *documents[200:]])
    refused(*pack_command(source, complete), words=("has changed since", "--overwrite"))


def test_so_they_are_before_an_unfinished_pack_goes_on(source, unfinished):
    documents, before = made_documents(300), source.stat()
    save_arrow(source, [*documents[100:200], *documents[:100], *documents[200:]])
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(*pack_command(source, unfinished), words=("started from a source that has changed since", "--overwrite"))


@contextlib.contextmanager
def held(lock: Path):
    """Hold a lock in another process."""
    code = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print('held'); input()"
    other = subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield
    finally:
        other.communicate("\n")


@pytest.mark.parametrize("more", [(), ("--overwrite",), ("--max-len", 32, "--overwrite")])
def test_an_output_in_use_by_another_process_is_refused(source, unfinished, more):
    before = state_of(unfinished)
    with held(unfinished / ".packer" / "lock"):
        words = (str(unfinished), "in use by another packer", "--output")
        refused(*pack_command(source, unfinished, *more), words=words)
        assert state_of(unfinished) == before
    succeeded(*pack_command(source, unfinished))


def test_overwrite_replaces_a_complete_dataset_and_an_unfinished_one(tmp_path, source, complete):
    fresh = tmp_path / "fresh"
    succeeded(*pack_command(source, fresh, "--seed", 1))
    succeeded(*pack_command(source, complete, "--seed", 1, "--overwrite"))
    assert hashes(complete) == hashes(fresh)
    with interrupted(2):
        refused(*pack_command(source, tmp_path / "half", "--shard-size", "9KB"), words=("interrupted",), code=130)
    succeeded(*pack_command(source, tmp_path / "half", "--seed", 1, "--overwrite"))
    assert hashes(tmp_path / "half") == hashes(fresh)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "half", "out", "source.arrow"]


def test_a_source_error_during_overwrite_leaves_the_complete_dataset(tmp_path, source, complete):
    before = state_of(complete)
    bad = write_source(tmp_path / "bad.jsonl", [[1], [-1]])
    refused("pack", bad, "-o", complete, "--max-len", 64, "--overwrite", words=("document 1", "-1"))
    assert state_of(complete) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "out", "source.arrow"]


def test_a_bad_source_leaves_the_unfinished_pack_of_a_good_one(source, unfinished):
    before, whole = state_of(unfinished), source.read_bytes()
    times = source.stat()
    source.write_bytes(whole[: len(whole) // 2])
    refused(*pack_command(source, unfinished), words=("source.arrow", "truncated"))
    save_arrow(source, made_documents(299))
    refused(*pack_command(source, unfinished), words=("unfinished", "source that has changed since", "--overwrite"))
    assert state_of(unfinished) == before
    source.write_bytes(whole)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    succeeded(*pack_command(source, unfinished))
    after = state_of(unfinished)
    shards = {path for path in before if Path(path).name.startswith("data-") and path.endswith(".arrow")}
    assert all(after[path] == before[path] for path in shards)


def test_a_wrong_token_met_on_resuming_removes_what_was_begun(tmp_path):
    documents = made_documents(300)
    documents[250] = [4, -4]
    source, out = save_arrow(tmp_path / "source.arrow", documents), tmp_path / "out"
    with interrupted(1):
        refused(*pack_command(source, out), words=("interrupted",), code=130)
    assert len(list(out.glob("data-*.arrow"))) == 1
    refused(*pack_command(source, out), words=("document 250 (source.arrow row 250)", "-4", "position 1"))
    assert list(tmp_path.iterdir()) == [source]


# What the system refuses


def test_a_lack_of_memory_is_one_line(source, tmp_path, monkeypatch):
    def allocate(*arguments, **options):
        raise MemoryError("Unable to allocate 16.0 GiB")

    monkeypatch.setattr(importlib.import_module("packer.pipeline.packing"), "plan_documents", allocate)
    refused(*pack_command(source, tmp_path / "out"), words=("out of memory", "16.0 GiB", "--max-len"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(tmp_path, source):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    refused(*pack_command(source, closed / "out"), words=(str(closed), "Permission denied", "another folder"))


@pytest.fixture
def mounted(tmp_path: Path):
    """Mount a file system of some size and mode; skips where that is not allowed."""
    mounts = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mount-{len(mounts)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this process may not mount")
        mounts.append(folder)
        return folder

    yield mount
    for folder in mounts:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a plan may still be mapped


def test_a_disk_that_is_really_full(tmp_path, source, mounted):
    disk = mounted("size=150k")
    refused(*pack_command(source, disk / "out"), words=(str(disk), "free some space", "repeat the same command"))
    assert not (disk / "out" / "manifest.json").exists()
    subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
    before = {path.name: path.stat().st_ino for path in (disk / "out").glob("data-*.arrow")}
    succeeded(*pack_command(source, disk / "out"))
    assert before.items() <= {path.name: path.stat().st_ino for path in (disk / "out").iterdir()}.items()
    succeeded(*pack_command(source, tmp_path / "elsewhere"))
    assert hashes(disk / "out") == hashes(tmp_path / "elsewhere")


def test_a_file_system_that_is_really_read_only(source, mounted):
    disk = mounted("size=1m,ro")
    refused(*pack_command(source, disk / "out"), words=(str(disk), "Read-only file system", "another folder"))


# A shard that was changed after packing


def test_verify_names_a_file_that_does_not_belong(complete):
    (complete / "data-00099-of-00100.arrow").write_bytes(b"")
    refused("verify", complete, words=("data-00099-of-00100.arrow", "not listed in the manifest"), code=3)


def test_a_truncated_grown_or_missing_shard_is_named_by_loader_and_verify(complete):
    path = min(complete.glob("data-*.arrow"))
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(content)
        words = (path.name, f"{len(content):,} bytes", f"{len(whole):,}", "changed after packing")
        refused("verify", complete, words=words, code=3)
        refused("show", complete, 0, words=words)
        refused("stats", complete, words=words)
    path.unlink()
    refused("verify", complete, words=(path.name, "missing", "pack again"), code=3)
    refused("show", complete, 0, words=(path.name, "missing", "pack again"))


def test_a_shard_of_other_rows_than_the_manifest_says_is_refused(complete):
    manifest = complete / "manifest.json"
    content = json.loads(manifest.read_bytes())
    rows = content["shards"]["rows"][1]
    content["shards"]["rows"][1] += 1
    manifest.write_text(json.dumps(content))
    refused("show", complete, 0, words=("data-00001", f"{rows} rows", f"says {rows + 1}"))
    refused("verify", complete, words=("manifest.json", "checksum"), code=3)


def test_a_manifest_of_another_version_or_without_what_readers_need_is_refused(source, complete):
    manifest = complete / "manifest.json"
    content = json.loads(manifest.read_bytes())
    for broken, words in (
        (content | {"format_version": 4}, ("version 4", "reads 1: upgrade packer")),
        ({**content, "source": {}}, ("damaged", "files")),
        ({**content, "shards": None}, ("damaged",)),
        ([], ("damaged",)),
    ):
        manifest.write_text(json.dumps(broken))
        for command in (("verify", complete), ("show", complete, 0), ("stats", complete)):
            refused(*command, words=(str(manifest), *words))
        refused(*pack_command(source, complete, "--overwrite"), words=(str(manifest), *words))
