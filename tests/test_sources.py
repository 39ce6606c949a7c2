"""Every input format yields the same documents in the same order, also by address."""

import json
import os
from itertools import pairwise

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.sources.source import read_documents
from packer.sources.spill import spill_source
from tests.helpers.opening import open_source
from tests.helpers.small import shrink
from tests.helpers.sources import DOCUMENTS, KINDS, MAPPED, arrow_table, read_decoded, read_whole, write
from tests.helpers.writing import write_ipc

LABELS = [[NO_LOSS, 6, 7], [], [1], [NO_LOSS, 0], list(range(50)), [9, NO_LOSS]]


@pytest.mark.parametrize("labels", [None, LABELS], ids=["", "labels"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_documents(tmp_path, kind, labels):
    path = write(tmp_path / "data", kind, DOCUMENTS, labels)
    source = open_source(path)
    assert source.mapped == (kind in MAPPED)
    assert source.has_labels == (labels is not None)
    spilled = spill_source(source, tmp_path / "spill")
    assert spilled.mapped
    assert spilled.files == source.files
    assert read_whole(spilled) == (DOCUMENTS, labels)
    assert read_documents(spilled).identity == read_documents(open_source(path)).identity


def test_identity_depends_on_the_content_of_the_source(tmp_path):
    (tmp_path / "d" / "b").mkdir(parents=True)
    write(tmp_path / "d" / "b" / "two", "jsonl", DOCUMENTS[3:])
    write(tmp_path / "d" / "a", "stream", DOCUMENTS[:3])
    found = read_documents(open_source(tmp_path / "d"), hold_lengths=True)
    lengths = np.array([len(d) for d in DOCUMENTS], np.int32)
    assert found.lengths.dtype == np.int32
    assert found.lengths.tolist() == lengths.tolist()
    assert found.identity.tokens == 58
    sizes = [(tmp_path / "d" / name).stat().st_size for name in ("a.arrow", "b/two.jsonl")]
    assert found.identity.to_dict() == {
        "files": [
            {"name": "a.arrow", "bytes": sizes[0], "rows": 3, "tokens": 4},
            {"name": "b/two.jsonl", "bytes": sizes[1], "rows": 3, "tokens": 54},
        ],
        "documents": 6,
        "tokens": 58,
        "labels": False,
        "lengths_xxh3_128": xxhash.xxh3_128_hexdigest(lengths.tobytes()),
    }
    json.dumps(found.identity.to_dict())


WIDTHS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def test_integer_widths_and_list_kinds_mix(tmp_path):
    expected = []
    for i, width in enumerate(WIDTHS):
        for j, kind in enumerate([pa.list_(width), pa.large_list(width), pa.list_(width, 2)]):
            table = arrow_table([[i, j], [j, 100]], list_type=kind)
            name = f"{len(expected):03d}"
            if (i + j) % 2:
                write_ipc(tmp_path / f"{name}.arrow", table)
            else:
                pq.write_table(table, tmp_path / f"{name}.parquet")
            expected += [[i, j], [j, 100]]
    source = open_source(tmp_path)
    assert read_whole(spill_source(source, tmp_path / "spill"))[0] == expected


def test_folder_order_is_bytewise_and_hidden_and_foreign_files_are_ignored(tmp_path):
    for i, name in enumerate(["Z", "a", "b/x", "b-c", "é"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "jsonl", [[i]])
    write(tmp_path / ".hidden", "jsonl", [[99]])
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / "dataset_info.json").write_text("{}")
    names = ["Z.jsonl", "a.jsonl", "b-c.jsonl", "b/x.jsonl", "é.jsonl"]
    source = open_source(tmp_path)
    assert [file.name for file in source.files] == names == sorted(names, key=os.fsencode)
    assert read_decoded(source)[0] == [[0], [1], [3], [2], [4]]


# datasets after shuffle, select and filter


def derived(dataset):
    return {
        "shuffle": dataset.shuffle(seed=3),
        "select": dataset.select([4, 1, 4, 0]),
        "slice": dataset.select(range(2, 5)),
        "slice of shuffle": dataset.shuffle(seed=3).select(range(1, 4)),
        "filter": dataset.filter(lambda row: len(row["input_ids"]) > 1),
        "sort": dataset.add_column("key", [3, 1, 2, 9, 0, 4]).sort("key"),
        "concatenate": datasets.concatenate_datasets([dataset.select(range(1, 3)), dataset]),
        "add_column": datasets.concatenate_datasets([dataset, dataset]).add_column("labels", DOCUMENTS * 2),
    }


@pytest.mark.parametrize(
    "how", ["shuffle", "select", "slice", "slice of shuffle", "filter", "sort", "concatenate", "add_column"]
)
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_datasets_in_memory_and_on_disk(tmp_path, how, where):
    dataset = datasets.Dataset.from_dict({"input_ids": DOCUMENTS})
    if where == "disk":
        dataset.save_to_disk(tmp_path / "base", num_shards=3)
        dataset = datasets.load_from_disk(tmp_path / "base")
        assert len(list((tmp_path / "base").glob("*.arrow"))) == 3
        assert read_whole(open_source(tmp_path / "base"))[0] == DOCUMENTS
    dataset = derived(dataset)[how]
    expected = dataset["input_ids"][:]
    source = open_source(dataset)
    assert read_whole(spill_source(source, tmp_path / "spill"))[0] == expected
    dataset.save_to_disk(tmp_path / "saved")
    assert read_whole(open_source(tmp_path / "saved"))[0] == expected


def test_format_of_a_dataset_does_not_matter():
    dataset = datasets.Dataset.from_dict({"input_ids": DOCUMENTS, "labels": LABELS}).with_format("numpy")
    assert read_whole(open_source(dataset)) == (DOCUMENTS, LABELS)


def test_a_dataset_whose_rows_are_transformed_as_they_are_read_is_refused():
    dataset = datasets.Dataset.from_dict({"input_ids": DOCUMENTS}).with_transform(lambda rows: rows)
    with pytest.raises(PackerError, match=r"has a transform .* apply it with map, or remove it with reset_format"):
        open_source(dataset)


# chunks, slices and blocks


def test_describe_gives_the_location_in_each_format(tmp_path):
    write(tmp_path / "a", "parquet", [[1], [2]])
    write(tmp_path / "b", "jsonl", [[3], [4]])
    write(tmp_path / "c", "stream", [[5], [6]])
    source = open_source(tmp_path)
    for opened in map(read_documents, (source, spill_source(source, tmp_path / ".spill"))):
        assert opened.describe(1) == "document 1 (a.parquet row 1)"
        assert opened.describe(3) == "document 3 (b.jsonl line 2)"
        assert opened.describe(4) == "document 4 (c.arrow row 0)"


# the spill


@settings(max_examples=40)
@given(
    documents=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=20), min_size=1, max_size=30),
    cuts=st.lists(st.tuples(st.sampled_from(KINDS[:-1]), st.integers(0, 30)), min_size=1, max_size=4),
    block=st.integers(1, 500),
    masked=st.booleans(),
)
def test_any_documents_round_trip_through_any_formats(tmp_path_factory, documents, cuts, block, masked):
    folder = tmp_path_factory.mktemp("mix")
    starts = sorted(min(cut, len(documents)) for _, cut in cuts)
    bounds = [0, *starts, len(documents)]
    labels = [[NO_LOSS] * len(document) for document in documents] if masked else None
    for i, (start, end) in enumerate(pairwise(bounds)):
        kind = cuts[i % len(cuts)][0]
        write(folder / f"{i}", kind, documents[start:end], labels[start:end] if labels else None)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, json_block=block)
        source = open_source(folder)
        assert read_whole(spill_source(source, folder / ".spill")) == (documents, labels)
