"""Entries of very many shards are in a file of their own, and nothing else about the dataset differs."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.facts import ShardEntry
from packer.shards.file_names import MANIFEST, SHARDS, all_shard_names
from packer.shards.files import hash_file
from packer.shards.reader import read_manifest
from packer.shards.shard_table import ShardTable
from tests.commands import refused, succeeded
from tests.packed_rows import edit_manifest, make, rows_on_disk
from tests.small import shrink
from tests.test_pack import hashes

COUNTS = st.integers(0, 2**40)
HASHES = st.binary(min_size=16, max_size=16).map(bytes.hex)
FIELDS = st.fixed_dictionaries({"rows": st.integers(1, 2**40), "tokens": COUNTS, "trained": COUNTS, "bytes": COUNTS})


@pytest.fixture
def few(monkeypatch):
    """Every pack of more than two shards has a table of them."""
    shrink(monkeypatch, shards_in_manifest=2)


@pytest.fixture
def folder(few, tmp_path) -> Path:
    """A packed dataset with a table of its shards, in a folder beside its source."""
    return make(tmp_path, shard_size=400)


def change_table(folder: Path, change) -> None:
    """Replace the table, and update the manifest as an attacker would; `change` returns a table, or bytes."""
    path = folder / SHARDS
    changed = change(pa.ipc.open_stream(path.read_bytes()).read_all())
    if isinstance(changed, pa.Table):
        with pa.ipc.new_stream(path, changed.schema) as stream:
            stream.write_table(changed)
    else:
        path.write_bytes(changed)
    edit_manifest(folder, lambda content: content["files"].update({SHARDS: hash_file(path)}))


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def refusals(folder: Path) -> set[str]:
    """Return the one-line errors of everything that reads a packed dataset."""
    export = ("export", folder, "--to", "parquet", "-o", folder.parent / "out")
    lines = {refused(*command) for command in (("verify", folder), ("show", folder, 0), ("stats", folder), export)}
    with pytest.raises(PackerError) as error:
        packer.load(folder)
    assert not (folder.parent / "out").exists()
    return {line.removeprefix("packer: ") for line in lines} | {str(error.value)}


@given(st.lists(st.tuples(FIELDS, COUNTS, HASHES), max_size=20))
def test_a_table_gives_back_the_entries(drawn):
    entries = [
        ShardEntry(file=name, untrained_segments=untrained, xxh3_128=digest, **fields)
        for name, (fields, untrained, digest) in zip(all_shard_names(len(drawn)), drawn, strict=True)
    ]
    table = ShardTable.of(entries)
    again = ShardTable.from_bytes(table.to_bytes())
    assert again == table
    for one in (table, again):
        assert list(one) == entries
        assert list(one[1:3]) == entries[1:3]
        assert [one[-1 - index] for index in range(len(entries))] == entries[::-1]
        for name in ("rows", "tokens", "trained", "untrained_segments", "bytes"):
            assert one.column(name).tolist() == [getattr(entry, name) for entry in entries]


def test_a_dataset_with_a_table_differs_only_in_where_the_entries_are(tmp_path, monkeypatch):
    one = make(tmp_path / "one", shard_size=400)
    shrink(monkeypatch, shards_in_manifest=2)
    other = make(tmp_path / "other", shard_size=400)
    whole, apart = hashes(one), hashes(other)
    assert {name for name in whole | apart if whole.get(name) != apart.get(name)} == {MANIFEST, SHARDS}
    in_manifest, in_table = read_manifest(one), read_manifest(other)
    assert len(in_manifest.shards) > 3
    files = {name: digest for name, digest in in_table.files.items() if name != SHARDS}
    assert replace(in_table, files=files) == in_manifest
    contents = [json.loads((folder / MANIFEST).read_bytes()) for folder in (one, other)]
    assert contents[1]["shards"] == len(contents[0]["shards"])


def test_commands_and_readers_take_a_dataset_with_a_table(folder, tmp_path):
    source = str(tmp_path / "source.arrow")
    dataset = packer.load(folder, verify=True)
    assert [row["input_ids"].tolist() for row in dataset] == [row["input_ids"] for row in rows_on_disk(folder)]
    assert datasets.load_from_disk(str(folder))["input_ids"] == [row["input_ids"].tolist() for row in dataset]
    again = ("pack", source, "-o", folder, "--max-len", 12, "--add-column", "position_ids", "--shard-size", 400)
    for command in (
        ("verify", folder, "--source", source),
        ("stats", folder),
        ("show", folder, 0),
        ("export", folder, "--to", "parquet", "-o", tmp_path / "exported"),
        again,
        (*again, "--overwrite"),
    ):
        succeeded(*command)
    record = json.loads((tmp_path / "exported" / "_export.json").read_bytes())
    assert len(record["files"]) == len(dataset.manifest.shards)
    assert list(packer.verify(folder, source)) == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_a_changed_table_is_refused_by_name(folder, share):
    path = folder / SHARDS
    content = bytearray(path.read_bytes())
    content[int((len(content) - 1) * share)] ^= 0x40
    path.write_bytes(content)
    (line,) = refusals(folder)
    assert line.startswith(f"{path} does not match its hash in the manifest: changed after packing; restore it, or")


def test_a_missing_table_is_refused_by_name(folder):
    (folder / SHARDS).unlink()
    (line,) = refusals(folder)
    assert line.startswith(f"{folder / SHARDS} is missing, but listed in the manifest")


def test_a_table_that_is_a_link_or_a_pipe_is_refused(folder):
    path = folder / SHARDS
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")
    assert all(f"{path} is a symbolic link" in line for line in refusals(folder))
    path.unlink()
    os.mkfifo(path)
    assert all(f"{path} is not a regular file" in line for line in refusals(folder))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.slice(1), "shards, and"),
        (lambda table: table.slice(0, 0), "shards, and 0 in manifest-shards.arrows"),
        (lambda table: pa.concat_tables([table, table]), "shards, and"),
        (lambda table: table.drop_columns("rows"), "it has no column rows of type int64"),
        (lambda table: table.append_column("rows", table["rows"]), "it has no column rows of type int64"),
        (lambda table: with_column(table, "rows", table["rows"].cast("int32")), "it has no column rows of type int64"),
        (lambda table: with_column(table, "xxh3_128", table["tokens"]), "no column xxh3_128 of type fixed_size_binary"),
        (lambda table: with_column(table, "tokens", pa.nulls(len(table), pa.int64())), "a value of tokens is null"),
        (lambda table: with_column(table, "bytes", pa.array([-1] * len(table))), "bytes of shard 0 is -1, less than 0"),
        (lambda table: with_column(table, "rows", pa.array([0] * len(table))), "rows of shard 0 is 0, less than 1"),
        (lambda table: with_column(table, "rows", pa.array([2**62] * len(table))), "rows add up to"),
        (lambda table: b"", "cannot be read as an Arrow stream"),
        (lambda table: b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 4, "cannot be read as an Arrow stream"),
    ],
)
def test_a_table_that_was_made_wrong_is_refused(folder, change, words):
    change_table(folder, change)
    (line,) = refusals(folder)
    assert words in line


def test_columns_of_a_later_version_and_several_record_batches_are_read(folder):
    before = list(read_manifest(folder).shards)
    change_table(folder, lambda table: pa.concat_tables([table.slice(2, 1), table.slice(0, 2), table.slice(3)]))
    entries = list(read_manifest(folder).shards)
    assert [entry.xxh3_128 for entry in entries[:4]] == [before[at].xxh3_128 for at in (2, 0, 1, 3)]
    change_table(folder, lambda table: table.append_column("later", table["rows"]))
    assert list(read_manifest(folder).shards) == entries


def test_the_manifest_of_100_000_shards_is_small_and_its_folder_is_checked(tmp_path, folder):
    """The shards are links to a few files, of which a file system may allow only tens of thousands each."""
    manifest, many = read_manifest(folder), tmp_path / "many"
    many.mkdir()
    entries = [manifest.shards[number % 4] for number in range(100_000)]
    for number, (name, entry) in enumerate(zip(all_shard_names(len(entries)), entries, strict=True)):
        if number % 20_000 == 0:
            for each in manifest.shards[:4]:
                shutil.copy(folder / each.file, tmp_path / f"{number}-{each.file}")
        os.link(tmp_path / f"{number // 20_000 * 20_000}-{entry.file}", many / name)
    table = ShardTable.of(entries)
    manifest = replace(manifest, shards=table, generations=(replace(manifest.generations[0], shards=len(table)),))
    files = manifest.small_files()
    for name, content in files.items():
        (many / name).write_bytes(content)
    hashed = {name: xxhash.xxh3_128_hexdigest(content) for name, content in files.items()}
    (many / MANIFEST).write_bytes(replace(manifest, files=hashed).to_bytes())
    assert (many / MANIFEST).stat().st_size < 10_000
    found = read_manifest(many)
    assert len(found.shards) == 100_000
    assert found.shards[99_999] == replace(entries[-1], file="data-99999-of-100000.arrow")
    assert found.shards.column("rows").sum() == np.sum([entry.rows for entry in entries])
    dataset = packer.load(many)
    assert len(dataset) == found.shards.column("rows").sum()
    last = sum(entry.rows for entry in manifest.shards[:4]) - 1
    assert dataset[-1]["doc_ids"].tolist() == packer.load(folder)[last]["doc_ids"].tolist()
    (many / "data-77777-of-100000.arrow").unlink()
    with pytest.raises(PackerError, match=r"data-77777-of-100000.arrow is missing, but listed in the manifest"):
        packer.load(many)
    (many / "data-77777-of-100000.arrow").symlink_to(tmp_path)
    with pytest.raises(PackerError, match=r"data-77777-of-100000.arrow is a symbolic link"):
        read_manifest(many)
