"""Tasks of every stage can be pickled and run by another process, with the same notes and shards."""

import pickle

import datasets
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from test_pack import save_arrow

import packer
from packer.notes import NotedTask, NotesInStore
from packer.pipeline import packing
from packer.pipeline.planning.surveying import Surveyor
from packer.pipeline.segments.segment_reader import MappedDocuments
from packer.pipeline.write_shards import ShardTask
from tests.run_pickled import run, summary


def documents(count, longest, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(1, 1000, length).tolist() for length in random.integers(0, longest, count)]


def as_file(folder):
    return save_arrow(folder / "source.arrow", documents(900, 90))


def shuffled(folder):
    tokens = documents(900, 90)
    columns = {"input_ids": tokens, "labels": tokens, "name": [f"document {number}" for number in range(900)]}
    return datasets.Dataset(pa.table(columns)).shuffle(seed=1)


def pairs(folder):
    columns = {"chosen_input_ids": documents(400, 40), "rejected_input_ids": documents(400, 40, seed=1)}
    return datasets.Dataset(pa.table(columns))


def mixture(folder):
    return [(as_file(folder), 0.4), (shuffled(folder), 1.3)]


CASES = {
    "drawn": (as_file, {"algorithm": "mixed"}),
    "by patterns": (as_file, {"algorithm": "bfd"}),
    "sequential": (as_file, {"algorithm": "sequential"}),
    "wrapped": (as_file, {"algorithm": "wrapped"}),
    "kept columns of a shuffled dataset": (shuffled, {"algorithm": "mixed", "keep": ["name"]}),
    "shuffled, in order, untrained dropped": (shuffled, {"algorithm": "sequential", "untrained": "drop"}),
    "pairs": (pairs, {"algorithm": "mixed", "pairs": True, "long": "drop"}),
    "pairs in order": (pairs, {"algorithm": "sequential", "pairs": True, "long": "drop"}),
    "mixture": (mixture, {"algorithm": "mixed", "mix_unit": "epochs"}),
    "mixture in order": (mixture, {"algorithm": "sequential", "mix_unit": "epochs"}),
    "groups": (shuffled, {"algorithm": "bfd", "group_by": "name", "group_mode": "apart"}),
}


@pytest.mark.parametrize("name", CASES)
def test_pickled_tasks_leave_the_same_notes_and_bytes_in_another_process(another_process, tmp_path, monkeypatch, name):
    make, options = CASES[name]
    tasks, found, call = [], {}, NotedTask.__call__

    def recorded(task, number):
        if not tasks or tasks[-1][0].stage != task.stage:
            tasks.append((task, []))
        tasks[-1][1].append(number)
        return call(task, number)

    write_shards = packing.write_shards

    def in_child_first(claimed, makers, watch, engine, progress):
        (maker,) = makers
        write = ShardTask(claimed=claimed, makers=makers, watch=watch, ends=[len(maker.plan.shard_rows)])
        reader = getattr(getattr(maker.plan, "job", None), "reader", None)
        surveyor = Surveyor(reader=reader, options=maker.plan.job.options) if reader is not None else None
        found["child"] = another_process(run, tasks, surveyor, write, tmp_path / "child")
        names = [f"{task.stage}-{number}" for task, numbers in tasks for number in numbers]
        saved = NotesInStore(claimed)
        found["notes"] = {name: xxhash.xxh3_128_hexdigest(saved.load(name).to_bytes()) for name in names}
        found["surveyor"] = surveyor
        return write_shards(claimed, makers, watch, engine, progress)

    monkeypatch.setattr(NotedTask, "__call__", recorded)
    monkeypatch.setattr(packing, "write_shards", in_child_first)
    out = tmp_path / "out"
    manifest = packer.pack(make(tmp_path), out, max_len=100, shard_size="40KB", workers=1, **options)
    assert len(manifest.shards) > 4
    assert found["child"]["shards"] == {shard.file: shard.xxh3_128 for shard in manifest.shards}
    assert found["child"]["notes"] == found["notes"]
    if name in ("drawn", "by patterns", "pairs"):
        assert len({task.stage for task, _ in tasks}) >= 3
    if found["surveyor"] is not None:
        assert found["child"]["chunk"] == summary(found["surveyor"](0))


@pytest.mark.parametrize("algorithm", ["mixed", "bfd", "sequential"])
def test_neither_addresses_nor_tokens_nor_notes_are_pickled(tmp_path, monkeypatch, algorithm):
    kept = []
    monkeypatch.setattr(packing, "write_shards", lambda claimed, makers, *rest: kept.extend(makers) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        packer.pack(as_file(tmp_path), tmp_path / "out", max_len=100, shard_size="40KB", algorithm=algorithm)
    (maker,) = kept
    assert maker.table.input_ids.addresses.values.any()
    pickled = pickle.dumps(maker)
    assert len(pickled) < 50_000 < (tmp_path / "source.arrow").stat().st_size / 3
    again = pickle.loads(pickled)
    assert isinstance(again.mapped, MappedDocuments)
    assert set(vars(again.mapped)) == {"documents"}
    assert again.mapped is again.plan.job.reader.mapped  # one table for both
