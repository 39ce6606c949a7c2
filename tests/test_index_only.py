"""Index-only datasets: rows with their source equal those of the copied dataset, and they become it again."""

import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer.errors import PackerError
from tests.helpers.index_only import (
    LENGTHS,
    NAMES,
    SOURCES,
    columns_of,
    hashes,
    masked,
    packed_twice,
    plain,
    same_rows,
    write,
)
from tests.helpers.packed_rows import edit_manifest, fit_manifest
from tests.helpers.writing import write_ipc


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("name", NAMES)
def test_rows_with_their_source_are_those_of_the_copied_dataset_which_an_index_becomes(tmp_path, name):
    make, options = SOURCES[name]
    source = make(tmp_path)
    copy, index = packed_twice(tmp_path, source, **options)
    copied, indexed = packer.load(copy), packer.load(index, source=source)
    assert len(copied.manifest.shards) >= (3 if name != "fixed lists" else 1)
    same_rows(copied, indexed)
    assert replace(copied.manifest.totals, largest_id=None) == indexed.manifest.totals  # an index reads no tokens
    assert [entry.rows for entry in copied.manifest.shards] == [entry.rows for entry in indexed.manifest.shards]
    assert [entry.trained for entry in copied.manifest.shards] == [entry.trained for entry in indexed.manifest.shards]
    assert not list(packer.verify(index))
    assert not list(packer.verify(index, source))
    stored = pa.ipc.open_stream(str(index / indexed.manifest.shards[0].file)).schema.names
    assert not {"input_ids", "labels", "position_ids", "score"} & set(stored)


@pytest.mark.parametrize("name", ["trained", "untrained_segments", "trained_later"])
def test_counts_of_trained_tokens_are_counted_again_with_the_source(tmp_path, name):
    source = plain(tmp_path, labels=masked)
    _, index = packed_twice(tmp_path, source)

    def change(content):
        content["shards"][name][0] += 1
        content["totals"][
            {
                "trained": "tokens_trained",
                "untrained_segments": "segments_untrained",
                "trained_later": "tokens_trained_later",
            }[name]
        ] += 1

    edit_manifest(index, change)
    assert list(packer.verify(index)) == []
    (fault,) = packer.verify(index, source)
    assert re.match(
        r"data-00000.*arrow has .* (trained tokens( in later segments)?|segments without a trained token), the man",
        fault,
    )


def test_batches_resume_and_workers_read_the_same_tokens(tmp_path, another_process):
    source = plain(tmp_path, labels=masked)
    copy, index = packed_twice(tmp_path, source)
    copied, indexed = packer.load(copy), packer.load(index, source=source)
    for one, other in zip(*(packer.batches(each, rows=4, tensors="numpy") for each in (copied, indexed)), strict=True):
        for name, values in one.items():
            assert np.array_equal(values, other[name]), name
    there = another_process(_read_all, indexed)
    assert [row["input_ids"].tolist() for row in copied] == there
    assert indexed.__getitems__([])[0]["labels"].tolist() == [-100] * 16


def _read_all(dataset):
    return [row["input_ids"].tolist() for row in dataset]


def test_without_its_source_an_index_has_no_tokens(tmp_path):
    source = plain(tmp_path)
    copy, index = packed_twice(tmp_path, source)
    dataset = packer.load(index)
    assert dataset.column_names == ["seq_lengths", "doc_ids", "doc_starts"]
    assert dataset.find(3) == packer.load(copy).find(3)
    with pytest.raises(PackerError, match=r"row 0 of the batch has no tokens, .* packer.load\(path, source=...\)"):
        next(packer.batches(dataset, rows=1))
    with pytest.raises(PackerError, match="is an index without tokens: pack its source without index_only"):
        packer.export(index, tmp_path / "exported", to="megatron")
    with pytest.raises(PackerError, match="holds its tokens, and source is for an index"):
        packer.load(copy, source=source)


