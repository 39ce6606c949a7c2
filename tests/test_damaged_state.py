"""A damaged file of an unfinished output is made again or named in one line, and --overwrite replaces it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import packer
from tests.helpers.kills import Killed, kill
from tests.helpers.pack import hashes, made_documents
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines

FILES = [
    "lock",
    "request.json",
    "*/checkpoints/source",
    "*/checkpoints/solved",
    "*/checkpoints/partitions-*/1",
    "*/spill/00000-00000.arrow",
    "*/spill/00000-00000.json",
    "*/checkpoints/committed/2",
    "*/checkpoints",
    "*/spill",
    "*/checkpoints/committed",
]


def as_folder(path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)
    (path / "folder").mkdir(parents=True)


def as_pipe(path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)
    os.mkfifo(path)


def option_renamed(path: Path) -> None:
    """Change the name of each option of a request, so that those without a default are missing."""
    content = json.loads(path.read_bytes() or b"{}") if path.name == "request.json" else {}
    if "options" in content:
        content["options"] = {name[::-1]: value for name, value in content["options"].items()}
        path.write_text(json.dumps(content))


def first_value_changed(path: Path) -> None:
    """Change a value of JSON, or a byte in the middle of another file."""
    content = bytearray(path.read_bytes())
    try:
        changed = json.loads(content)
        name = next(iter(changed))
        changed[name] = {"other": 5} if isinstance(changed[name], dict) else 5
        content = json.dumps(changed).encode()
    except ValueError:
        if content:
            content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbled": lambda path: path.write_bytes(b"\xff\x00garbled" * 20),
    "changed": first_value_changed,
    "a list": lambda path: path.write_text("[]"),
    "null": lambda path: path.write_text("null"),
    "other types": lambda path: path.write_text(
        '{"options": 1, "files": [3], "facts": {}, "made_from": null, "file": 1}'
    ),
    "other names": option_renamed,
    "a folder": as_folder,
    "a pipe": as_pipe,
    "missing": lambda path: path.unlink() if path.is_file() else shutil.rmtree(path),
}


@pytest.fixture(scope="module", autouse=True)
def small_partitions():
    """Each shard is a partition, so that plans have several checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, partition_tokens=1)
        yield


