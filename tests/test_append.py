"""`packer append`: new documents in new shards, old files untouched, and a kill leaves the old set or the new one."""

import contextlib
import json
import pickle
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer.errors import PackerError
from packer.output.claim import claim_append
from packer.output.join_generation import Joining
from packer.output.unfinished_output import Output
from packer.pipeline.collect_figures import packed_figures
from packer.pipeline.write_shards import ShardTask
from packer.shards.reader import read_manifest
from packer.stores import RemotePath
from tests import test_index_only
from tests.commands import run, succeeded
from tests.kills import Killed, without_last_word
from tests.packed_rows import edit_manifest, rewrite_shards
from tests.small import shrink
from tests.test_from_text import tokenizer  # noqa: F401 (a fixture)
from tests.test_index_only import LENGTHS, SOURCES, columns_of, hashes, masked, same_rows, write
from tests.test_replace_folder import killed_at

OPTIONS = {"max_len": 16, "shard_size": 16 * 4 * 12, "sync": False}
SMALL = {"dataset_info.json", "manifest.json", "state.json"}


@pytest.fixture
def files(tmp_path):
    """Three sources of one kind."""
    parts = (LENGTHS, LENGTHS[:60], LENGTHS[60:])
    return [
        write(tmp_path / f"{name}.arrow", columns_of(lengths, first, labels=masked))
        for name, lengths, first in zip("abc", parts, (0, 1000, 3000), strict=True)
    ]


@pytest.fixture
def packed(tmp_path, files):
    packer.pack(files[0], tmp_path / "set", **OPTIONS)
    return tmp_path / "set"


@pytest.fixture
def in_store(files, bucket, monkeypatch):
    """The same dataset in object storage."""
    shrink(monkeypatch, heartbeat=0.05)
    packer.pack(files[0], bucket / "set", **OPTIONS)
    return bucket / "set"


@pytest.fixture(params=["folder", "store"])
def target(request, packed, tmp_path, monkeypatch):
    """The same dataset, on the disk or in object storage, which is appended to in other ways than `packed`."""
    shrink(monkeypatch, heartbeat=0.05)
    return (
        shutil.copytree(packed, tmp_path / "target")
        if request.param == "folder"
        else request.getfixturevalue("in_store")
    )


def columns_in(folder, names=()):
    """Columns of some shards, or of all, row by row."""
    columns = {}
    for name in names or [entry.file for entry in read_manifest(folder).shards]:
        table = pa.ipc.open_stream((folder / name).read_bytes()).read_all()
        for column in table.column_names:
            columns.setdefault(column, []).extend(table[column].to_pylist())
    return columns


def shifted(rows, by):
    return [[number + by if number >= 0 else number for number in row] for row in rows]


def test_new_documents_are_in_new_shards_and_nothing_else_changes(packed, files):
    before, old = hashes(packed), packer.load(packed)
    rows, count = [row["input_ids"].tolist() for row in old], len(old.manifest.shards)
    manifest = packer.append(packed, files[1], sync=False)
    after, new = hashes(packed), len(manifest.shards) - count
    assert {name: after[name] for name in before.keys() - SMALL} == {
        name: before[name] for name in before.keys() - SMALL
    }
    names = [f"data-{number:05d}-of-{count + new:05d}.arrow" for number in range(count, count + new)]
    assert sorted(after.keys() - before.keys()) == names == [entry.file for entry in manifest.shards[count:]]
    assert new >= 3
    assert sorted(packed.glob("*.arrow")) == [packed / entry.file for entry in manifest.shards]
    assert list(packer.verify(packed, files[:2])) == []
    grown = packer.load(packed)
    assert [row["input_ids"].tolist() for row in grown][: len(rows)] == rows
    ids = np.concatenate([row["doc_ids"] for row in grown])
    lengths = [*LENGTHS, *LENGTHS[:60]]
    assert sorted(set(ids[ids >= 0].tolist())) == [number for number, length in enumerate(lengths) if length]
    assert len(manifest.generations) == 2
    assert manifest == grown.manifest
    assert not (packed / ".packer").exists()


@pytest.mark.nightly(after=10)
@pytest.mark.parametrize("index_only", [False, True], ids=["copied", "index"])
@pytest.mark.parametrize(
    "name", [name for name in SOURCES if name not in ("fixed lists", "long integers in files", "shuffled")]
)
def test_new_shards_are_those_of_a_pack_of_the_new_documents_alone(tmp_path, name, index_only):
    make, extra = SOURCES[name]
    options = {**OPTIONS, **extra, "index_only": index_only}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = make(tmp_path / "one"), make(tmp_path / "two")
    two = two.rename(tmp_path / "two" / f"more{two.suffix}")  # the same documents under another name
    packed = tmp_path / "set"
    first = packer.pack(one, packed, **options)
    alone = packer.pack(two, tmp_path / "alone", **options)
    grown = packer.append(packed, two, sync=False)
    new = columns_in(packed, [entry.file for entry in grown.shards[len(first.shards) :]])
    expected = columns_in(tmp_path / "alone")
    expected["doc_ids"] = shifted(expected["doc_ids"], first.totals.documents)
    assert new == expected
    assert [part.totals for part in grown.generations] == [first.totals, alone.totals]
    assert [part.source for part in grown.generations] == [first.source, alone.source]
    assert list(packer.verify(packed, [one, two])) == []


