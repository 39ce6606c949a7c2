"""Untrusted packed datasets: no command reads or writes outside their folder, and none hangs."""

import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import packer
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.packed_rows import (
    LENGTHS,
    MAX_LEN,
    edit_manifest,
    fit_manifest,
    make,
    rewrite_shards,
    tokens_of,
    write_source,
)
from tests.helpers.writing import write_ipc


@pytest.fixture
def folder(tmp_path, packed):
    """A writable packed dataset with several shards, in a folder beside its source."""
    write_source(tmp_path / "source.arrow", LENGTHS)
    return shutil.copytree(packed, tmp_path / "packed")


def commands(folder: Path) -> list[list[str]]:
    """Return every command that reads a packed dataset."""
    source = str(folder.parent / "source.arrow")
    again = ["pack", source, "-o", str(folder), "--max-len", str(MAX_LEN)]
    return [
        ["verify", str(folder)],
        ["verify", str(folder), "--source", source],
        ["show", str(folder), "0"],
        ["stats", str(folder)],
        *(["export", str(folder), "--to", to, "-o", str(folder.parent / to)] for to in ("parquet", "torchtune")),
        again,
        [*again, "--overwrite"],
    ]


def refusals(folder: Path) -> list[str]:
    """Return the errors of every command and of `load`; check that nothing is written."""
    before = sorted(folder.parent.rglob("*"))
    lines = []
    for command in commands(folder):
        lines.append(refused(*command))
    with pytest.raises(packer.PackerError) as error:
        packer.load(folder)
    assert sorted(folder.parent.rglob("*")) == before
    return [*lines, str(error.value)]


def refused_by_all(folder: Path, words: str) -> None:
    """Check that every command that reads shards, and the loader, refuse a dataset in these words."""
    report = ["stats", str(folder), "--report", str(folder.parent / "report.html")]
    for command in [*commands(folder)[:-2], report]:
        done = run(*command)
        assert done.exit_code in (1, 3), done.output
        assert re.search(words, done.stderr), done.stderr
        assert not done.stderr.startswith("Traceback")
    with pytest.raises(packer.PackerError, match=words):
        packer.load(folder)[-1]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "inner/state.json", "..", "", "a\0b", "état.json"])
def test_a_small_file_named_by_a_path_is_refused(folder, name):
    edit_manifest(folder, lambda content: content["files"].update({name: "0" * 32}))
    assert all("is not a plain file name" in line for line in refusals(folder))


@pytest.mark.parametrize("name", ["data-00001*", "state.json", "manifest.json"])
@pytest.mark.parametrize("where", ["elsewhere", "in the folder", "nowhere"])
def test_a_symbolic_link_is_refused_with_the_remedy(folder, name, where):
    (path,) = folder.glob(name)
    path.rename(moved := (folder.parent if where == "elsewhere" else folder) / "moved")
    path.symlink_to(moved)
    if where == "nowhere":
        moved.unlink()
    for line in refusals(folder):
        assert f"{path} is a symbolic link" in line
        assert "cp -rL" in line
        assert "snapshot_download(local_dir=...)" in line