def test_another_source_is_refused(tmp_path):
    source = plain(tmp_path)
    _, index = packed_twice(tmp_path, source)
    (tmp_path / "moved").mkdir()
    moved = tmp_path / "moved" / "source.arrow"
    shutil.copy(source, moved)
    assert len(packer.load(index, source=moved)) == len(packer.load(index))
    swapped = list(LENGTHS)
    swapped[0], swapped[1] = swapped[1], swapped[0]
    write(moved, columns_of(swapped))
    assert moved.stat().st_size == source.stat().st_size
    with pytest.raises(PackerError, match="another source than the one given: its lengths_xxh3_128 is"):
        packer.load(index, source=moved)
    write(moved, columns_of(LENGTHS[:-1]))
    with pytest.raises(PackerError, match=r"packed from source.arrow of .* bytes, and the source has source.arrow of"):
        packer.load(index, source=moved)
    with pytest.raises(PackerError, match="no such file"):
        packer.load(index, source=tmp_path / "nowhere")


def test_a_source_that_changes_after_loading_is_noticed_by_workers(tmp_path):
    source = plain(tmp_path)
    _, index = packed_twice(tmp_path, source)
    pickled = pickle.dumps(packer.load(index, source=source))
    write(source, columns_of(LENGTHS))
    with pytest.raises(PackerError, match=r"source.arrow: the file changed or was replaced"):
        pickle.loads(pickled)


@pytest.mark.parametrize(("column", "value"), [("input_ids", -7), ("input_ids", 2**40), ("labels", -5)])
def test_tokens_out_of_range_are_named_when_they_are_read(tmp_path, column, value):
    columns = columns_of(LENGTHS, token_type="int64", labels=masked)
    lists = columns[column].to_pylist()
    lists[3][20] = value
    source = write(tmp_path / "source.arrow", {**columns, column: pa.array(lists, pa.list_(pa.int64()))})
    if column == "labels":
        with pytest.raises(PackerError, match=f"document 3 .*'labels' holds {value} at position 20"):
            packer.pack(source, tmp_path / "index", max_len=16, index_only=True)
        return
    packer.pack(source, tmp_path / "index", max_len=16, index_only=True)
    with pytest.raises(PackerError, match=f"document 3 .*'input_ids' holds {value} at position 20"):
        list(packer.load(tmp_path / "index", source=source))


def test_a_mask_is_named_as_the_reason_to_decode(tmp_path):
    ends, tokens = np.array([3], np.uint64), np.array([1, 2, 3], np.uint16)
    (tmp_path / "a.ds").write_bytes(tokens.tobytes())
    (tmp_path / "a.ds.index").write_bytes(ends.tobytes())
    (tmp_path / "a.ds.loss").write_bytes(bytes([0, 1, 1]))
    padded = {"input_ids": [[1, 2, 0]], "attention_mask": [[1, 1, 0]]}
    write(tmp_path / "padded.arrow", {name: pa.array(lists, pa.list_(pa.int32())) for name, lists in padded.items()})
    for name, why in (
        (
            "a.ds",
            "a.ds has the mask 'loss_mask', which becomes labels in .* with labels in its place, or leave index_only",
        ),
        ("padded.arrow", "has the mask 'attention_mask', which removes padding in .* Arrow without padding, or leave"),
    ):
        with pytest.raises(PackerError, match=why):
            packer.pack(tmp_path / name, tmp_path / "index", max_len=16, index_only=True)