def test_totals_are_those_of_all_generations(packed, files):
    first = packer.load(packed).manifest
    for source in files[1:]:
        manifest = packer.append(packed, source, sync=False)
    parts = [part.totals for part in manifest.generations]
    assert parts[0] == first.totals
    for name in ("documents", "tokens", "tokens_packed", "segments", "rows", "lower_bound", "pool_rows"):
        assert getattr(manifest.totals, name) == sum(getattr(part, name) for part in parts), name
    assert manifest.totals.efficiency == manifest.totals.tokens_packed / (manifest.rows * 16)
    assert manifest.totals.documents_dropped["empty"] == sum(part.documents_dropped["empty"] for part in parts)
    assert manifest.source.documents == 2 * len(LENGTHS)
    assert [file.name for file in manifest.source.files] == ["a.arrow", "b.arrow", "c.arrow"]
    assert manifest.to_dict()["totals"] == manifest.totals.to_dict()


def test_generations_are_verified_in_order(packed, files):
    for source in files[1:]:
        packer.append(packed, source, sync=False)
    assert list(packer.verify(packed, files)) == []
    faults = list(packer.verify(packed, [files[0], files[2], files[1]]))
    assert faults
    taken = [(1, files[2]), (2, files[1])]
    begins = [
        f"generation {number}, counted from .*, compared with {re.escape(str(path))}: ." for number, path in taken
    ]
    assert all(any(re.match(begin, fault) for begin in begins) for fault in faults)
    with pytest.raises(PackerError, match="packed from 3 sources, one after the other, and 1 source"):
        list(packer.verify(packed, files[0]))


