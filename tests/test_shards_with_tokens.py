"""An index whose source is in object storage: whole shards are made in the cache, with the rows of the copied set."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import packer
from packer.errors import PackerError
from packer.loader import shard_providers
from packer.stores import RemotePath
from tests.helpers.index_only import LENGTHS, NAMES, SOURCES, columns_of, masked, packed_twice, plain, same_rows, write
from tests.helpers.remote_loading import wait_for
from tests.helpers.small import forget_mirrors, shrink

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and chunks of objects that are smaller than the record batches here."""
    monkeypatch.setenv("PACKER_SHARD_CACHE", str(tmp_path / "cache"))
    shrink(monkeypatch, chunk=1 << 12)
    forget_mirrors(monkeypatch)
    return tmp_path / "cache"


def uploaded(path: Path, to: RemotePath) -> str:
    """Upload a folder, or a file and those of its name with other endings; return the address."""
    for file in sorted(path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.stem}.*")):
        if file.is_file():
            (to / file.relative_to(path.parent)).upload(file)
    return str(to / path.name)


def large(folder: Path, first=0) -> tuple[Path, dict[str, int]]:
    """A source of some 35 chunks, and options to pack it to some 6 shards."""
    lengths = np.random.default_rng(4).integers(40, 200, 300).tolist()
    return write(folder / "source.arrow", columns_of(lengths, first)), {"max_len": 256, "shard_size": 256 * 4 * 32}


