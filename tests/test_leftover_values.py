"""Values of leftovers travel in notes: the bytes of a local source, and no shard of the pool reads the source."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_ranks import run_ranks
from test_remote_sources import Elsewhere, forget, hashes, small_chunks, upload  # noqa: F401 (a fixture)
from test_stored_outputs import Killed, kill, stored

import packer
from packer import signs_of_life
from packer.engine import without
from packer.errors import PackerError, SourceError
from packer.pipeline import job, packing
from packer.pipeline.partitions import leftover_values, partitioning
from packer.pipeline.partitions.partition_plan import spread_numbers
from packer.pipeline.planning import surveying
from packer.pipeline.write_shards import ShardTask
from packer.plan.pieces import Located
from packer.stores import mirror, temporary_files
from packer.stores.requests import traffic

OPTIONS = {"max_len": 128, "shard_size": "24KB", "workers": 1, "algorithm": "bfd"}


@pytest.fixture(autouse=True)
def few_partitions_in_a_region(monkeypatch):
    """Regions of four partitions, so that a small corpus has several levels."""
    monkeypatch.setattr(partitioning, "REGION", 4)
    monkeypatch.setattr(signs_of_life, "INTERVAL", 0.05)


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
        else:
            values = [chance.integers(0, 99, len(each)) for each in documents]
            columns[name] = pa.array(values, pa.list_(pa.type_for_alias(kind)))
    return pa.table(columns)


def write(folder, *tables):
    folder.mkdir()
    for number, each in enumerate(tables):
        with pa.ipc.new_stream(folder / f"{number}.arrow", each.schema) as stream:
            stream.write_table(each, max_chunksize=90)
    return folder


def pairs():
    chosen, rejected = (pa.array(lists_of(300, 60, seed), pa.list_(pa.int32())) for seed in (1, 2))
    return pa.table({"chosen_input_ids": chosen, "rejected_input_ids": rejected})


CASES = {
    "drawn": ([table()], {"algorithm": "mixed"}),
    "by patterns": ([table()], {}),
    "other types": (
        [table(0, tokens="uint16"), table(1, tokens="int64", lists=pa.large_list)],
        {"align": 8},
    ),
    "labels and kept columns": (
        [table(labels="labels", score="float64", kind="uint8", name="int32")],
        {"keep_tokens": ("score", "kind"), "keep": ("name",), "shard_size": "48KB"},
    ),
    "no labels": ([table(labels="labels")], {"labels": False}),
    "split with overlap": ([table(longest=400, count=160)], {"overlap": 16, "algorithm": "mixed"}),
    "pairs": ([pairs()], {"pairs": True, "long": "drop", "algorithm": "mixed"}),
}


@pytest.fixture
def read_by(monkeypatch):
    """Ranges of the source that each shard, and "the rest", has read; the shards must be written one by one."""
    found, now = {}, ["the rest"]
    read, write_one = mirror._Mirrors._read_part, ShardTask.__call__

    def reading(part):
        found.setdefault(now[0], []).append(part)
        read(part)

    def writing(task, shard, *arguments):
        now[0] = shard
        found[shard] = []
        try:
            return write_one(task, shard, *arguments)
        finally:
            now[0] = "the rest"

    monkeypatch.setattr(mirror._Mirrors, "_read_part", staticmethod(reading))
    monkeypatch.setattr(ShardTask, "__call__", writing)
    return found


def shards_of(manifest):
    """Numbers of the shards of partitions, and of those of the pool."""
    rows = np.array([shard.rows for shard in manifest.shards])
    every = (spread_numbers(pool, len(rows)).tolist() for pool in range(len(rows)))
    pool = next(numbers for numbers in every if rows[numbers].sum() == manifest.totals.pool_packs)
    return without(range(len(rows)), pool), pool


@pytest.mark.parametrize("name", CASES)
def test_shards_of_the_pool_have_the_bytes_of_a_local_source_and_read_nothing(name, bucket, tmp_path, read_by):
    tables, options = CASES[name]
    local = write(tmp_path / "data", *tables)
    manifest = packer.pack(local, tmp_path / "one", **OPTIONS | options)
    own, pool = shards_of(manifest)
    assert len(own) > 4
    assert pool
    assert not any(read_by.values())
    packer.pack(str(upload(local, bucket / "data")), tmp_path / "two", **OPTIONS | options)
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")
    assert all(read_by[shard] for shard in own)
    assert not any(read_by[shard] for shard in pool)


def test_sources_of_a_mixture_may_be_local_and_remote(bucket, tmp_path, read_by):
    one, two = (write(tmp_path / name, table(seed)) for seed, name in enumerate(("one", "two")))
    packed = [
        packer.pack([(first, 0.7), (str(two), 1.4)], tmp_path / f"{number}", mix_unit="epochs", **OPTIONS)
        for number, first in enumerate((str(one), str(upload(one, bucket / "one"))))
    ]
    assert hashes(tmp_path / "0") == hashes(tmp_path / "1")
    _, pool = shards_of(packed[0])
    assert pool
    assert not any(read_by[shard] for shard in pool)


def test_a_local_source_and_a_plan_without_a_pool_leave_no_values(bucket, tmp_path, monkeypatch):
    made, make = [], packing.leftover_values
    monkeypatch.setattr(packing, "leftover_values", lambda *given: made.append(make(*given)) or made[-1])
    local = write(tmp_path / "data", table())
    remote = str(upload(local, bucket / "data"))
    packer.pack(remote, tmp_path / "remote", **OPTIONS)
    packer.pack(local, tmp_path / "local", **OPTIONS)
    packer.pack(remote, tmp_path / "whole", **OPTIONS | {"shard_size": "1GB"})
    packer.pack(remote, tmp_path / "in order", **OPTIONS | {"algorithm": "sequential"})
    assert [each is None for each in made] == [False, True, True, True]


def test_requests_fall(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(surveying, "BLOCKS_PER_PARTITION", 8)  # blocks of many chunks, as those of 1 MB are
    source = str(upload(write(tmp_path / "data", table(count=3000, longest=400)), bucket / "data"))
    options = OPTIONS | {"max_len": 1024, "shard_size": "700KB", "algorithm": "mixed"}
    requests = []
    for name, keep in (("with", leftover_values.leftover_values), ("without", lambda *given: None)):
        monkeypatch.setattr(packing, "leftover_values", keep)
        monkeypatch.setattr(mirror, "_mirrors", mirror._Mirrors())
        forget()
        before = replace(traffic)
        manifest = packer.pack(source, tmp_path / name, **options)
        requests.append(traffic.reads - before.reads)
    assert hashes(tmp_path / "with") == hashes(tmp_path / "without")
    assert manifest.totals.pool_packs > 0
    assert requests[0] < 0.7 * requests[1]


def test_a_store_holds_the_notes_of_a_pack(bucket, tmp_path, read_by, store_server):
    local = write(tmp_path / "data", table(labels="labels"))
    packer.pack(local, tmp_path / "expected", **OPTIONS)
    out = bucket / "set"
    read_by.clear()
    manifest = packer.pack(str(upload(local, bucket / "data")), str(out), **OPTIONS)
    assert stored(out) == hashes(tmp_path / "expected")
    assert not any(read_by[shard] for shard in shards_of(manifest)[1])


def test_decoded_copies_in_a_store_are_read_in_the_same_way(bucket, tmp_path, read_by):
    lines = "".join(json.dumps({"input_ids": each.tolist()}) + "\n" for each in lists_of(500, 130))
    (tmp_path / "a.jsonl").write_text(lines)
    packer.pack(tmp_path / "a.jsonl", tmp_path / "expected", **OPTIONS)
    read_by.clear()
    manifest = packer.pack(tmp_path / "a.jsonl", str(bucket / "set"), **OPTIONS)
    assert stored(bucket / "set") == hashes(tmp_path / "expected")
    assert any(read_by[shard] for shard in shards_of(manifest)[0])
    assert not any(read_by[shard] for shard in shards_of(manifest)[1])


@pytest.fixture
def remote(bucket, tmp_path):
    """A source in object storage, and hashes of what a pack makes of it."""
    local = write(tmp_path / "data", table())
    packer.pack(local, tmp_path / "expected", **OPTIONS | {"algorithm": "mixed"})
    return str(upload(local, bucket / "data")), hashes(tmp_path / "expected")


@pytest.mark.parametrize(
    ("stage", "after"),
    [("-values/2", True), ("set/data-00002", False), ("level1-values/", True), ("set/data-00002", True)],
    ids=["a note is there", "its shard is missing", "a region is done", "all is there"],
)
def test_a_killed_pack_goes_on_to_the_same_bytes(stage, after, remote, bucket, monkeypatch):
    source, expected = remote
    options = OPTIONS | {"algorithm": "mixed"}
    with monkeypatch.context() as struck:
        kill(struck, stage, after=after)
        with pytest.raises(Killed):
            packer.pack(source, str(bucket / "set"), **options)
    packer.pack(source, str(bucket / "set"), **options)
    assert stored(bucket / "set") == expected


@pytest.mark.parametrize("damage", [Path.unlink, lambda note: note.write_bytes(note.read_bytes()[:-8] + b"\1" * 8)])
def test_values_that_are_lost_or_damaged_are_read_from_the_source(damage, remote, tmp_path, monkeypatch, read_by):
    source, expected = remote
    options = OPTIONS | {"algorithm": "mixed"}

    def lose(self, engine, copy):
        notes = sorted(self.plan.notes._folder.glob("*-values*"))
        assert len(notes) > 20
        for note in notes[::2]:
            damage(note)
        pass_on(self, engine, copy)

    pass_on = leftover_values.LeftoverValues.pass_on
    monkeypatch.setattr(leftover_values.LeftoverValues, "pass_on", lose)
    read_by.clear()
    manifest = packer.pack(source, tmp_path / "out", **options)
    assert hashes(tmp_path / "out") == expected
    assert any(read_by[shard] for shard in shards_of(manifest)[1])


def test_tasks_of_other_processes_leave_and_take_the_same_values(remote, tmp_path, monkeypatch):
    source, expected = remote
    monkeypatch.setattr(job, "Threads", Elsewhere)
    packer.pack(source, tmp_path / "out", **OPTIONS | {"algorithm": "mixed"})
    assert hashes(tmp_path / "out") == expected


def test_ranks_take_the_values_that_others_leave(remote, bucket, tmp_path):
    source, expected = remote
    options = {name: value for name, value in OPTIONS.items() if name != "workers"} | {"algorithm": "mixed"}
    for out in (tmp_path / "out", bucket / "set"):
        results = run_ranks(source, str(out), 3, options=options)
        assert results[0] == results[1] == results[2]
    assert stored(bucket / "set") == hashes(tmp_path / "out") == expected


def test_a_bad_token_that_is_left_over_is_told_as_in_a_local_source(bucket, tmp_path, monkeypatch):
    local = write(tmp_path / "data", table())
    options, left = OPTIONS | {"algorithm": "mixed"}, []

    def keep(self, shard):
        left.append(leave(self, shard))
        return left[-1]

    leave = leftover_values.LeftoverValues.left_by
    monkeypatch.setattr(leftover_values.LeftoverValues, "left_by", keep)
    packer.pack(str(upload(local, bucket / "data")), tmp_path / "good", **options)
    document = int(left[0].documents[0])
    made = table()
    lists = made["input_ids"].to_pylist()
    lists[document][-1] = -5
    local = write(tmp_path / "bad", pa.table({"input_ids": pa.array(lists, pa.list_(pa.int32()))}))
    told = []
    for source, out in ((local, "one"), (upload(local, bucket / "bad"), "two")):
        with pytest.raises(SourceError) as error:
            packer.pack(str(source), tmp_path / out, **options)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert f"document {document} " in told[0]


def test_a_full_disk_for_the_values_of_a_shard_is_one_line(remote, tmp_path, monkeypatch):
    def full(descriptor, start, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(temporary_files.os, "posix_fallocate", full)
    with pytest.raises(PackerError, match=r"No space left on device: temporary files of what lies in object storage"):
        packer.pack(remote[0], tmp_path / "out", **OPTIONS | {"algorithm": "mixed"})


def test_pieces_are_found_by_document_and_first_token():
    def located(*pieces):
        return Located.in_one_row(*np.array(pieces, np.int64).reshape(-1, 3).T)

    finder = leftover_values._Finder(located((7, 0, 3), (2**40, 5, 1), (7, 256, 4), (3, 0, 2)))
    here, found = finder.find(located((7, 256, 4), (7, 5, 1), (2**40, 5, 1), (8, 0, 3), (2**41, 0, 3), (3, 0, 2)))
    assert (here.tolist(), found.tolist()) == ([0, 2, 5], [2, 1, 3])
    for some, others in (([], [(1, 0, 1)]), ([(1, 0, 1)], [])):
        assert [each.tolist() for each in leftover_values._Finder(located(*some)).find(located(*others))] == [[], []]