def test_paths_in_a_plain_list_belong_to_the_generations_that_have_their_files(tmp_path, files):
    """A generation of a folder of two files, one of a file and a folder, and one of a file."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        for name in "de":
            write(folder / f"{name}.arrow", columns_of(LENGTHS[number : 20 + ord(name) % 7], labels=masked))
    index, paths = tmp_path / "index", [folders[0], files[0], folders[1], files[1]]
    packer.pack(folders[0], index, index_only=True, **OPTIONS)
    packer.append(index, [files[0], folders[1]], sync=False)
    packer.append(index, files[1], sync=False)
    assert [len(part.source.files) for part in packer.load(index).manifest.generations] == [2, 3, 1]
    assert list(packer.verify(index, paths)) == list(packer.verify(index, [paths[0], paths[1:3], paths[3]])) == []
    same_rows(packer.load(index, source=paths), packer.load(index, source=[paths[0], paths[1:3], paths[3]]))
    words = [word for path in paths for word in ("--source", str(path))]
    for arguments in (("verify", index), ("show", index, 0), ("materialize", index, "-o", tmp_path / "made")):
        succeeded(*arguments, *words)
    assert list(packer.verify(tmp_path / "made", paths)) == []
    for wrong, message in (
        ([*paths, files[2]], r"was packed from 2, 3 and 1 file\(s\), .* the sources given have 2, 1, 2, 1 and 1: give"),
        (
            [files[0], *paths[1:]],
            r"was packed from 2, 3 and 1 file\(s\), .* the sources given have 1, 1, 2 and 1: give",
        ),
        ([*paths[:3], tmp_path / "nowhere"], "nowhere: no such file or folder"),
        (paths[:2], "packed from 3 sources, one after the other, and 2 source"),
    ):
        with pytest.raises(PackerError, match=message):
            list(packer.verify(index, wrong))


def test_a_grown_set_is_read_as_one(packed, files, tmp_path):
    datasets = pytest.importorskip("datasets")
    packer.append(packed, files[1], sync=False)
    dataset = packer.load(packed)
    assert [row["input_ids"] for row in datasets.load_from_disk(str(packed))] == [
        row["input_ids"].tolist() for row in dataset
    ]
    assert packed_figures(packed).documents == dataset.manifest.totals.documents_packed
    assert packed_figures(packed).totals == dataset.manifest.totals
    assert packer.export(packed, tmp_path / "exported", to="parquet").packed["rows"] == len(dataset)
    row = dataset.find(len(LENGTHS) + 3)[0]
    assert f"{len(LENGTHS) + 3}" in succeeded("show", packed, row)
    again = packer.pack(packed, tmp_path / "again", max_len=32, sync=False)
    assert again.totals.tokens == dataset.manifest.totals.tokens
    assert list(packer.verify(tmp_path / "again", packed)) == []


# trainers and their states


def test_a_job_that_runs_on_the_old_set_goes_on(packed, files, another_process):
    dataset = packer.load(packed)
    rows, pickled = [row["input_ids"].tolist() for row in dataset], pickle.dumps(dataset)
    packer.append(packed, files[1], sync=False)
    assert [row["input_ids"].tolist() for row in dataset] == rows
    assert another_process(_read_all, pickled) == rows  # a worker that starts now
    assert len(packer.load(packed)) > len(rows)


def _read_all(pickled):
    return [row["input_ids"].tolist() for row in pickle.loads(pickled)]


def test_a_state_is_resumed_on_the_generations_that_it_was_saved_with(packed, files):
    def sampler_of(generations):
        return packer.BatchSampler(packer.load(packed, generations=generations), global_batch=4)

    sampler = sampler_of(None)
    batches = list(sampler)
    packer.append(packed, files[1], sync=False)
    packer.append(packed, files[2], sync=False)
    with pytest.raises(PackerError, match="the sampler's state has dataset"):
        sampler_of(None).load_state_dict(sampler.state_dict(batches=5))
    resumed = sampler_of(1)
    resumed.load_state_dict(sampler.state_dict(batches=5))
    assert list(resumed) == batches[5:]
    assert len(sampler_of(2).dataset) < len(sampler_of(3).dataset)
    with pytest.raises(PackerError, match="generations is 4: the dataset has 3, choose 1 to 3"):
        sampler_of(4)


# indexes


def test_an_index_reads_the_source_of_each_generation(tmp_path, files, another_process):
    copy, index = tmp_path / "copy", tmp_path / "index"
    packer.pack(files[0], copy, **OPTIONS)
    packer.pack(files[0], index, index_only=True, **OPTIONS)
    for source in files[1:]:
        packer.append(copy, source, sync=False)
        packer.append(index, source, sync=False)
    copied, indexed = packer.load(copy), packer.load(index, source=files)
    same_rows(copied, indexed)
    assert another_process(_read_all, pickle.dumps(indexed)) == [row["input_ids"].tolist() for row in copied]
    same_rows(packer.load(copy, generations=1), packer.load(index, source=files[0], generations=1))
    with pytest.raises(PackerError, match="packed from 3 sources, one after the other, and 1 source"):
        packer.load(index, source=files[0])
    with pytest.raises(PackerError, match=r"was packed from b.arrow of .* bytes, and the source has c.arrow"):
        packer.load(index, source=[files[0], files[2], files[1]])
    with pytest.raises(
        PackerError, match=r"generation 1 of .* was packed from b.arrow of .* bytes, and the source has c"
    ):
        packer.materialize(index, [files[0], files[2], files[1]], tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.fixture
def grown_twice(tmp_path):
    """Function that packs a source, and appends others, with tokens and as an index."""

    def make(sources, **options):
        copy, index = tmp_path / "copy", tmp_path / "index"
        for folder, index_only in ((copy, False), (index, True)):
            packer.pack(sources[0], folder, index_only=index_only, **{**OPTIONS, **options})
            for source in sources[1:]:
                packer.append(folder, source, sync=False)
        return copy, index

    return make


@pytest.mark.parametrize("name", ["long integers in files", "no labels column", "kept", "groups", "shuffled"])
def test_an_index_that_grew_becomes_the_copied_dataset_that_grew(tmp_path, grown_twice, monkeypatch, name):
    make, options = SOURCES[name]
    sources = []
    for number in range(3):
        monkeypatch.setattr(test_index_only, "LENGTHS", LENGTHS[number:])
        (tmp_path / str(number)).mkdir()
        sources.append(make(tmp_path / str(number)))
    copy, index = grown_twice(sources, **options)
    made = packer.materialize(index, sources, tmp_path / "made", sync=False)
    assert hashes(tmp_path / "made") == hashes(copy)
    assert made == packer.load(copy).manifest
    assert len(made.generations) == 3


def test_a_grown_index_with_tables_and_lists_of_rejected_records(tmp_path, files, grown_twice, monkeypatch):
    shrink(monkeypatch, shards_in_manifest=8)
    copy, index = grown_twice(files, on_error="skip")
    packer.materialize(index, files, tmp_path / "made", sync=False)
    assert hashes(tmp_path / "made") == hashes(copy)
    assert {"rejected-00002.jsonl", "manifest-shards.arrows", "manifest-shards-00002.arrows"} <= hashes(copy).keys()


def test_kept_tokens_of_an_index_have_one_type(tmp_path):
    def scores(kind):
        return lambda tokens: pa.array([[float(token) for token in one] for one in tokens], pa.list_(kind))

    one = write(tmp_path / "one.arrow", columns_of(LENGTHS[:30], score=scores(pa.float64())))
    two = write(tmp_path / "two.arrow", columns_of(LENGTHS[:30], score=scores(pa.float32())))
    packer.pack(one, tmp_path / "index", index_only=True, keep_tokens=["score"], **OPTIONS)
    packer.append(tmp_path / "index", two, sync=False)
    with pytest.raises(PackerError, match=r"'score' is double in the source of generation 0, and float in that of"):
        packer.load(tmp_path / "index", source=[one, two])
    with pytest.raises(PackerError, match=r"'score' is double in the source of generation 0, and float in that of"):
        packer.materialize(tmp_path / "index", [one, two], tmp_path / "made")


def test_lengths_alone_are_appended(tmp_path):
    np.save(tmp_path / "one.npy", np.array([5, 9, 3, 16]))
    np.save(tmp_path / "two.npy", np.array([7, 7, 2]))
    packer.pack(tmp_path / "one.npy", tmp_path / "set", lengths_column="lengths", **OPTIONS)
    packer.append(tmp_path / "set", tmp_path / "two.npy", sync=False)
    segments = sorted(segment for row in packer.rows(tmp_path / "set") for segment in row)
    assert [(segment.doc_id, segment.length) for segment in segments] == list(enumerate([5, 9, 3, 16, 7, 7, 2]))
    before = [segment.doc_id for row in packer.rows(tmp_path / "set", generations=1) for segment in row]
    assert sorted(before) == [0, 1, 2, 3]


# kills


def test_a_kill_at_any_instant_leaves_the_old_set_or_the_new_one(tmp_path):
    first, source = (
        write(tmp_path / f"{name}.arrow", columns_of(LENGTHS[:17], number, labels=masked))
        for number, name in enumerate(("first", "more"))
    )
    packed, copy, stages = tmp_path / "set", tmp_path / "copy", set()
    packer.pack(first, packed, **OPTIONS)
    shutil.copytree(packed, copy)
    packer.append(copy, source, workers=1, sync=False)
    expected, rows = hashes(copy), {len(packer.load(packed)): "old", len(packer.load(copy)): "new"}
    for number in (*range(0, 36, 5), *range(36, 1000)):  # the last ones put it in place
        shutil.rmtree(copy)
        shutil.copytree(packed, copy)
        try:
            with killed_at(number):
                packer.append(copy, source, workers=1, sync=False)
        except Killed:
            pass
        else:
            break
        found = rows[len(packer.load(copy))]
        stages.add((found, len(list(copy.glob("*.arrow")))))
        assert list(packer.verify(copy, {"old": first, "new": [first, source]}[found])) == [], number
        packer.append(copy, source, workers=1, sync=False)  # the same command
        assert hashes(copy) == expected, number
        assert not (copy / ".packer").exists()
    assert number > 50
    old = len(list(packed.glob("*.arrow")))
    new = len(list(copy.glob("*.arrow")))
    assert stages >= {("old", old), ("old", old + 1), ("old", new), ("new", new)}


def stopped(monkeypatch, packed, source, commits=2):
    """Append until some shards are committed, and stop like a kill."""
    commit, done = Output.commit, []

    def stop(self, *arguments):
        if len(done) == commits:
            raise KeyboardInterrupt
        done.append(commit(self, *arguments))

    with monkeypatch.context() as patched:
        patched.setattr(Output, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            packer.append(packed, source, workers=1)


def test_other_documents_wait_for_an_interrupted_append_or_discard_it(packed, target, files, monkeypatch):
    packer.append(packed, files[2])
    stopped(monkeypatch, target, files[1])
    with pytest.raises(PackerError, match=r"unfinished pack from other source files .*start afresh with overwrite"):
        packer.append(target, files[2])
    assert len(packer.pack(files[0], target, **OPTIONS).generations) == 1  # which leaves the append alone
    packer.append(target, files[2], overwrite=True)
    assert hashes(target) == hashes(packed)
    assert list(packer.verify(target, [files[0], files[2]])) == []


def test_a_set_that_is_replaced_takes_no_part_of_an_append_along(packed, files, tmp_path, monkeypatch):
    stopped(monkeypatch, packed, files[1])
    packer.pack(files[0], packed, overwrite=True, **{**OPTIONS, "seed": 3})
    assert not (packed / ".packer").exists()
    packer.append(packed, files[1])
    assert list(packer.verify(packed, files[:2])) == []


def test_one_process_appends_at_a_time(packed, files):
    with claim_append(packed, sync=False):
        with pytest.raises(PackerError, match="in use by another packer: wait for it, and repeat the command"):
            packer.append(packed, files[1])
        with pytest.raises(PackerError, match="in use by another packer"):
            packer.pack(files[0], packed, overwrite=True, **OPTIONS)
    packer.append(packed, files[1])


# several processes


def by_ranks(packed, source, count, *, only=None, **options):
    """Append by ranks in threads of this process; return what each returned or raised."""
    ranks = range(count) if only is None else only

    def run(rank):
        try:
            return packer.append(packed, source, rank=rank, ranks=count, workers=1, **options)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(run, ranks))


@pytest.mark.nightly(after=3)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ranks_append_together(packed, target, files, monkeypatch, count):
    written, write = [], ShardTask.__call__

    def counted(task, shard, observe=iter):
        written.append(shard)
        return write(task, shard, observe)

    for source in files[1:]:
        expected = packer.append(packed, source)
        with monkeypatch.context() as patched:
            patched.setattr(ShardTask, "__call__", counted)
            assert by_ranks(target, source, count) == [expected] * count
        assert len(written) == expected.generations[-1].shards, "no shard is written twice"
        written.clear()
        assert hashes(target) == hashes(packed)
        assert not (target / ".packer").exists()
    packer.append(target, files[2])  # again
    assert hashes(target) == hashes(packed)
    assert list(packer.verify(target, files)) == []


def test_a_rank_that_never_comes_or_comes_late_is_no_loss(packed, target, files):
    expected = packer.append(packed, files[1])
    assert by_ranks(target, files[1], 3, only=[1, 2], rank_timeout=0.3) == [expected] * 2
    assert by_ranks(target, files[1], 3, only=[0]) == [expected]
    assert hashes(target) == hashes(packed)


def test_a_finished_generation_with_a_changed_manifest_is_not_put_in_place(packed, files, monkeypatch):
    """Its counts would be sealed with a checksum of their own."""
    before = hashes(packed)
    with monkeypatch.context() as broken:
        broken.setattr(Joining, "join", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            packer.append(packed, files[1], sync=False)
    manifest = packed / ".packer" / "append-00001" / "manifest.json"
    whole = manifest.read_bytes()
    at = whole.rindex(b'"tokens": ') + len(b'"tokens": ')
    manifest.write_bytes(whole[:at] + (b"2" if whole[at : at + 1] != b"2" else b"3") + whole[at + 1 :])
    with pytest.raises(PackerError, match=r"append-00001.*manifest\.json"):
        packer.append(packed, files[1], sync=False)
    assert {name: digest for name, digest in hashes(packed).items() if name in before} == before
    manifest.write_bytes(whole)
    packer.append(packed, files[1], sync=False)
    assert list(packer.verify(packed, files[:2])) == []


def test_what_ranks_began_one_process_finishes(packed, target, files, monkeypatch):
    packer.append(packed, files[1])
    with monkeypatch.context() as broken:
        broken.setattr("packer.pipeline.packing.write_shards", lambda *_: 1 / 0)
        assert {type(result) for result in by_ranks(target, files[1], 2)} == {ZeroDivisionError}
    assert (target / ".packer" / "append-00001").is_dir()
    with pytest.raises(PackerError, match="overwrite cannot be used with ranks: discard what was begun with a single"):
        packer.append(target, files[1], rank=0, ranks=2, overwrite=True)
    packer.append(target, files[1])
    assert hashes(target) == hashes(packed)


def test_ranks_end_with_the_error_in_the_documents(packed, tmp_path, monkeypatch):
    shrink(monkeypatch, heartbeat=0.05)
    bad = write(tmp_path / "bad.arrow", columns_of(LENGTHS[:30]))
    before = hashes(packed)
    for result in by_ranks(packed, bad, 2):
        assert isinstance(result, PackerError)
        assert "have labels or a mask, and these have none" in str(result)
    assert hashes(packed) == before
    assert not (packed / ".packer").exists()


def test_one_rank_prints_the_summary(packed, files):
    command = [sys.executable, "-m", "packer", "append", packed, files[1], "--ranks", "2"]
    ranks = [
        subprocess.Popen([*map(str, command), "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert sum(output.startswith("Appended 57 documents") for output in outputs) == 1
    assert list(packer.verify(packed, files[:2])) == []


# what is refused


def test_documents_that_are_there_are_not_appended_twice(packed, files, tmp_path):
    with pytest.raises(PackerError, match=r"holds these documents already, in rows 0 to \d+"):
        packer.append(packed, files[0])
    packer.append(packed, files[1])
    before = hashes(packed)
    packer.append(packed, files[1])  # as a script that is run again does
    assert hashes(packed) == before
    packer.append(packed, files[2])
    with pytest.raises(PackerError, match=r"holds these documents already, in rows \d+ to \d+"):
        packer.append(packed, files[1])
    (tmp_path / "others").mkdir()
    other = write(tmp_path / "others" / "b.arrow", columns_of(LENGTHS[:60], 2000, labels=masked))
    assert other.stat().st_size == files[1].stat().st_size
    packer.append(packed, other)  # other tokens under the same name, of the same lengths
    assert list(packer.verify(packed, [*files, other])) == []


def test_a_folder_that_has_old_files_beside_new_ones_is_refused(tmp_path, caplog):
    def save(name, first, count=60):
        (tmp_path / "data").mkdir(exist_ok=True)
        return write(tmp_path / "data" / f"{name}.arrow", columns_of(LENGTHS[:count], first))

    save("one", 0, 50)
    save("two", 1000)
    packed = tmp_path / "set"
    packer.pack(tmp_path / "data", packed, **OPTIONS)
    three = save("three", 3000, 40)
    before = hashes(packed)
    with pytest.raises(
        PackerError, match=r"holds the documents of one.arrow, two.arrow already, in rows 0 to \d+: appen"
    ):
        packer.append(packed, tmp_path / "data")
    assert hashes(packed) == before
    packer.append(packed, three)
    with pytest.raises(
        PackerError, match=r"holds the documents of three.arrow already, in rows \d+ to \d+: append the "
    ):
        packer.append(packed, tmp_path / "data")
    assert not caplog.messages
    for name, first, count in (("one", 5000, 50), ("three", 7000, 40)):
        save(name, first, count)  # other tokens, in files of the same sizes
    packer.append(packed, tmp_path / "data")
    assert len(packer.load(packed).manifest.generations) == 3
    save("four", 9000)
    (tmp_path / "data" / "three.arrow").unlink()
    (tmp_path / "data" / "one.arrow").unlink()
    packer.append(packed, tmp_path / "data")
    (warning,) = caplog.messages
    assert "holds documents of files with the names and sizes of two.arrow: if they are the same, append" in warning


def test_the_command_that_packed_a_set_leaves_what_was_appended(packed, files):
    grown = packer.append(packed, files[1])
    before = hashes(packed)
    assert packer.pack(files[0], packed, **OPTIONS) == grown
    assert hashes(packed) == before
    with pytest.raises(PackerError, match="is complete, packed from other source files"):
        packer.pack(files[2], packed, **OPTIONS)
    write(files[0], columns_of(LENGTHS, 7, labels=masked))
    packer.append(packed, files[2])  # the manifest is younger than the source, and its rows are not
    with pytest.raises(PackerError, match="is complete, packed from a source that has changed since"):
        packer.pack(files[0], packed, **OPTIONS)


def test_what_cannot_be_appended_is_refused_and_leaves_nothing_behind(packed, files, tmp_path, monkeypatch):
    before = hashes(packed)
    monkeypatch.chdir(tmp_path)
    bare = write(tmp_path / "bare.arrow", columns_of(LENGTHS[:9]))
    (tmp_path / "text.jsonl").write_text('{"text": "words"}\n')
    for folder, source, words in (
        (packed, bare, "have labels or a mask, and these have none"),
        (packed, tmp_path / "text.jsonl", "was packed from tokens: append documents of the same kind"),
        (packed, tmp_path / "nowhere", "no such file"),
        (packed, tmp_path, "is inside the source .*: append the files or folders in it that hold documents$"),
        (packed, [], "holds paths, which are one source"),
        (packed, "./set", "is packed already"),
        (tmp_path / "nowhere", files[1], "no such file or folder"),
        (tmp_path, files[1], "is not a packed dataset"),
    ):
        with pytest.raises(PackerError, match=words):
            packer.append(folder, source)
        assert not (packed / ".packer").exists()
    with pytest.raises(PackerError, match="leave tokenizer x out"):
        packer.append(packed, files[1], tokenizer="x")
    assert hashes(packed) == before


def test_a_full_disk_is_told_without_an_option_that_append_does_not_have(packed, files, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 0))
    with pytest.raises(PackerError, match=r"0 bytes are free: free some space and repeat the same command$"):
        packer.append(packed, files[1])


def test_a_kept_column_has_the_same_type(tmp_path):
    def names(kind):
        return lambda tokens: pa.array(range(len(tokens)), kind)

    one, two = (
        write(tmp_path / f"{kind}.arrow", columns_of(LENGTHS[:30], number=names(kind)))
        for kind in (pa.int64(), pa.int8())
    )
    packer.pack(one, tmp_path / "set", keep=["number"], **OPTIONS)
    with pytest.raises(PackerError, match="'number' is int8 in these documents, and int64 in"):
        packer.append(tmp_path / "set", two)
    assert not (tmp_path / "set" / ".packer").exists()


def test_text_is_tokenized_alike(tmp_path, tokenizer):  # noqa: F811
    for name in ("one", "two"):
        lines = (json.dumps({"text": f"The quick fox {number} {name}"}) + "\n" for number in range(40))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "other.jsonl").write_text(json.dumps({"prompt": "The", "completion": "fox"}) + "\n")
    packed = tmp_path / "set"
    packer.pack(tmp_path / "one.jsonl", packed, tokenizer=tokenizer, **OPTIONS)
    with pytest.raises(PackerError, match="give its path with tokenizer"):
        packer.append(packed, tmp_path / "two.jsonl")
    with pytest.raises(PackerError, match=r"was packed with columns \['text'\], and these documents have \['prompt'"):
        packer.append(packed, tmp_path / "other.jsonl", tokenizer=tokenizer)
    shutil.copytree(tokenizer, tmp_path / "changed")
    content = json.loads((tmp_path / "changed" / "tokenizer.json").read_text())
    content["added_tokens"][0]["lstrip"] = not content["added_tokens"][0].get("lstrip")
    (tmp_path / "changed" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(PackerError, match=r"was packed with tokenizer [0-9a-f]{32}, and these documents have"):
        packer.append(packed, tmp_path / "two.jsonl", tokenizer=str(tmp_path / "changed"))
    manifest = packer.append(packed, tmp_path / "two.jsonl", tokenizer=tokenizer, sync=False)
    assert manifest.totals.documents_untrained == 0
    sources = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    assert list(packer.verify(packed, sources, tokenizer=tokenizer)) == []


# the files


def test_rejected_records_of_each_generation_are_listed(tmp_path):
    for name in ("one", "two"):
        lines = [json.dumps({"input_ids": [number, number + 1]}) for number in range(30)]
        lines[4] = lines[17] = json.dumps({"input_ids": [3, -3]})
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    packed, sources = tmp_path / "set", [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    packer.pack(sources[0], packed, on_error="skip", **OPTIONS)
    before = (packed / "rejected.jsonl").read_bytes()
    manifest = packer.append(packed, sources[1], sync=False)
    assert (packed / "rejected.jsonl").read_bytes() == before
    listed = [json.loads(line) for line in (packed / "rejected-00001.jsonl").read_text().splitlines()]
    assert [(record["document"], record["line"]) for record in listed] == [(34, 5), (47, 18)]
    assert manifest.totals.documents_rejected == {"invalid_tokens": 4}
    assert list(packer.verify(packed, sources)) == []
    (packed / "rejected-00001.jsonl").unlink()
    assert "rejected-00001.jsonl is missing" in list(packer.verify(packed))


def test_very_many_shards_are_in_a_table_of_each_generation(packed, files, tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(packed, other)
    shrink(monkeypatch, shards_in_manifest=18)
    for source in files[1:]:
        grown = packer.append(packed, source, sync=False)
    assert {"manifest-shards-00001.arrows", "manifest-shards-00002.arrows"} <= {path.name for path in packed.iterdir()}
    assert list(packer.verify(packed, files)) == []
    shrink(monkeypatch, shards_in_manifest=4096)
    for source in files[1:]:
        listed = packer.append(other, source, sync=False)
    assert list(grown.shards) == list(packer.load(packed).manifest.shards) == list(listed.shards)
    assert [grown.shards[number].file for number in range(len(grown.shards))] == [entry.file for entry in listed.shards]
    one, two = (packer.load(folder, generations=2) for folder in (packed, other))
    assert one.fingerprint == two.fingerprint
    (packed / "manifest-shards-00002.arrows").unlink()
    with pytest.raises(PackerError, match=r"manifest-shards-00002.arrows is missing"):
        packer.load(packed)


def grow(content, number, name, by):
    content["generations"][number]["totals"][name] += by


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["generations"].clear(), "there are no generations"),
        (lambda content: content.pop("generations"), "no 'generations'"),
        (lambda content: content["generations"][0].update(shards=2), "the generations have 9 shards"),
        (
            lambda content: content["generations"][0].update(shards=0),
            r"generations\[0\].shards is 0, not a whole number",
        ),
        (lambda content: content["generations"][1].update(source=3), r"generations\[1\].source is 3, not an object"),
        (lambda content: content["generations"][1]["totals"].update(groups=None), "totals.groups is null"),
        (
            lambda content: content["shards"][-1].update(file="../data-00000-of-00001.arrow"),
            "is named .*, not data-000",
        ),
        (lambda content: content["shards"][-1].update(file="data-00021-of-00015.arrow"), "is named .*, not data-00021"),
        (lambda content: content.update(format_version=4), "has format version 4, this package reads 5 to 8"),
    ],
)
def test_damaged_descriptions_of_generations_are_refused(packed, files, change, words):
    packer.append(packed, files[1], sync=False)
    edit_manifest(packed, change)
    with pytest.raises(PackerError, match=words):
        packer.load(packed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: grow(content, 0, "tokens_packed", 1), "generation 0, .* computed from the shards"),
        (lambda content: grow(content, 1, "pool_rows", 10**6), "generation 1, .*: pool_rows is"),
        (lambda content: content["generations"][0]["source"].update(documents=100), "document 100 is not of its gener"),
    ],
)
def test_wrong_totals_of_a_generation_are_found(packed, files, change, words):
    packer.append(packed, files[1], sync=False)

    def changed(content):
        change(content)
        for totals in (generation["totals"] for generation in content["generations"]):
            totals["efficiency"] = totals["tokens_packed"] / (totals["rows"] * 16)

    edit_manifest(packed, changed)
    faults = list(packer.verify(packed))
    assert any(pa.compute.match_substring_regex(pa.array([fault]), words)[0].as_py() for fault in faults), faults


def test_a_shard_with_documents_of_another_generation_is_found(packed, files):
    packer.append(packed, files[1], sync=False)

    def renumbered(table):
        """Count documents of the second generation as if they were of the first."""
        at, ids = table.column_names.index("doc_ids"), table["doc_ids"].to_pylist()
        is_new = max(map(max, ids)) >= len(LENGTHS)
        ids = pa.array(shifted(ids, -len(LENGTHS)) if is_new else ids, table.schema.field(at).type)
        return table.set_column(at, table.schema.field(at), ids)

    rewrite_shards(packed, renumbered)
    assert any("is not of its generation, 140 to 199" in fault for fault in packer.verify(packed))


# the command


def test_the_command_takes_no_options_of_the_pack(packed, files):
    for option in ("--max-len", "--shard_size"):
        done = run("append", packed, files[1], option, 32)
        assert done.exit_code == 2
        assert f"No such option '{option.replace('_', '-')}': packer append takes the options of the d" in done.output


def test_the_command_says_what_was_appended(packed, files):
    told = succeeded("append", packed, files[1])
    assert told.startswith("Appended 57 documents in 29 rows of 16 tokens in ")
    assert told.endswith(f"{packed} has 2 generations now: 190 documents in 95 rows\n")
    again = f"{packed} has these documents as its last generation: nothing to do\n"
    assert succeeded("append", packed, files[1]) == again
    content = json.loads(succeeded("append", packed, files[2], "--json"))
    assert content["format_version"] == 5
    assert [part["source"]["documents"] for part in content["generations"]] == [140, 60, 80]
    succeeded("verify", packed, *(word for path in files for word in ("--source", path)))


# object storage


def killing(usual, number):
    """A function that is killed when it was called so often."""
    calls = []

    def killed(*arguments, **options):
        calls.append(1)
        if len(calls) > number:
            raise Killed
        return usual(*arguments, **options)

    return killed


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize("name", ["upload", "write_bytes", "copy", "remove_all"])
def test_a_kill_leaves_the_old_set_in_a_store_or_the_new_one(packed, in_store, files, monkeypatch, name, tmp_path):
    packer.append(packed, files[1], sync=False)
    before, expected = hashes(in_store), hashes(packed)
    for number in (0, 2):
        with monkeypatch.context() as struck:
            struck.setattr(RemotePath, name, killing(getattr(RemotePath, name), number))
            without_last_word(struck)
            with contextlib.suppress(Killed):
                packer.append(str(in_store), files[1])
        found = hashes(in_store)
        is_old = found["manifest.json"] == before["manifest.json"]
        assert before.items() <= found.items() if is_old else found["manifest.json"] == expected["manifest.json"]
        dataset = packer.load(str(in_store), cache_dir=tmp_path / "cache")
        assert len(dataset) == sum(entry.rows for entry in dataset.manifest.shards)
        assert list(packer.verify(str(in_store), files[0] if is_old else files[:2])) == []
    packer.append(str(in_store), files[1])
    assert hashes(in_store) == expected


def test_of_two_appends_to_a_set_in_a_store_one_fails(packed, in_store, files, monkeypatch):
    for source in files[1:]:
        packer.append(packed, source, sync=False)
    write = RemotePath.write_bytes

    def other_first(self, content, **options):
        """Another command puts the same generation in place, and appends its own, between two requests of this one."""
        if self.state is not None:  # the manifest that is replaced
            monkeypatch.setattr(RemotePath, "write_bytes", write)
            packer.append(str(in_store), files[2])
        write(self, content, **options)

    monkeypatch.setattr(RemotePath, "write_bytes", other_first)
    with pytest.raises(PackerError, match="set was changed by another packer just now: repeat the command"):
        packer.append(str(in_store), files[1])
    assert hashes(in_store) == hashes(packed)
    assert list(packer.verify(str(in_store), files)) == []
