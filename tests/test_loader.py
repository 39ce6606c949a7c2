"""Rows of a packed dataset, and folders that cannot be loaded."""

import gc
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer import PackerError
from tests.helpers.loader import maps_of
from tests.helpers.packed_rows import (
    MAX_LEN,
    as_lists,
    edit_manifest,
    make,
    rows_on_disk,
)
from tests.helpers.small import shrink
from tests.helpers.writing import write_ipc

# ---- rows ----


def test_rows_are_those_on_disk_over_all_shards(packed, dataset):
    assert len(dataset.manifest.shards) > 2
    rows = rows_on_disk(packed)
    assert [as_lists(row) for row in dataset] == rows
    assert [as_lists(dataset[number]) for number in range(len(rows))] == rows
    assert len(dataset) == len(rows) == dataset.manifest.rows


def test_rows_of_several_record_batches_read_in_any_order(tmp_path):
    max_len = 1 << 16
    lengths = [max_len - 7 * document for document in range(11)]
    out = make(tmp_path, lengths, max_len=max_len, shard_size=12 * 3 * 4 * max_len)
    with pa.memory_map(str(min(out.glob("data-00000-of-*.arrow")))) as mapped:
        batches = pa.ipc.open_stream(mapped).read_all().to_batches()
    # of at most 2 MiB: the bytes of a shard depend on it
    assert max(batch.num_rows for batch in batches) == 2
    dataset = packer.load(out)
    rows = rows_on_disk(out)
    for number in np.random.default_rng(0).permutation(len(dataset)):
        assert as_lists(dataset[number]) == rows[number]


def test_rows_are_numbered_from_both_ends(dataset):
    rows = len(dataset)
    assert as_lists(dataset[-1]) == as_lists(dataset[rows - 1])
    assert as_lists(dataset[-rows]) == as_lists(dataset[0])
    for number in (rows, -rows - 1):
        with pytest.raises(IndexError, match=f"row {number} of {rows}"):
            dataset[number]


NAMES = ("input_ids", "labels", "position_ids")


def test_columns_have_the_documented_types_and_names(dataset):
    row = dataset[0]
    expected = [*NAMES, "seq_lengths", "doc_ids", "doc_starts"]
    assert dataset.column_names == list(row) == expected
    assert {name: values.dtype.name for name, values in row.items()} == {
        "input_ids": "int32",
        "labels": "int32",
        "position_ids": "int32",
        "seq_lengths": "int32",
        "doc_ids": "int64",
        "doc_starts": "int32",
    }
    assert all(row[name].shape == (MAX_LEN,) for name in NAMES)


def test_rows_are_read_only_views_of_the_mapped_file(packed):
    before = pa.total_allocated_bytes()
    dataset = packer.load(packed)
    rows = list(dataset)
    assert pa.total_allocated_bytes() == before
    for values in (values for row in rows for values in row.values()):
        assert not values.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_rows_outlive_the_dataset(packed):
    row = packer.load(packed)[0]
    assert as_lists(row) == rows_on_disk(packed)[0]


def test_of_many_shards_only_some_are_mapped_at_once(tmp_path, monkeypatch):
    out = make(tmp_path, shard_size=3 * 4 * MAX_LEN)
    shards = len(list(out.glob("*.arrow")))
    expected = rows_on_disk(out)
    shrink(monkeypatch, open_shards=3)
    opened = packer.load(out)
    assert shards > 5
    assert maps_of(out) == 0
    for index in np.random.default_rng(0).integers(0, len(opened), 100).tolist():
        assert as_lists(opened[index]) == expected[index]
        assert 1 <= maps_of(out) <= 3
    assert [as_lists(row) for row in opened] == expected
    assert sum(len(offsets) - 1 for offsets, _, _ in opened.segments()) == len(expected)
    assert opened.find(3) == packer.load(out).find(3)


def test_of_many_shards_sizes_are_checked_at_once_and_the_rest_when_they_are_read(tmp_path, monkeypatch):
    out = make(tmp_path, shard_size=3 * 4 * MAX_LEN)
    shrink(monkeypatch, open_shards=3)
    last = max(out.glob("*.arrow"))
    content = last.read_bytes()
    last.write_bytes(bytes(len(content)))
    opened = packer.load(out)
    assert len(opened[0]["input_ids"]) == MAX_LEN
    with pytest.raises(PackerError, match=f"{last.name} "):
        opened[-1]
    last.write_bytes(content[:-8])
    assert refusal(out).startswith(f"{last} has {len(content) - 8:,} bytes, the manifest says {len(content):,}")
    last.unlink()
    assert refusal(out).startswith(f"{last} is missing, but listed in the manifest")


def test_the_maps_of_a_dataset_end_with_it(packed):
    dataset = packer.load(packed)
    assert maps_of(packed)
    gc.disable()
    try:
        before = maps_of(packed)
        del dataset
        assert maps_of(packed) < before
    finally:
        gc.enable()


def test_the_dataset_pickles_as_its_path_and_manifest(packed, dataset, tmp_path, monkeypatch):
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 5000
    assert [as_lists(row) for row in pickle.loads(pickled)] == rows_on_disk(packed)
    monkeypatch.chdir(packed.parent)
    relative = pickle.dumps(packer.load(packed.name))
    monkeypatch.chdir(tmp_path)
    assert len(pickle.loads(relative)) == len(dataset)


