"""Packed datasets in object storage: rows by way of a cache that the processes of a node share."""

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import datasets
import pytest

import packer
from packer import PackerError
from packer.shards.manifest import ShardTable, dataset_key
from packer.stores import RemotePath
from packer.stores.local_files import try_lock
from tests.helpers.packed_rows import LENGTHS, MAX_LEN, as_lists, heads, make, rows_on_disk
from tests.helpers.remote_loading import wait_for
from tests.helpers.small import shrink

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A packed dataset of about ten shards, of 36 rows."""
    return make(tmp_path_factory.mktemp("small"), LENGTHS * 4, shard_size=3 * 4 * 4 * MAX_LEN)


@pytest.fixture
def remote(small, bucket, tmp_path, monkeypatch) -> RemotePath:
    """The same in object storage. The cache is empty."""
    monkeypatch.setenv("PACKER_SHARD_CACHE", str(tmp_path / "cache"))
    return uploaded(small, bucket)


def uploaded(folder: Path, bucket: RemotePath) -> RemotePath:
    for file in folder.iterdir():
        (bucket / "set" / file.name).upload(file)
    return bucket / "set"


def cached(folder: Path) -> list[str]:
    """Names of the shards in a cache."""
    return sorted(path.name for path in folder.glob("*/*.arrow"))


def sizes(small: Path) -> list[int]:
    return [entry.bytes for entry in packer.load(small).manifest.shards]


def run(code: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


# ---- rows ----


def test_rows_are_those_on_disk_and_each_shard_is_fetched_once(small, remote, store_server, tmp_path):
    dataset = packer.load(str(remote))
    assert dataset.fingerprint == packer.load(small).fingerprint
    assert repr(dataset) == f"PackedDataset('{remote}', rows={len(dataset)}, max_len=12)"
    store_server.faults()
    assert [as_lists(row) for row in dataset] == rows_on_disk(small)
    assert cached(tmp_path / "cache") == sorted(path.name for path in small.glob("*.arrow"))
    assert store_server.faults()["GET"] == len(dataset.manifest.shards)
    again = packer.load(str(remote))
    assert store_server.faults() == {"GET": 1, "HEAD": 1}, "the manifest"
    assert [as_lists(row) for row in again] == rows_on_disk(small)
    assert store_server.faults() == {}


def test_folders_in_the_cache_differ_by_whatever_shards_depend_on(small):
    manifest = packer.load(small).manifest
    first, *others = manifest.shards
    key = dataset_key(manifest)
    assert dataset_key(replace(manifest, files={})) == key
    changed = [
        replace(manifest, shards=ShardTable.of([replace(first, bytes=first.bytes + 1), *others])),
        replace(manifest, shards=ShardTable.of([replace(first, xxh3_128=others[0].xxh3_128), *others])),
        replace(manifest, shards=ShardTable.of(others)),
        replace(manifest, options=replace(manifest.options, pad_id=3)),
    ]
    assert len({key, *(dataset_key(each) for each in changed)}) == 5


def test_a_pickled_dataset_holds_its_manifest(small, remote, store_server):
    pickled = pickle.dumps(packer.load(str(remote)))
    assert len(pickled) < 5000
    (remote / "manifest.json").write_bytes(b"{}")
    store_server.faults()
    assert as_lists(pickle.loads(pickled)[3]) == rows_on_disk(small)[3]
    assert store_server.faults() == {"GET": 1, "HEAD": 1}, "one shard"


def test_batches_are_those_of_the_local_dataset_in_lanes(small, remote):
    options = {"global_batch": 4, "rows": 2, "seed": 3}
    expected = list(packer.BatchSampler(packer.load(small), lanes=4, **options))
    dataset = packer.load(str(remote))
    sampler = packer.BatchSampler(dataset, **options)
    assert sampler.lanes == 4
    found = [[as_lists(row) for row in dataset.__getitems__(numbers)] for numbers in sampler]
    rows = rows_on_disk(small)
    assert found == [[rows[number] for number in numbers] for numbers in expected]
    assert len(list(packer.batches(packer.load(str(remote)), rows=4, tensors="numpy"))) == sampler.steps


# ---- workers ----


@pytest.mark.parametrize("start", [None, "fork"])
def test_a_dataloader_with_workers_trains_on_the_same_batches(small, remote, start):
    data = pytest.importorskip("torch.utils.data")
    dataset = packer.load(str(remote))
    if start == "fork":
        dataset[0]  # requests were made before the fork
    options = {"global_batch": 4, "rows": 2, "window": 1}
    loader = data.DataLoader(
        dataset,
        batch_sampler=packer.BatchSampler(dataset, **options),
        collate_fn=packer.collate,
        num_workers=2 if start else 0,
        multiprocessing_context=start,
    )
    local = packer.load(small)
    sampler = packer.BatchSampler(local, lanes=4, **options)
    for _ in range(2):
        assert [heads(batch) for batch in loader] == [heads(packer.collate(local.__getitems__(n))) for n in sampler]


def test_a_forked_process_fetches_shards_by_itself(small, remote):
    dataset = packer.load(str(remote))
    dataset[0]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def read(number):
        try:
            answers.put(as_lists(dataset[number]))
        except PackerError as error:
            answers.put(str(error))

    def answer(number):
        child = context.Process(target=read, args=[number], daemon=True)
        child.start()
        found = answers.get(timeout=30)
        child.join()
        return found

    assert answer(len(dataset) - 1) == rows_on_disk(small)[-1]
    missing = remote / dataset.manifest.shards[3].file
    missing.unlink()
    assert answer(sum(dataset.shard_rows[:3])).startswith(f"{missing} is missing, but listed")


READ = """
import sys, packer
dataset = packer.load(sys.argv[1])
print(sum(int(row["input_ids"].sum()) for row in dataset))
"""


def test_two_processes_that_share_a_cache_fetch_each_shard_once(small, remote, store_server, tmp_path):
    store_server.faults(seconds=0.05, methods=["GET"])
    readers = [run(READ, str(remote)) for _ in range(2)]
    answers = [reader.communicate() for reader in readers]
    expected = sum(sum(row["input_ids"]) for row in rows_on_disk(small))
    assert [answer for answer, _ in answers] == [f"{expected}\n"] * 2, answers
    assert store_server.faults()["GET"] == len(sizes(small)) + 2
    assert not list((tmp_path / "cache").glob("*/*.part"))


# ---- ranks ----


def batches_of(dataset, *, state=None, steps=None, **options):
    """First tokens of the batches of every step over all ranks, and the state after `steps`."""
    found, states = [], []
    for rank in range(options["world_size"]):
        sampler = packer.BatchSampler(dataset, global_batch=8, lanes=4, rank=rank, window=1, **options)
        if state is not None:
            sampler.load_state_dict(state)
        done = []
        for numbers in sampler:
            done.append([as_lists(row)["input_ids"] for row in dataset.__getitems__(numbers) if len(numbers)])
            if len(done) == (steps or sampler.steps) * sampler.accumulation:
                break
        states.append(json.loads(json.dumps(sampler.state_dict())))
        in_steps = [done[first : first + sampler.accumulation] for first in range(0, len(done), sampler.accumulation)]
        found.append([list(chain.from_iterable(step)) for step in in_steps])
    assert all(one == states[0] for one in states)
    return [sorted(chain.from_iterable(step)) for step in zip(*found, strict=True)], states[0]


def test_a_run_on_4_ranks_is_resumed_on_1_and_2_with_the_same_steps(remote):
    dataset = packer.load(str(remote))
    expected, _ = batches_of(dataset, world_size=1)
    before, state = batches_of(dataset, world_size=4, rows=1, steps=2)
    assert before == expected[:2]
    for world_size in (1, 2):
        after, _ = batches_of(packer.load(str(remote)), world_size=world_size, state=state)
        assert before + after == expected


def test_a_rank_fetches_the_shards_of_its_own_lanes_only(remote, tmp_path):
    shards = []
    for rank in range(2):
        dataset = packer.load(str(remote), cache_dir=tmp_path / str(rank))
        sampler = packer.BatchSampler(dataset, global_batch=4, lanes=2, rank=rank, world_size=2)
        for numbers in sampler:
            dataset.__getitems__(numbers)
        shards.append(cached(tmp_path / str(rank)))
    assert set(shards[0] + shards[1]) == {entry.file for entry in dataset.manifest.shards}
    assert len(set(shards[0]) & set(shards[1])) <= 1


def test_shards_of_the_next_windows_are_fetched_ahead(remote, tmp_path):
    dataset = packer.load(str(remote))
    sampler = packer.BatchSampler(dataset, global_batch=2, lanes=2, window=1)
    batches = iter(sampler)
    next(batches)
    wait_for(lambda: len(cached(tmp_path / "cache")) == 4)
    time.sleep(0.2)
    assert len(cached(tmp_path / "cache")) == 4, "one window of each lane that is read, and one that comes next"


# ---- room ----


def test_the_cache_stays_below_its_limit_and_the_oldest_shards_make_room(small, remote, tmp_path):
    limit = 3 * max(sizes(small))
    dataset = packer.load(str(remote), cache_bytes=limit)
    rows = rows_on_disk(small)
    for number, row in enumerate(dataset):
        assert as_lists(row) == rows[number]
        assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*.arrow")) <= limit
    assert len(cached(tmp_path / "cache")) == 3
    assert cached(tmp_path / "cache")[-1] == dataset.manifest.shards[-1].file
    assert len(list((tmp_path / "cache").glob("*/*"))) <= 1 + 3 * 3, "files of evicted shards are removed, too"


def test_an_epoch_runs_through_a_cache_of_two_windows(small, remote, tmp_path):
    dataset = packer.load(str(remote), cache_bytes=5 * max(sizes(small)))
    sampler = packer.BatchSampler(dataset, global_batch=2, lanes=2, window=1)
    shown = [tuple(row["input_ids"]) for numbers in sampler for row in dataset.__getitems__(numbers)]
    assert sorted(shown) == sorted(tuple(row["input_ids"]) for row in rows_on_disk(small))


def test_shards_of_past_windows_are_no_longer_kept(remote, tmp_path):
    dataset = packer.load(str(remote))
    order = []
    for numbers in packer.BatchSampler(dataset, global_batch=1, lanes=1, window=1):
        dataset.__getitems__(numbers)
        order.append(numbers.shards)
        for past in {shard for shards in order for shard in shards} - set(numbers.shards):
            (path,) = (tmp_path / "cache").glob(f"*/{dataset.manifest.shards[past].file}")
            lock = try_lock(path, shared=False, create=False)
            assert lock is not None, "a lock of a reader"
            lock.release()
    assert len(set(order)) == len(dataset.manifest.shards)


def test_a_cache_smaller_than_the_shards_of_a_window_is_refused(small, remote):
    dataset = packer.load(str(remote), cache_bytes=2 * max(sizes(small)))
    with pytest.raises(
        PackerError, match=r"cache_bytes is .* kB, and the [345] shards that this rank reads together have"
    ):
        next(iter(packer.BatchSampler(dataset, global_batch=4, lanes=2, window=2)))


def test_shards_that_another_process_reads_are_not_evicted_and_the_error_says_what_to_raise(small, remote, monkeypatch):
    shrink(monkeypatch, room_patience=0.3)
    limit = 2 * max(sizes(small))
    code = "import sys, packer; d = packer.load(sys.argv[1]); d[0], d[len(d) - 1]; print('read', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(remote)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "read\n"
        dataset = packer.load(str(remote), cache_bytes=limit)
        middle = len(dataset) // 2
        with pytest.raises(
            PackerError, match=r"has no room for data-.*: processes of this node use .* at once, the limit"
        ):
            dataset[middle]
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert len(dataset[middle]["input_ids"]) == MAX_LEN, "a killed process needs nothing any more"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_bytes": 100}, "cache_bytes is 100 bytes, and .* has shards of .* kB: raise cache_bytes"),
        ({"cache_bytes": 0}, "cache_bytes is 0: it must be at least 1, such as 200GB"),
        ({"cache_bytes": "much"}, "'much' is not a size"),
        ({"cache_bytes": 10**18}, "cache_bytes is 1000000.0 TB, and the disk of .* has .* for a cache: choose fewer"),
        ({"cache_dir": "/proc/none"}, "/proc/none cannot be used as a cache"),
    ],
)
def test_options_of_the_cache_that_cannot_be_met_are_refused(remote, options, message):
    with pytest.raises(PackerError, match=message):
        packer.load(str(remote), **options)


# ---- damage ----


def test_a_changed_object_is_fetched_once_more_and_then_named(remote, store_server, tmp_path):
    dataset = packer.load(str(remote))
    changed = remote / dataset.manifest.shards[0].file
    content = bytearray(changed.read_bytes())
    content[-100] ^= 1
    changed.write_bytes(bytes(content))
    store_server.faults()
    message = (
        f"{changed} does not match its hash in the manifest, also when fetched again: it was changed after packing"
    )
    with pytest.raises(PackerError, match=message):
        dataset[0]
    assert store_server.faults()["GET"] == 2
    assert not [path for path in (tmp_path / "cache").glob("*/data*") if path.stat().st_size]
    changed.write_bytes(bytes(content[:-8]))
    with pytest.raises(PackerError, match=r"has .* bytes, the manifest says .*, also when fetched again"):
        dataset[0]


def test_a_shard_that_was_damaged_on_the_way_is_fetched_again(small, remote, monkeypatch):
    download, calls = RemotePath.download, []

    def damaged(self, to):
        download(self, to)
        calls.append(self)
        if len(calls) == 1:
            with to.open("r+b") as file:
                file.write(b"damage")

    monkeypatch.setattr(RemotePath, "download", damaged)
    assert as_lists(packer.load(str(remote))[0]) == rows_on_disk(small)[0]
    assert len(calls) == 2


@pytest.mark.parametrize("position", [0, 0.4, 0.6, 0.8, None])
def test_damage_in_the_cache_never_reaches_a_row(small, remote, store_server, tmp_path, position):
    rows = rows_on_disk(small)
    assert [as_lists(row) for row in packer.load(str(remote))] == rows
    damaged = sorted((tmp_path / "cache").glob("*/*.arrow"))[::2]
    for path in damaged:
        content = bytearray(path.read_bytes())
        if position is None:
            content.clear()
        else:
            content[int(position * len(content))] ^= 4
        path.write_bytes(content)
    store_server.faults()
    dataset = packer.load(str(remote))
    for numbers in packer.BatchSampler(dataset, global_batch=4):
        assert [as_lists(row) for row in dataset.__getitems__(numbers)] == [rows[number] for number in numbers]
    assert store_server.faults()["GET"] == 1 + len(damaged), "the manifest, and shards that were damaged"


def test_a_folder_of_a_user_is_no_cache(small, remote, tmp_path):
    folder = tmp_path / "sets"
    datasets.Dataset.from_dict({"a": list(range(1000))}).save_to_disk(folder / "mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(PackerError, match=f"cache_dir is {folder}, which holds other files .* {folder / 'packer'}"):
        packer.load(str(remote), cache_dir=folder, cache_bytes=max(sizes(small)))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_files_that_a_user_puts_into_a_cache_are_neither_counted_nor_evicted(small, remote, tmp_path):
    folder, limit = tmp_path / "cache", max(sizes(small))
    packer.load(str(remote))[0]
    (key,) = (path.name for path in folder.iterdir() if path.is_dir())
    mine = [folder / "mine" / "data-00000-of-00001.arrow", folder / key / "mine.arrow", folder / key / "x.9.part"]
    mine.append(folder / key.upper() / "data-00000-of-00001.arrow")
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"m" * limit)
        os.utime(path, (0, 0))
    dataset = packer.load(str(remote), cache_bytes=limit)
    assert [as_lists(row) for row in dataset] == rows_on_disk(small)
    assert all(path.stat().st_size == limit for path in mine)


def test_a_cache_that_was_removed_is_filled_again(small, remote, tmp_path):
    dataset = packer.load(str(remote))
    first = as_lists(dataset[0])
    shutil.rmtree(tmp_path / "cache")
    assert as_lists(dataset[0]) == first
    assert as_lists(dataset[-1]) == rows_on_disk(small)[-1]
    shutil.rmtree(tmp_path / "cache")
    assert len(list(packer.BatchSampler(dataset, global_batch=4))) == -(-len(dataset) // 4)
    wait_for(lambda: "packer read ahead" not in [thread.name for thread in threading.enumerate()])
    assert as_lists(pickle.loads(pickle.dumps(dataset))[1]) == rows_on_disk(small)[1]
    shutil.rmtree(tmp_path / "cache")
    assert as_lists(dataset[0]) == first
    assert as_lists(packer.load(str(remote))[0]) == first  # it is a cache again


def test_what_a_killed_reader_left_is_not_a_shard_and_takes_no_room(small, remote, store_server, tmp_path):
    store_server.faults(seconds=30, methods=["GET"], contains="data-")
    reader = run(READ, str(remote))
    parts = lambda: list((tmp_path / "cache").glob("*/*.part"))  # noqa: E731
    wait_for(parts)
    reader.kill()
    reader.communicate()
    store_server.faults()
    (part,) = parts()
    part.write_bytes(b"half")
    dataset = packer.load(str(remote), cache_bytes=max(sizes(small)))
    assert as_lists(dataset[-1]) == rows_on_disk(small)[-1]  # of another shard
    assert not parts()


def test_a_store_that_stalls_is_an_error_after_some_tries(remote, store_server, monkeypatch):
    from datetime import timedelta

    from packer.stores import buckets

    dataset = packer.load(str(remote))
    shrink(monkeypatch, timeout=timedelta(seconds=0.2), first_pause=0.01, retries=0)
    buckets._opened.cache_clear()
    store_server.faults(seconds=3, methods=["GET"])
    try:
        begun = time.monotonic()
        with pytest.raises(PackerError, match=f"{remote}/data-.*: the store cannot be used .*tried 2 times"):
            dataset[0]
        assert time.monotonic() - begun < 10
    finally:
        store_server.faults()
        buckets._opened.cache_clear()


def test_a_full_disk_is_named_with_the_remedy(remote, monkeypatch):
    def full(self, to):
        raise OSError(28, os.strerror(28))

    dataset = packer.load(str(remote))
    monkeypatch.setattr(RemotePath, "download", full)
    with pytest.raises(PackerError, match=r"No space left on device; .* free some space, choose fewer cache_bytes"):
        dataset[0]


# ---- what cannot be loaded ----


def test_a_place_without_a_dataset_is_named(bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("PACKER_SHARD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(PackerError, match=f"{bucket}/none: no such file or folder"):
        packer.load(f"{bucket}/none")
    (bucket / "bad" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(PackerError, match=f"{bucket}/bad/manifest.json is damaged"):
        packer.load(f"{bucket}/bad")


def test_a_thread_that_reads_ahead_ends_when_there_is_nothing_to_do(remote):
    dataset = packer.load(str(remote))
    next(iter(packer.BatchSampler(dataset, global_batch=2, lanes=2)))
    wait_for(lambda: not any(thread.name == "packer read ahead" for thread in threading.enumerate()))


def test_an_export_of_a_remote_dataset_says_to_copy_it(remote, tmp_path):
    with pytest.raises(PackerError, match="is in object storage: copy the packed dataset to a local folder"):
        packer.export(str(remote), tmp_path / "out", to="parquet")


def test_datasets_in_object_storage_are_combined_with_those_on_disk(small, remote, tmp_path):
    """In lanes, a step reads few shards, and the rows are those of the local datasets."""
    other = make(tmp_path / "other", [12] * 30, shard_size=3 * 4 * 4 * MAX_LEN)
    dataset = packer.load({str(remote): 0.5, str(other): 0.5}, rows=20)
    local = packer.load({str(small): 0.5, str(other): 0.5}, rows=20)
    options = {"global_batch": 4, "rows": 2, "lanes": 2}
    samplers = [packer.BatchSampler(one, **options) for one in (dataset, local)]
    seen = []
    for epoch in range(4):
        passes = [list(sampler) for sampler in samplers]
        assert passes[0] == passes[1]
        for numbers in passes[0]:
            rows = dataset.__getitems__(numbers)
            assert [as_lists(row) for row in rows] == [as_lists(row) for row in local.__getitems__(numbers)]
            seen += [int(row["source"]) for row in rows]
        assert sum(seen) == 10 * (epoch + 1)