@pytest.fixture(scope="module")
def source(small_partitions, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("source") / "rows.jsonl"
    return write_lines(path, [{"input_ids": tokens} for tokens in made_documents(100)])


CELLS = [(name, damage) for name in FILES for damage in DAMAGES]


def pack(source: Path, out: Path, **options) -> packer.Manifest:
    return packer.pack(source, out, max_len=64, shard_size="6KB", workers=1, sync=False, **options)


def shards_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every committed shard: one that is written again has others."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("data-*.arrow")}


@pytest.fixture(scope="module")
def expected(source) -> dict[str, str]:
    pack(source, source.parent / "expected")
    return hashes(source.parent / "expected")


@pytest.fixture(scope="module")
def unfinished(source) -> Path:
    """An output with five committed shards and some missing ones."""
    out = source.parent / "unfinished"
    with pytest.MonkeyPatch.context() as striking:
        kill(striking, "data-00005-")
        with pytest.raises(Killed):
            pack(source, out)
    assert len(shards_in(out)) == 5
    return out


@pytest.mark.nightly(after=len(CELLS) // 10)
@pytest.mark.parametrize(("name", "damage"), [cell for first in range(5) for cell in CELLS[first::5]])
def test_damaged_state_is_repaired_or_named_in_one_line_and_overwritten(
    source, expected, unfinished, tmp_path, name, damage
):
    of_folders = ("a folder", "a pipe", "missing", "emptied")
    if name in ("*/checkpoints", "*/spill", "*/checkpoints/committed") and damage not in of_folders:
        pytest.skip("a folder has no bytes")
    for overwrite in (False, True):
        out = shutil.copytree(unfinished, tmp_path / f"out-{overwrite}")
        (damaged,) = (out / ".packer").glob(name)
        if damage == "emptied" and damaged.is_dir():
            shutil.rmtree(damaged)
            damaged.write_bytes(b"")  # a file instead of a folder
        else:
            DAMAGES[damage](damaged)
        told = None
        try:
            pack(source, out, overwrite=overwrite)
        except packer.PackerError as error:
            told = str(error)
        if told is not None:
            assert not overwrite
            assert "_" not in told.removeprefix(str(out)).replace("max_len", "")
            assert "overwrite" in told
            assert damaged.name in told or "unfinished pack" in told
            pack(source, out, overwrite=True)
        assert hashes(out) == expected


@pytest.mark.parametrize("damage", ["emptied", "truncated", "zeroed", "list offsets"])
def test_a_damaged_decoded_copy_is_not_called_a_corrupt_source_by_ranks(source, expected, tmp_path, damage):
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as striking:
        kill(striking, "data-00005-")
        with pytest.raises(Killed):
            packer.pack(source, out, max_len=64, shard_size="6KB", ranks="0/1", workers=1)
    (stream,) = (out / ".packer").glob("*/spill/*.arrow")
    if damage == "list offsets":
        content = bytearray(stream.read_bytes())
        content[content.index(b"\0" * 4 + len(made_documents(100)[0]).to_bytes(4, "little")) + 7] = 0x70
        stream.write_bytes(content)
    else:
        DAMAGES[damage](stream)
    told = (
        f"^{stream.parent}: the decoded copy of rows.jsonl is damaged: remove this folder, and repeat the same command$"
    )
    with pytest.raises(packer.PackerError, match=told):
        packer.pack(source, out, max_len=64, shard_size="6KB", ranks="0/1")
    assert len(shards_in(out)) == 5
    shutil.rmtree(stream.parent)
    packer.pack(source, out, max_len=64, shard_size="6KB", ranks="0/1")
    assert hashes(out) == expected


@pytest.mark.parametrize("damage", ["zeroed", "changed", "truncated"])
def test_only_a_damaged_shard_is_written_again(source, expected, unfinished, tmp_path, damage):
    out = shutil.copytree(unfinished, tmp_path / "out")
    (damaged,) = out.glob("data-00001-of-*.arrow")
    DAMAGES[damage](damaged)
    before = shards_in(out)
    pack(source, out)
    assert hashes(out) == expected
    after = shards_in(out)
    assert {name for name in before if before[name] != after[name]} == {damaged.name}


def test_a_task_of_several_small_shards_is_done_again_if_one_is_missing(source, expected, tmp_path, monkeypatch):
    shrink(monkeypatch, shard_tasks=3)
    out = tmp_path / "out"
    with monkeypatch.context() as striking:
        kill(striking, "data-00003-of-00007")
        with pytest.raises(Killed):
            pack(source, out)
    before = shards_in(out)
    pack(source, out)
    kept = sorted(name for name, state in shards_in(out).items() if state == before.get(name))
    assert len(before) == 3
    assert kept == ["data-00000-of-00007.arrow", "data-00001-of-00007.arrow"]
    assert hashes(out) == expected


def test_checking_committed_shards_reports_progress(source, unfinished, tmp_path):
    out, steps = shutil.copytree(unfinished, tmp_path / "out"), []
    pack(source, out, progress=lambda *step: steps.append(step))
    checked = [step for step in steps if step[0] == "check"]
    assert len(checked) == 5
    assert checked[-1][1] == checked[-1][2] == sum(path.stat().st_size for path in unfinished.glob("*.arrow"))


def test_overwrite_starts_again_if_lengths_in_memory_have_changed(tmp_path):
    """A dataset in memory has no modification time that would reveal a change."""
    import datasets

    documents, out = made_documents(100), tmp_path / "out"
    with pytest.MonkeyPatch.context() as striking:
        kill(striking, "data-00005-")
        with pytest.raises(Killed):
            pack(datasets.Dataset.from_dict({"input_ids": documents}), out)
    changed = datasets.Dataset.from_dict({"input_ids": documents[::-1]})
    with pytest.raises(packer.PackerError, match="has changed since: start again with overwrite"):
        pack(changed, out)
    pack(changed, out, overwrite=True)
    assert list(packer.verify(out, changed)) == []