def test_the_repr_says_what_it_is(packed, dataset):
    assert repr(dataset) == f"PackedDataset({str(packed)!r}, rows={len(dataset)}, max_len=12)"


# ---- other readers, other versions ----


def test_datasets_opens_the_folder_as_it_is_and_maps_it(packed, dataset):
    datasets = pytest.importorskip("datasets")
    files = sorted(packed.iterdir())
    before = pa.total_allocated_bytes()
    opened = datasets.load_from_disk(str(packed))
    assert pa.total_allocated_bytes() - before < sum(entry.bytes for entry in dataset.manifest.shards)
    assert opened.column_names == dataset.column_names
    assert opened.to_list() == rows_on_disk(packed)
    assert [Path(file["filename"]) for file in opened.cache_files] == sorted(packed.glob("*.arrow"))
    assert sorted(packed.iterdir()) == files


# ---- what cannot be loaded ----


def refusal(folder: Path) -> str:
    with pytest.raises(PackerError) as raised:
        packer.load(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_folder_without_a_packed_dataset_is_named(tmp_path):
    assert refusal(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: no such file or folder; check the path"
    assert refusal(tmp_path) == f"{tmp_path} is not a packed dataset: it has no manifest.json; `packer pack` makes one"
    (tmp_path / ".packer").mkdir()
    assert refusal(tmp_path) == f"{tmp_path} is an unfinished pack: repeat the command that began it, to finish it"


@pytest.mark.parametrize(("version", "remedy"), [(9, "upgrade packer, or pack again"), (1, "pack again")])
def test_an_unknown_format_version_is_refused(tmp_path, version, remedy):
    out = make(tmp_path)
    edit_manifest(out, lambda content: content.update(format_version=version))
    expected = f"{out}/manifest.json has format version {version}, this package reads 2: {remedy} to another folder"
    assert refusal(out) == expected


CUT = """
import os, sys, time, numpy as np, packer
packer.pack(sys.argv[1], sys.argv[2], max_len=1024, sync=False)
dataset = packer.load(sys.argv[2])
path = dataset.path / dataset.manifest.shards[0].file
first = packer.collate([dataset[0]], tensors="numpy")
os.truncate(path, 3 * path.stat().st_size // 4)
time.sleep(1.1)
for read in (lambda: dataset[0], lambda: dataset[-1], lambda: dataset.__getitems__([3, -2]), lambda: dataset.find(5),
             lambda: next(packer.batches(dataset, rows=4, tensors="numpy")), lambda: packer.load(sys.argv[2])):
    try:
        read()
        print("read")
    except packer.PackerError as error:
        print(error)
"""


def test_a_shard_that_is_cut_under_an_open_loader_is_an_error(tmp_path):
    lists = [[1] * 1000] * 2000
    table = pa.table({"input_ids": pa.array(lists, pa.list_(pa.int32()))})
    write_ipc(tmp_path / "rows.arrow", table)
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(tmp_path / "rows.arrow"), str(tmp_path / "out")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *found, reopened = done.stdout.splitlines()
    assert len(found) == 5
    for message in found:
        assert "data-00000-of-00001.arrow became shorter while it was open: it has" in message
    assert "the manifest says" in reopened


def test_rows_stay_readable_if_a_shard_is_removed_or_replaced(tmp_path, monkeypatch):
    shrink(monkeypatch, check_pause=0.0)
    out = make(tmp_path)
    dataset, expected = packer.load(out), rows_on_disk(out)
    path = out / dataset.manifest.shards[0].file
    path.rename(tmp_path / "kept")
    assert as_lists(dataset[0]) == expected[0]
    path.write_bytes(b"other")
    assert as_lists(dataset[1]) == expected[1]


SOURCE_CUT = """
import os, sys, time, packer
packer.pack(sys.argv[1], sys.argv[2], max_len=1024, sync=False, index_only=True)
dataset = packer.load(sys.argv[2], source=sys.argv[1])
dataset[0]
os.truncate(sys.argv[1], os.path.getsize(sys.argv[1]) // 2)
time.sleep(0.5)
for read in (lambda: dataset[-1], lambda: next(packer.batches(dataset, rows=4, tensors="numpy"))):
    try:
        print("read", read())
    except packer.PackerError as error:
        print(error)
"""


def test_a_source_that_is_cut_under_an_open_index_is_an_error(tmp_path):
    table = pa.table({"input_ids": pa.array([[1] * 1000] * 2000, pa.list_(pa.int32()))})
    write_ipc(tmp_path / "rows.arrow", table)
    done = subprocess.run(
        [sys.executable, "-c", SOURCE_CUT, str(tmp_path / "rows.arrow"), str(tmp_path / "out")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert all("rows.arrow: the file changed from" in line for line in done.stdout.splitlines())


def test_the_class_of_a_dataset_names_the_function_that_opens_one(tmp_path):
    with pytest.raises(TypeError, match=r"packer\.load\(path\) opens"):
        packer.PackedDataset(str(tmp_path))
