"""--overwrite deletes only files that packer wrote, even if it is killed, and moves files of users along."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import packer
from packer.exporting.write_export import EXPORT
from packer.options import ReadOptions
from packer.output import replace_folder
from packer.output.job import Job
from packer.output.unfinished_output import PACKED, OutputKind
from packer.pipeline.tokenizing import TOKENIZED, tokenize
from packer.shards.file_names import all_shard_names
from tests.helpers.from_text import tokenizer  # noqa: F401 (a fixture)
from tests.helpers.kills import Killed
from tests.helpers.pack import made_documents, save_arrow
from tests.helpers.replace_folder import killed_at


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that makes either of two versions of an output."""

    kind: OutputKind
    run: Callable[..., object]
    """Called as run(out, version, overwrite), with version 0 or 1."""


@pytest.fixture(params=["pack", "tokenize", "export"])
def command(request, tmp_path, tokenizer) -> Command:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    if request.param == "tokenize":
        source = inputs / "rows.jsonl"
        source.write_text("".join(json.dumps({"text": f"The quick fox {number}"}) + "\n" for number in range(4)))

        def run(out: Path, version: int, overwrite: bool) -> object:
            options = ReadOptions(tokenizer=tokenizer, eos=not version)
            return tokenize(source, options=options, job=Job(output=out, workers=1, sync=False, overwrite=overwrite))

        return Command(kind=TOKENIZED, run=run)
    source = save_arrow(inputs / "source.arrow", made_documents(20))
    if request.param == "pack":

        def run(out: Path, version: int, overwrite: bool) -> object:
            size = ("6KB", "60KB")[version]  # another number of shards gives other names
            return packer.pack(source, out, max_len=64, shard_size=size, workers=1, sync=False, overwrite=overwrite)

        return Command(kind=PACKED, run=run)
    packer.pack(source, inputs / "packed", max_len=64, shard_size="6KB")

    def run(out: Path, version: int, overwrite: bool) -> object:
        target = ("parquet", "megatron")[version]
        return packer.export(inputs / "packed", out, to=target, workers=1, sync=False, overwrite=overwrite)

    return Command(kind=EXPORT, run=run)


def add_files_of_a_user(out: Path) -> dict[str, str]:
    (out / "NOTES.md").write_text("trained on 3 November")
    (out / ".hidden").write_text("hidden")
    (out / "runs" / "first").mkdir(parents=True)
    (out / "runs" / "first" / "log.txt").write_text("loss 2.1")
    (out / "data-mine.arrow").write_text("mine")
    (out / "data-00000-of-00099.arrow").write_text("copied here")
    (out / "latest").symlink_to("runs/first")
    return files_of_a_user(out)


def files_of_a_user(out: Path) -> dict[str, str]:
    """Content of the files that the record of the output does not list, by path."""
    own = {"manifest.json", "tokenized.json", "_export.json", "dataset_info.json", "state.json", ".packer"}
    record = next(path for name in ("manifest.json", "tokenized.json", "_export.json") if (path := out / name).exists())
    content = json.loads(record.read_bytes())
    if record.name == "manifest.json":
        own |= set(all_shard_names(len(content["shards"]["rows"])))
    else:
        own |= {entry["file"] for entry in content["files" if record.name == "_export.json" else "shards"]}
    own |= set(content.get("small_files", ()))
    paths = (path for path in out.rglob("*") if path.relative_to(out).parts[0] not in own)
    return {
        str(path.relative_to(out)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in paths
        if path.is_symlink() or path.is_file()
    }


def own_files(out: Path) -> dict[str, bytes]:
    theirs = files_of_a_user(out)
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file() and path.name not in theirs}