def test_what_must_be_decoded_is_refused(tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    with pytest.raises(PackerError, match=r"lines.jsonl is not plain Arrow, and an index reads tokens in place"):
        packer.pack(tmp_path / "lines.jsonl", tmp_path / "index", max_len=16, index_only=True)
    words = r"on_error='skip' decodes the source, .* leave one of on_error and index_only"
    with pytest.raises(PackerError, match=words):
        packer.pack(plain(tmp_path), tmp_path / "index", max_len=16, index_only=True, on_error="skip")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_index_reads_nothing_outside_its_source(tmp_path, seed):
    """Segments that the source does not have, in an index with true hashes, as somebody might make it."""
    source = plain(tmp_path)
    _, index = packed_twice(tmp_path, source)
    random = np.random.default_rng(seed)
    path = min(index.glob("*.arrow"))
    table = pa.ipc.open_stream(path.read_bytes()).read_all().combine_chunks()
    name = ("doc_ids", "doc_starts")[seed % 2]
    lists = table[name].to_pylist()
    row = int(random.integers(len(lists)))
    lists[row][0] = int(random.choice([10**6, 2**30, 2**31 - 1]))
    table = table.set_column(
        table.column_names.index(name), table.schema.field(name), pa.array(lists, table[name].type)
    )
    write_ipc(path, table)
    fit_manifest(index)
    with pytest.raises(PackerError, match=r"the index refers to .*, which the source does not have"):
        list(packer.load(index, source=source))


def test_an_index_in_object_storage_reads_a_local_source(tmp_path, bucket, monkeypatch):
    monkeypatch.setenv("PACKER_SHARD_CACHE", str(tmp_path / "cache"))
    source = plain(tmp_path, labels=masked)
    copy, _ = packed_twice(tmp_path, source)
    options = {"max_len": 16, "shard_size": 16 * 4 * 12}
    packer.pack(source, str(bucket / "index"), index_only=True, **options)
    same_rows(packer.load(copy), packer.load(str(bucket / "index"), source=source))


def test_an_index_of_a_source_in_object_storage_is_that_of_a_local_one(tmp_path, bucket):
    source = plain(tmp_path, labels=masked)
    _, index = packed_twice(tmp_path, source)
    (bucket / "source.arrow").upload(source)
    options = {"max_len": 16, "shard_size": 16 * 4 * 12, "sync": False}
    packer.pack(str(bucket / "source.arrow"), tmp_path / "of-store", index_only=True, **options)
    assert hashes(tmp_path / "of-store") == hashes(index)
    with pytest.raises(PackerError, match=r"is in object storage, .* copy the source to a local disk, or pack without"):
        packer.load(index, source=str(bucket / "source.arrow"))


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("imported", ["", "import datasets; "])
def test_an_index_may_keep_columns_of_types_that_a_library_declares(tmp_path, imported):
    """pyarrow knows the type of `Array2D` only once `datasets` is imported."""
    datasets = pytest.importorskip("datasets")
    features = {"input_ids": datasets.Sequence(datasets.Value("int32")), "image": datasets.Array2D((2, 3), "float32")}
    columns = {"input_ids": [[1, 2, 3], [4, 5]] * 9, "image": [[[number] * 3] * 2 for number in range(18)]}
    source = tmp_path / "source"
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).save_to_disk(source)
    use = f"""{imported}import packer
for index_only, out in ((True, 'index'), (False, 'copy')):
    packer.pack('source', out, max_len=8, keep=['image'], index_only=index_only)
    assert packer.verify(out, 'source')
rows = zip(packer.load('copy'), packer.load('index', source='source'), strict=True)
assert all(str(one) == str(other) for one, other in rows)
"""
    done = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unsigned_value_is_never_taken_for_a_label_without_loss(tmp_path):
    """2**64 - 100 has the bits of -100."""
    table = pa.table({"input_ids": [[1, 2, 3]], "labels": pa.array([[2**64 - 100, 2, 3]], pa.list_(pa.uint64()))})
    for index_only in (False, True):
        source = tmp_path / f"{index_only}.arrow"
        write_ipc(source, table)
        with pytest.raises(PackerError, match="'labels' holds 18446744073709551516 at position 0"):
            packer.pack(source, tmp_path / f"out-{index_only}", max_len=8, index_only=index_only)