def test_a_folder_reached_by_a_symbolic_link_is_read(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert len(packer.load(tmp_path / "link")) == len(packer.load(folder))
    assert list(packer.verify(tmp_path / "link", tmp_path / "source.arrow")) == []


def test_a_snapshot_of_the_hub_in_its_cache_is_read_and_other_links_are_refused(folder, tmp_path):
    """The cache stores files by their hashes; a snapshot consists of links to them."""
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "abc"
    folder.rename(tmp_path / "original")
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate((tmp_path / "original").iterdir()):
        shutil.copy(path, blobs / str(number))
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert list(packer.verify(snapshot, tmp_path / "source.arrow")) == []
    (snapshot / "manifest.json").unlink()
    (snapshot / "manifest.json").symlink_to(tmp_path / "original" / "manifest.json")
    with pytest.raises(packer.PackerError, match=r"symbolic link.*snapshot_download\(local_dir=\.\.\.\)"):
        packer.load(snapshot)


@pytest.mark.parametrize("name", ["data-00001*", "dataset_info.json", "manifest.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_pipe_or_folder_instead_of_a_file_is_refused_at_once(folder, name, kind):
    (path,) = folder.glob(name)
    path.unlink()
    (os.mkfifo if kind == "pipe" else os.mkdir)(path)
    assert all(f"{path} is not a regular file" in line for line in refusals(folder))


def test_a_dataset_with_one_shard_is_checked_too(tmp_path):
    folder = make(tmp_path)
    (shard,) = folder.glob("*.arrow")
    shard.rename(tmp_path / "shard.arrow")
    shard.symlink_to(tmp_path / "shard.arrow")
    assert all("is a symbolic link" in line for line in refusals(folder))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("part", ["batches", "dictionary"])
def test_compressed_shards_are_refused_before_anything_is_decompressed(tmp_path, codec, part):
    source = tmp_path / "source.arrow"
    lengths = LENGTHS * 4
    table = pa.table(
        {
            "input_ids": pa.array([tokens_of(*each) for each in enumerate(lengths)], pa.list_(pa.int32())),
            "kind": ["long" * 100, "short" * 100] * (len(lengths) // 2),
        }
    )
    write_ipc(source, table)
    folder = tmp_path / "packed"
    packer.pack(source, folder, max_len=MAX_LEN, keep=["kind"])
    path = folder / packer.load(folder).manifest.shards[-1].file
    rows = pa.ipc.open_stream(path.read_bytes()).read_all()
    if part == "dictionary":
        place = rows.column_names.index("kind")
        kind = rows["kind"].combine_chunks()
        encoded = pa.ListArray.from_arrays(kind.offsets, kind.values.dictionary_encode())
        rows = rows.combine_chunks().set_column(place, "kind", encoded)
    plain, compressed = (
        {
            message.type: message
            for message in pa.ipc.MessageReader.open_stream(write_ipc(path, rows, compression=each).read_bytes())
        }
        for each in (None, codec)
    )
    chosen = plain | ({"dictionary": compressed["dictionary"]} if part == "dictionary" else compressed)
    path.write_bytes(b"".join(bytes(message.serialize()) for message in chosen.values()) + b"\xff\xff\xff\xff\0\0\0\0")
    fit_manifest(folder)
    refused_by_all(folder, f"{path} is compressed, and packed datasets are not")


def of_segments(table: pa.Table) -> pa.Array:
    """Return a column with a value per segment."""
    return pa.ListArray.from_arrays(
        table["doc_ids"].combine_chunks().offsets, table["doc_starts"].combine_chunks().values
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.append_column("other_ids", of_segments(table)),
        lambda table: table.append_column("seq_tokens", table["seq_lengths"]),
        lambda table: table.append_column("note", pa.array(["x"] * len(table))),
        lambda table: table.append_column("kind", table["kind"]),
        lambda table: table.drop_columns("kind"),
        lambda table: table.drop_columns("labels"),
        lambda table: table.rename_columns(["kind " if name == "kind" else name for name in table.column_names]),
    ],
    ids=["another", "of align", "a note", "twice", "without a kept one", "without labels", "another name"],
)
def test_shards_have_the_columns_that_the_manifest_names_for_every_command(tmp_path, change):
    table = pa.table({"input_ids": [tokens_of(*each) for each in enumerate(LENGTHS)], "kind": ["x"] * len(LENGTHS)})
    source, folder = write_ipc(tmp_path / "source.arrow", table), tmp_path / "packed"
    packer.pack(source, folder, max_len=MAX_LEN, keep=["kind"])
    rewrite_shards(folder, change)
    refused_by_all(folder, "has the columns .*, and the manifest names .*, kind: changed after packing")


# ---- work folders, in which commands remove what they take for leftovers ----


@pytest.fixture
def home(tmp_path) -> Path:
    """A folder of the user, with files named like those of a work folder."""
    for name in ("notes.txt", ".hidden", "inner/letter.txt", "lock", "request.json"):
        (path := tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "home"


def contents(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


def refused_link(command: list[str], link: Path, home: Path) -> None:
    before = contents(home)
    done = run(*command)
    assert done.exit_code == 1, done.output
    assert f"{link} is a symbolic link" in done.stderr
    assert contents(home) == before


@pytest.mark.parametrize("inner", ["", "spill", "checkpoints", "committed", "lock", "request.json"])
@pytest.mark.parametrize("command", ["pack", "overwrite", "tokenize", "export"])
def test_no_command_follows_a_link_in_the_work_folder_of_its_output(folder, home, tmp_path, command, inner):
    out, source = tmp_path / "out", str(tmp_path / "source.arrow")
    if command == "overwrite":
        shutil.copytree(folder, out)
    hidden = {"overwrite": ".out.packer-new", "tokenize": ".out.packer-tokenizing", "export": ".out.packer-export"}
    link = tmp_path / hidden.get(command, "out") / ".packer" / inner
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(home / inner if inner in ("lock", "request.json") else home)
    if command == "tokenize":
        (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
        save_tokenizer(tmp_path / "tokenizer")
    pack = ["pack", source, "--max-len", "24", "-o", str(out)]
    commands = {
        "pack": pack,
        "overwrite": [*pack, "--overwrite"],
        "tokenize": ["tokenize", str(tmp_path / "texts.jsonl"), "--tokenizer", str(tmp_path / "tokenizer")],
        "export": ["export", str(folder), "--to", "parquet"],
    }
    refused_link([*commands[command], *(["-o", str(out)] if "-o" not in commands[command] else [])], link, home)


def test_a_link_in_place_of_an_old_output_is_removed_alone(folder, home, tmp_path):
    (tmp_path / ".packed.packer-old").symlink_to(home)
    before = contents(home)
    succeeded("pack", tmp_path / "source.arrow", "--max-len", 24, "-o", folder, "--overwrite")
    assert contents(home) == before
    assert not (folder / "notes.txt").exists()
    assert packer.load(folder).max_len == 24