def hidden_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("exchanges", [True, False], ids=["renameat2", "two renames"])
def test_no_kill_during_a_replacement_loses_files_of_users(command, tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(replace_folder, "exchange", lambda one, other: False)
    out = tmp_path / "out"
    command.run(out, 1, False)
    new = own_files(out)
    command.run(out, 0, True)
    old, theirs, number = own_files(out), add_files_of_a_user(out), 0
    for number in range(1000):
        try:
            with killed_at(number):
                command.run(out, 1, True)
            is_killed = False
        except Killed:
            is_killed = True
            if out.exists():
                assert own_files(out) in (old, new)
            command.run(out, 1, True)  # the same command
        assert own_files(out) == new, number
        assert files_of_a_user(out) == theirs, number
        assert not hidden_in(tmp_path), number
        if not is_killed:
            break
        command.run(out, 0, True)
    assert number > 8


def test_after_a_kill_a_command_without_overwrite_moves_files_of_users_too(command, tmp_path, monkeypatch):
    out = tmp_path / "out"
    command.run(out, 0, False)
    theirs = add_files_of_a_user(out)

    def killed(old, out, kind, *, sync=False):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(replace_folder, "_retire", killed)
        with pytest.raises(Killed):
            command.run(out, 1, True)
    assert not files_of_a_user(out)
    with contextlib.suppress(packer.PackerError):  # an existing export is an error
        command.run(out, 1, False)
    assert files_of_a_user(out) == theirs
    assert not hidden_in(tmp_path)


def test_a_user_file_with_the_name_of_a_new_shard_is_kept_under_another_name(tmp_path):
    source, out = save_arrow(tmp_path / "source.arrow", made_documents(60)), tmp_path / "out"
    packer.pack(source, out, max_len=64, shard_size="6KB")
    (out / "data-00000-of-00001.arrow").write_text("mine")
    (out / "data-00000-of-00001.arrow.old").write_text("older")
    packer.pack(source, out, max_len=64, overwrite=True)
    assert (out / "data-00000-of-00001.arrow.old").read_text() == "older"
    assert (out / "data-00000-of-00001.arrow.old2").read_text() == "mine"
    assert [fault for fault in packer.verify(out, source) if "not named" not in fault] == []


def test_caches_of_replaced_rows_are_not_reused(tmp_path):
    """`datasets` finds caches by a fingerprint of the lengths, which does not change."""
    import datasets

    source, out = save_arrow(tmp_path / "source.arrow", made_documents(60)), tmp_path / "out"

    def first_tokens() -> list[int]:
        return datasets.load_from_disk(str(out)).map(lambda row: {"first": row["input_ids"][0]})["first"]

    packer.pack(source, out, max_len=64)
    before = first_tokens()
    packer.pack(source, out, max_len=64, seed=1, overwrite=True)
    assert first_tokens() == [row["input_ids"][0] for row in packer.load(out)] != before
    assert len(list(out.glob("cache-*.arrow.old"))) == 1


def test_an_old_output_is_kept_while_its_files_cannot_be_moved(tmp_path):
    """The command is killed between two renames; then a user creates a folder of the same name."""
    source, out = save_arrow(tmp_path / "source.arrow", made_documents(60)), tmp_path / "out"
    packer.pack(source, out, max_len=64)
    before = own_files(out)
    out.rename(tmp_path / ".out.packer-old")
    out.mkdir()
    (out / "other").write_text("")
    with pytest.raises(packer.PackerError, match="is not a packed dataset"):
        packer.pack(source, out, max_len=64, overwrite=True)
    assert own_files(tmp_path / ".out.packer-old") == before
    (out / "other").unlink()
    packer.pack(source, out, max_len=64)
    assert own_files(out) == before


# finished replacements that were not swapped in


def test_a_finished_replacement_is_swapped_in_and_not_made_again(tmp_path, monkeypatch):
    source, out = save_arrow(tmp_path / "source.arrow", made_documents(60)), tmp_path / "out"
    packer.pack(source, out, max_len=64, shard_size="6KB")
    with monkeypatch.context() as patch:
        patch.setattr(replace_folder, "swap", lambda *arguments, **options: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            packer.pack(source, out, max_len=64, shard_size="6KB", seed=1, overwrite=True)
    made = {path.name: path.stat().st_ino for path in (tmp_path / ".out.packer-new").glob("*.arrow")}
    packer.pack(source, out, max_len=64, shard_size="6KB", seed=1, overwrite=True)
    assert {path.name: path.stat().st_ino for path in out.glob("*.arrow")} == made
    assert list(packer.verify(out, source)) == []


@pytest.mark.parametrize("moment", ["rename of a stream", "last file", "swap"])
def test_a_kill_at_the_very_end_does_not_repeat_tokenizing(tmp_path, tokenizer, monkeypatch, moment):
    source, out = tmp_path / "rows.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"text": f"The quick fox {number}"}) + "\n" for number in range(40)))
    options = ReadOptions(tokenizer=tokenizer)
    with monkeypatch.context() as patch:
        usual = Path.rename

        def rename(path, target):
            last = {"rename of a stream": "data-00000-of-00001.arrow", "last file": "tokenized.json", "swap": "out"}
            if Path(target).name == last[moment]:
                if moment == "rename of a stream":
                    usual(path, target)
                raise Killed
            return usual(path, target)

        patch.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            tokenize(source, options=options, job=Job(output=out, workers=1))
    (made,) = (path.stat().st_ino for path in (tmp_path / ".out.packer-tokenizing").rglob("*.arrow"))
    tokenize(source, options=options, job=Job(output=out, workers=1))
    assert (out / "data-00000-of-00001.arrow").stat().st_ino == made
    assert not hidden_in(tmp_path)


# mount points


def mounts(monkeypatch, tmp_path, *points: Path) -> None:
    lines = (f"36 35 98:0 / {str(point).replace(' ', chr(92) + '040')} rw - ext4 /dev/a rw\n" for point in points)
    (tmp_path / "inputs" / "mountinfo").write_text("".join(lines))
    monkeypatch.setattr(replace_folder, "_MOUNTS", tmp_path / "inputs" / "mountinfo")


@pytest.mark.parametrize("below", [".", "runs", "with space/deeper"])
def test_an_output_that_cannot_be_renamed_is_rejected_before_any_work(command, tmp_path, monkeypatch, below):
    out = tmp_path / "out"
    command.run(out, 0, False)
    (out / below).mkdir(parents=True, exist_ok=True)
    before = own_files(out)
    mounts(monkeypatch, tmp_path, tmp_path / "out2", out / below)
    monkeypatch.setattr(replace_folder, "swap", None)
    monkeypatch.setattr(packer.engine, "run_tasks", None)
    with pytest.raises(packer.PackerError, match="mount point") as refused:
        command.run(out, 1, True)
    assert "output" in str(refused.value)
    assert own_files(out) == before
    assert not hidden_in(tmp_path)


def test_an_empty_mount_point_is_accepted_by_pack_only(command, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    mounts(monkeypatch, tmp_path, out)
    if command.kind is PACKED:
        command.run(out, 0, False)
        assert (out / "manifest.json").is_file()
    else:
        with pytest.raises(packer.PackerError, match=r"out is a mount point, .* choose a folder inside it"):
            command.run(out, 0, False)
        assert list(out.iterdir()) == []
        command.run(out / "inside", 0, False)
        assert (out / "inside" / command.kind.record).is_file()