def cached(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*/*.arrow")}


@pytest.mark.nightly(after=5)
@pytest.mark.parametrize("name", NAMES)
def test_the_cache_holds_the_shards_of_the_copied_dataset(tmp_path, bucket, cache, name):
    make, options = SOURCES[name]
    source = make(tmp_path)
    copy, index = packed_twice(tmp_path, source, **options)
    dataset = packer.load(index, source=uploaded(source, bucket))
    assert dataset.is_remote
    same_rows(packer.load(copy), dataset)
    made = cached(cache)
    assert {name: content[: -shard_providers._END_BYTES] for name, content in made.items()} == {
        path.name: path.read_bytes() for path in copy.glob("*.arrow")
    }
    entries = packer.load(index).manifest.shards
    provider = dataset._cache._provider
    for entry, most in zip(entries, provider.sizes(entries).tolist(), strict=True):
        assert most - 2_000 < len(made[entry.file]) <= most, "the room that is reserved"


def test_index_and_source_in_object_storage(tmp_path, bucket, store_server):
    source = plain(tmp_path, labels=masked)
    copy, index = packed_twice(tmp_path, source)
    dataset = packer.load(uploaded(index, bucket), source=uploaded(source, bucket))
    same_rows(packer.load(copy), dataset)
    assert dataset.find(3) == packer.load(copy).find(3)
    store_server.faults()
    same_rows(packer.load(copy), dataset)
    assert store_server.faults() == {}


def test_boundaries_are_read_without_making_shards(tmp_path, bucket, cache):
    source = plain(tmp_path)
    copy, index = packed_twice(tmp_path, source)
    dataset = packer.load(index, source=uploaded(source, bucket))
    assert dataset.find(3) == packer.load(copy).find(3)
    assert len(list(dataset.segments())) == len(list(packer.load(copy).segments()))
    assert not cached(cache)


def test_options_that_the_shards_of_an_index_do_not_show_keep_caches_apart(tmp_path, bucket):
    source = plain(tmp_path, labels=masked)
    address = uploaded(source, bucket)
    shards = set()
    for name, options in {"one": {}, "two": {"pad_id": 7}}.items():
        (tmp_path / name).mkdir()
        copy, index = packed_twice(tmp_path / name, source, **options)
        same_rows(packer.load(copy), packer.load(index, source=address))
        shards.add(next(index.glob("data-00000-of-*.arrow")).read_bytes())
    assert len(shards) == 1


# ---- samplers and workers ----


def batches_of(dataset, *, state=None, stop=None):
    """Batches of a sampler in lanes, and the state after `stop` of them."""
    sampler = packer.BatchSampler(dataset, global_batch=4, rows=2, lanes=4, window=1, seed=3)
    if state is not None:
        sampler.load_state_dict(state)
    found = []
    for numbers in sampler:
        found.append([row["input_ids"].tolist() for row in dataset.__getitems__(numbers)])
        if len(found) == stop:
            break
    return found, sampler.state_dict()


def test_lanes_and_a_resumed_state(tmp_path, bucket):
    source = plain(tmp_path, labels=masked)
    copy, index = packed_twice(tmp_path, source)
    expected, _ = batches_of(packer.load(copy))
    dataset = packer.load(index, source=uploaded(source, bucket))
    assert packer.BatchSampler(dataset, global_batch=4).lanes == 4, "rows of whole shards are read in lanes"
    before, state = batches_of(dataset, stop=4)
    after, _ = batches_of(packer.load(index, source=f"{bucket}/{source.name}"), state=state)
    assert before + after == expected


def test_forked_workers_of_a_dataloader(tmp_path, bucket):
    data = pytest.importorskip("torch.utils.data")
    source = plain(tmp_path, labels=masked)
    copy, index = packed_twice(tmp_path, source)
    dataset = packer.load(index, source=uploaded(source, bucket))
    sampler = packer.BatchSampler(dataset, global_batch=4, rows=2, lanes=4, window=1, seed=3)
    loader = data.DataLoader(
        dataset, batch_sampler=sampler, collate_fn=list, num_workers=1, multiprocessing_context="fork"
    )
    found = [[row["input_ids"].tolist() for row in rows] for rows in loader]
    assert found == batches_of(packer.load(copy))[0]


def test_a_spawned_process_asks_the_store_only_for_what_it_makes(tmp_path, bucket, store_server, another_process):
    source = plain(tmp_path, labels=masked)
    copy, index = packed_twice(tmp_path, source)
    dataset = packer.load(uploaded(index, bucket), source=uploaded(source, bucket))
    expected = [row["input_ids"].tolist() for row in packer.load(copy)]
    assert another_process(_environment, dict(os.environ)) is None
    assert another_process(_tokens, dataset) == expected
    store_server.faults()
    assert another_process(_tokens, dataset) == expected
    assert store_server.faults() == {}


def _environment(variables):
    os.environ.update(variables)


def _tokens(dataset):
    return [row["input_ids"].tolist() for row in dataset]


MAKE = """
import sys, packer
from packer.stores import mirror
mirror.CHUNK = 1 << 12
dataset = packer.load(sys.argv[1], source=sys.argv[2])
print(sum(int(row["input_ids"].sum()) for row in dataset))
print([name for name in ("numba", "torch", "datasets", "transformers") if name in sys.modules])
"""


def started(index, source) -> subprocess.Popen:
    command = [sys.executable, "-c", MAKE, str(index), source]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_make_each_shard_once_without_a_compiler(tmp_path, bucket, cache, store_server, monkeypatch):
    shrink(monkeypatch, partition_tokens=1)  # documents of a shard are neighbours, which few reads bring
    source, options = large(tmp_path)
    copy, index = packed_twice(tmp_path, source, **options)
    address = uploaded(source, bucket)
    store_server.faults(seconds=0.05, methods=["GET"])
    makers = [started(index, address) for _ in range(2)]
    answers = [maker.communicate() for maker in makers]
    copied = packer.load(copy)
    total = sum(int(row["input_ids"].sum()) for row in copied)
    assert [answer for answer, _ in answers] == [f"{total}\n[]\n"] * 2, answers
    reads = store_server.faults()["GET"]
    dataset = packer.load(index, source=address, cache_dir=tmp_path / "other")
    opening = store_server.faults()["GET"]
    same_rows(copied, dataset)
    making = store_server.faults()["GET"]
    assert len(copied.manifest.shards) < making < 6 * len(copied.manifest.shards)
    assert reads == 2 * opening + making


# ---- damage ----


def test_a_killed_maker_leaves_nothing_that_counts(tmp_path, bucket, cache, store_server):
    source = plain(tmp_path)
    copy, index = packed_twice(tmp_path, source)
    address = uploaded(source, bucket)
    dataset = packer.load(index, source=address, cache_bytes="10kB")
    store_server.faults(seconds=30, methods=["GET"])
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())[0]"
    maker = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE)
    maker.stdin.write(pickle.dumps(dataset))
    maker.stdin.close()
    wait_for(lambda: list(cache.glob("*/*.part")))
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    store_server.faults()
    (part,) = cache.glob("*/*.part")
    part.write_bytes(b"half")
    same_rows(packer.load(copy), dataset)
    assert not list(cache.glob("*/*.part"))


@pytest.mark.parametrize("damage", ["emptied", "cut", "head", "end"])
def test_a_shard_that_is_damaged_in_the_cache_is_made_again(tmp_path, bucket, cache, damage):
    source = plain(tmp_path)
    copy, index = packed_twice(tmp_path, source)
    address = uploaded(source, bucket)
    packer.load(index, source=address)[0]
    (path,) = cache.glob("*/*.arrow")
    content = path.read_bytes()
    path.write_bytes(
        {"emptied": b"", "cut": content[:-100], "head": b"x" * 200 + content[200:], "end": content[:-1]}[damage]
    )
    same_rows(packer.load(copy), packer.load(index, source=address))
    assert path.read_bytes() == content


def test_the_hash_at_the_end_finds_every_change(tmp_path, bucket, cache):
    source = plain(tmp_path)
    _, index = packed_twice(tmp_path, source)
    dataset = packer.load(index, source=uploaded(source, bucket))
    dataset[0]
    (path,), provider = cache.glob("*/*.arrow"), dataset._cache._provider
    content, entry = path.read_bytes(), dataset.manifest.shards[0]
    assert provider.found(path, entry, intact=True) is not None
    for place in np.random.default_rng(0).integers(0, len(content), 40).tolist():
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert provider.found(path, entry, intact=True) is None, place


def test_a_source_that_was_changed_is_noticed_and_its_shards_are_made_anew(tmp_path, bucket):
    source, options = large(tmp_path)
    _, index = packed_twice(tmp_path, source, **options)
    dataset = packer.load(index, source=uploaded(source, bucket))
    first = dataset[0]["input_ids"].tolist()
    uploaded(large(tmp_path, first=5)[0], bucket)  # lengths and sizes are the same
    with pytest.raises(PackerError, match=r"source.arrow: the object was changed while it was read"):
        dataset[len(dataset) - 1]
    again = packer.load(index, source=f"{bucket}/source.arrow")[0]["input_ids"].tolist()
    packer.pack(source, tmp_path / "new", **options, sync=False)
    assert again == packer.load(tmp_path / "new")[0]["input_ids"].tolist() != first


def test_a_source_that_is_gone_is_named(tmp_path, bucket):
    source, options = large(tmp_path)
    _, index = packed_twice(tmp_path, source, **options)
    dataset = packer.load(index, source=uploaded(source, bucket))
    (bucket / "source.arrow").unlink()
    message = f"{bucket}/source.arrow: cannot be read: no such object"
    with pytest.raises(PackerError, match=message):
        dataset[0]
    context, answers = multiprocessing.get_context("fork"), multiprocessing.get_context("fork").Queue()

    def fail():
        try:
            dataset[0]
        except PackerError as error:
            answers.put(str(error))

    child = context.Process(target=fail, daemon=True)
    child.start()
    assert answers.get(timeout=60) == message
    child.join()


def test_tokens_out_of_range_are_named(tmp_path, bucket):
    lists = columns_of(LENGTHS, token_type="int64")["input_ids"].to_pylist()
    lists[3][20] = -7
    source = write(tmp_path / "source.arrow", {"input_ids": lists})
    index = tmp_path / "index"
    packer.pack(source, index, max_len=16, index_only=True)
    with pytest.raises(PackerError, match=r"document 3 .*'input_ids' holds -7 at position 20"):
        list(packer.load(index, source=uploaded(source, bucket)))


def test_a_cache_that_is_too_small_is_refused(tmp_path, bucket):
    source = plain(tmp_path)
    _, index = packed_twice(tmp_path, source)
    with pytest.raises(PackerError, match=r"cache_bytes is 900 bytes, and .*index has shards of .* kB: raise cache_b"):
        packer.load(index, source=uploaded(source, bucket), cache_bytes=900)
