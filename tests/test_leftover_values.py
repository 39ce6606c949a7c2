"""Shards of what partitions leave over have the bytes of a local source, and read almost nothing of a remote one."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer.errors import PackerError, SourceError
from tests.helpers.kills import Killed, kill
from tests.helpers.pack import hashes
from tests.helpers.ranks import run_ranks
from tests.helpers.remote_sources import small_chunks, upload  # noqa: F401 (a fixture)
from tests.helpers.small import forget_mirrors, shrink
from tests.helpers.writing import write_ipc

OPTIONS = {"max_len": 128, "shard_size": "24KB", "workers": 1, "algorithm": "bfd", "balance_ranks": 4}


@pytest.fixture(autouse=True)
def few_partitions_in_a_region(monkeypatch):
    """Partitions of a shard, and regions of four partitions, so that a small corpus has several levels."""
    shrink(monkeypatch, partition_tokens=1, region=4, heartbeat=0.05)


def stored(folder):
    """Hashes of all objects of a dataset, by name; comparable to `hashes` of a local one."""
    hashed = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.files()}
    return {path.removeprefix(f"{folder}/"): digest for path, digest in hashed.items()}


def lists_of(count, longest, seed=0):
    chance = np.random.default_rng(seed)
    return [chance.integers(1, 1000, length) for length in chance.integers(1, longest, count)]


def table(seed=0, *, count=500, longest=130, tokens="int32", lists=pa.list_, **others):
    documents = lists_of(count, longest, seed)
    chance = np.random.default_rng(seed)
    columns = {"input_ids": pa.array(documents, lists(pa.type_for_alias(tokens)))}
    for name, kind in others.items():
        if kind == "labels":
            labels = [np.where(chance.random(len(each)) < 0.5, each, -100) for each in documents]
            columns[name] = pa.array(labels, pa.list_(pa.int64()))
        elif kind == "vectors":
            values = [chance.integers(0, 99, (len(each), 3)).tolist() for each in documents]
            columns[name] = pa.array(values, pa.list_(pa.list_(pa.int16())))
        else:
            values = [chance.integers(0, 99, len(each)) for each in documents]
            columns[name] = pa.array(values, pa.list_(pa.type_for_alias(kind)))
    return pa.table(columns)


def write(folder, *tables):
    folder.mkdir()
    for number, each in enumerate(tables):
        write_ipc(folder / f"{number}.arrow", each, rows=90)
    return folder


CASES = {
    "drawn": ([table()], {"algorithm": "mixed"}),
    "by patterns": ([table()], {}),
    "other types": (
        [table(0, tokens="uint16"), table(1, tokens="int64", lists=pa.large_list)],
        {"align": 8},
    ),
    "labels and kept columns": (
        [table(labels="labels", score="float64", kind="uint8", topk="vectors", name="int32")],
        {"keep_tokens": ("score", "kind", "topk"), "keep": ("name",), "shard_size": "64KB"},
    ),
    "no labels": ([table()], {"labels": False}),
    "split": ([table(longest=400, count=160)], {"algorithm": "mixed"}),
}


def test_a_partition_of_several_shards_is_read_once_for_its_leftovers(bucket, tmp_path, monkeypatch):
    shrink(monkeypatch, partition_tokens=4 * 24_000 // 8)
    local = write(tmp_path / "data", table(count=900))
    manifest = packer.pack(local, tmp_path / "one", **OPTIONS)
    assert manifest.totals.pool_rows > 0
    assert len(manifest.shards) > 15
    packer.pack(str(upload(local, bucket / "data")), tmp_path / "two", **OPTIONS)
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("name", CASES)
def test_a_remote_source_gives_the_bytes_of_a_local_one(name, bucket, tmp_path):
    tables, options = CASES[name]
    local = write(tmp_path / "data", *tables)
    manifest = packer.pack(local, tmp_path / "one", **OPTIONS | options)
    assert manifest.totals.pool_rows > 0
    packer.pack(str(upload(local, bucket / "data")), tmp_path / "two", **OPTIONS | options)
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")


def test_leftovers_are_not_read_one_by_one(bucket, tmp_path, monkeypatch, store_server):
    shrink(monkeypatch, blocks_per_partition=8, region=256)  # blocks of many chunks, as those of 1 MB are
    source = str(upload(write(tmp_path / "data", table(count=3000, longest=400)), bucket / "data"))
    options = OPTIONS | {"max_len": 1024, "shard_size": "700KB", "algorithm": "mixed"}
    forget_mirrors(monkeypatch)
    store_server.faults()
    manifest = packer.pack(source, tmp_path / "out", **options)
    assert manifest.totals.pool_rows > 0
    assert store_server.faults()["GET"] < 230  # 253 if each segment of the pool were read


def test_decoded_copies_in_a_store_are_read_in_the_same_way(bucket, tmp_path):
    lines = "".join(json.dumps({"input_ids": each.tolist()}) + "\n" for each in lists_of(500, 130))
    (tmp_path / "a.jsonl").write_text(lines)
    packer.pack(tmp_path / "a.jsonl", tmp_path / "expected", **OPTIONS)
    packer.pack(tmp_path / "a.jsonl", str(bucket / "set"), **OPTIONS)
    assert stored(bucket / "set") == hashes(tmp_path / "expected")


@pytest.fixture
def remote(bucket, tmp_path):
    """A source in object storage, and hashes of what a pack makes of it."""
    local = write(tmp_path / "data", table())
    packer.pack(local, tmp_path / "expected", **OPTIONS | {"algorithm": "mixed"})
    return str(upload(local, bucket / "data")), hashes(tmp_path / "expected")


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(
    ("stage", "after"),
    [("-values-", True), ("set/data-00002", False), ("set/data-00002", True)],
    ids=["a checkpoint is there", "its shard is missing", "all is there"],
)
def test_a_killed_pack_goes_on_to_the_same_bytes(stage, after, remote, bucket, monkeypatch):
    source, expected = remote
    options = OPTIONS | {"algorithm": "mixed"}
    with monkeypatch.context() as struck:
        kill(struck, stage, after=after)
        with pytest.raises(Killed):
            packer.pack(source, str(bucket / "set"), **options)
    for damaged in [path for path in bucket.files() if "-values-" in str(path)][::2]:
        damaged.write_bytes(damaged.read_bytes()[:-8] + b"\1" * 8)  # then it is read from the source
    packer.pack(source, str(bucket / "set"), **options)
    assert stored(bucket / "set") == expected


def test_ranks_take_the_values_that_others_leave(remote, bucket, tmp_path):
    source, expected = remote
    options = {name: value for name, value in OPTIONS.items() if name != "workers"} | {"algorithm": "mixed"}
    for out in (tmp_path / "out", bucket / "set"):
        results = run_ranks(source, str(out), 3, options=options)
        assert results[0] == results[1] == results[2]
    assert stored(bucket / "set") == hashes(tmp_path / "out") == expected


def test_a_bad_token_is_told_as_in_a_local_source(bucket, tmp_path):
    lists = table()["input_ids"].to_pylist()
    lists[7][-1] = -5
    local = write(tmp_path / "bad", pa.table({"input_ids": pa.array(lists, pa.list_(pa.int32()))}))
    told = []
    for source in (local, upload(local, bucket / "bad")):
        with pytest.raises(SourceError) as error:
            packer.pack(str(source), tmp_path / "out", **OPTIONS)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "document 7 " in told[0]


def test_a_full_disk_for_the_values_of_a_shard_is_one_line(remote, tmp_path, monkeypatch):
    def full(descriptor, start, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(PackerError, match=r"No space left on device: temporary files are written there"):
        packer.pack(remote[0], tmp_path / "out", **OPTIONS | {"algorithm": "mixed"})
