"""Columns with several values per token (`--keep-tokens`), such as the top-k ids and log probabilities of a teacher."""

import json
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError
from tests.helpers import naive
from tests.helpers.commands import succeeded
from tests.helpers.opening import open_source
from tests.helpers.pack import hashes
from tests.helpers.packed_rows import fit_manifest
from tests.helpers.writing import write_as, write_ipc

KEPT = ["ids", "logprobs"]
LISTS = {
    "nested": lambda kind, size: pa.list_(pa.list_(kind)),
    "large": lambda kind, size: pa.large_list(pa.large_list(kind)),
    "fixed": lambda kind, size: pa.list_(pa.list_(kind, size)),
    "large fixed": lambda kind, size: pa.large_list(pa.list_(kind, size)),
}


def made(lengths, width, seed=0) -> dict[str, list]:
    """Documents of distinct tokens, with `width` ids and log probabilities for each."""
    random, ends = np.random.default_rng(seed), np.cumsum(lengths)
    return {
        "input_ids": [list(range(int(end) - length, int(end))) for length, end in zip(lengths, ends, strict=True)],
        "ids": [random.integers(0, 2**31, (length, width)).tolist() for length in lengths],
        "logprobs": [(-random.random((length, width))).astype(np.float16).tolist() for length in lengths],
    }


def table_of(columns, lists="nested", *, logprobs=None) -> pa.Table:
    width = next(len(of_document[0]) for of_document in columns["ids"] if of_document)
    kinds = {"ids": pa.int32(), "logprobs": logprobs or pa.float16()}
    return pa.table(
        {"input_ids": pa.array(columns["input_ids"], pa.list_(pa.int32()))}
        | {name: pa.array(columns[name], LISTS[lists](kind, width)) for name, kind in kinds.items()}
    )


def save(folder: Path, name: str, columns, lists="nested"):
    """Save columns in the format that the name says, see `write_as`, or as a shuffled dataset or one with Array2D."""
    if name.endswith(".jsonl"):
        return write_as(
            folder / name, [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        )
    table = table_of(columns, lists)
    if name == "shuffled":
        order = np.random.default_rng(5).permutation(table.num_rows)
        return datasets.Dataset(table.take(np.argsort(order))).select(order)
    if name == "Array2D":
        width = len(columns["ids"][0][0])
        kinds = {
            "ids": datasets.Array2D((None, width), "int32"),
            "logprobs": datasets.Array2D((None, width), "float32"),
        }
        features = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int32")), **kinds})
        return datasets.Dataset.from_dict(columns, features=features)
    return write_as(folder / name, table)


SOURCES = [
    *(("rows.arrow", lists) for lists in LISTS),
    ("rows.z.arrow", "nested"),
    ("rows.parquet", "nested"),
    ("rows.parquet", "fixed"),
    ("rows.jsonl", "nested"),
    ("dataset", "fixed"),
    ("table", "large"),
    ("shuffled", "nested"),
]
OPTIONS = [
    {},
    {"align": 4},
    {"algorithm": "wrapped"},
    {"long": "truncate"},
    {"long": "drop", "align": 2},
]


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_every_place_of_a_row_has_the_values_of_its_token(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("topk")
    lengths = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any))
    width, max_len = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([8, 12, 32]))
    name, lists = data.draw(st.sampled_from(SOURCES))
    columns, options = made(lengths, width), data.draw(st.sampled_from(OPTIONS))
    source = save(folder, name, columns, lists)
    if options.get("long") == "drop" and not any(0 < length <= max_len for length in lengths):
        return
    manifest = packer.pack(
        source, folder / "out", max_len=max_len, keep_tokens=KEPT, sync=False, shard_size="1KB", **options
    )
    dataset = packer.load(folder / "out")
    assert manifest.source.widths == dict.fromkeys(KEPT, width)
    for row in dataset:
        for column in KEPT:
            assert row[column].shape == (max_len, width)
            assert row[column].tolist() == naive.values_in_row(row, columns[column], width)
        tokens = naive.values_in_row(row, [[[token] for token in ids] for ids in columns["input_ids"]], 1)
        assert row["input_ids"].tolist() == [token for (token,) in tokens]
    assert list(packer.verify(folder / "out", source)) == []
    assert list(packer.verify(folder / "out")) == []


def test_all_kinds_of_lists_give_the_same_bytes(tmp_path):
    columns, found = made([5, 0, 9, 40, 3] * 8, 3), set()
    for number, (name, lists) in enumerate(SOURCES):
        if name != "rows.jsonl":  # whose numbers are int64 and double
            source = save(tmp_path, name, columns, lists)
            packer.pack(source, tmp_path / f"{number}", max_len=16, keep_tokens=KEPT, sync=False, shard_size="2KB")
            found.add(tuple(digest for file, digest in hashes(tmp_path / f"{number}").items() if "data-" in file))
    assert len(found) == 1


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("name", ["rows.arrow", "dataset", "table"])
def test_lists_of_lists_stay_mapped(tmp_path, name, lists):
    source = open_source(save(tmp_path, name, made([5, 9, 3], 2), lists), keep_tokens=tuple(KEPT))
    assert source.mapped
    assert source.value_columns()["ids"].type.value_type == pa.list_(pa.int32(), 2)


def test_columns_may_be_cut_into_chunks_at_other_documents(tmp_path):
    columns = made([5, 9, 3, 7], 2)
    for number, lists in enumerate(LISTS):
        table = table_of(columns, lists)
        tokens = pa.chunked_array([table["input_ids"].chunk(0)[:1], table["input_ids"].chunk(0)[1:]])
        source = datasets.Dataset(table.set_column(0, "input_ids", tokens))
        packer.pack(source, tmp_path / f"{number}", max_len=16, keep_tokens=KEPT, sync=False)
        for row in packer.load(tmp_path / f"{number}"):
            assert row["ids"].tolist() == naive.values_in_row(row, columns["ids"], 2)


def test_a_dataset_with_array2d_is_packed(tmp_path):
    columns = made([5, 9, 3], 2)
    packer.pack(save(tmp_path, "Array2D", columns), tmp_path / "out", max_len=16, keep_tokens=KEPT, sync=False)
    for row in packer.load(tmp_path / "out"):
        assert row["ids"].tolist() == naive.values_in_row(row, columns["ids"], 2)


BAD = {
    "short": ([[7, 8], [9]], "'ids' holds [9], a list of 1, for token 1: give every token 2 numbers, as others have"),
    "long": ([[7, 8, 6], [9, 1]], "'ids' holds [7, 8, 6], a list of 3, for token 0: give every token 2 numbers"),
    "empty": ([[], [9, 1]], "'ids' holds [], a list of 0, for token 0: give every token 2 numbers"),
    "null number": ([[7, 8], [None, 1]], "'ids' holds [null, 1], a list of 2, for token 1: give every token 2 numbers"),
    "null token": ([[7, 8], None], "'ids' holds a null at position 1 of 2; remove it or give it a value"),
    "few tokens": ([[7, 8]], "'ids' has 1 values for 2 tokens; give one per token"),
    "null": (None, "'ids' is null; drop the row or give it a list"),
}


@pytest.mark.nightly(after=14)
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", ["rows.arrow", "rows.parquet", "rows.jsonl", "table"])
def test_other_numbers_of_values_are_refused_or_left_out(tmp_path, name, case):
    wrong, message = BAD[case]
    columns = made([3, 2, 0, 4], 2)
    columns["ids"][1] = wrong
    source = save(tmp_path, name, columns)
    options = {"max_len": 8, "keep_tokens": KEPT, "sync": False}
    with pytest.raises(PackerError) as refused:
        packer.pack(source, tmp_path / "out", **options)
    assert str(refused.value).startswith("document 1 (")
    assert message in str(refused.value)
    manifest = packer.pack(source, tmp_path / "out", on_error="skip", **options)
    assert manifest.totals.documents_rejected == {"invalid_value": 1}
    (listed,) = map(json.loads, (tmp_path / "out" / "rejected.jsonl").read_text().splitlines())
    assert (listed["document"], listed["message"][:20]) == (1, message[:20])
    assert list(packer.verify(tmp_path / "out", source)) == []
    for row in packer.load(tmp_path / "out"):
        assert row["ids"].tolist() == naive.values_in_row(row, columns["ids"], 2)


def test_a_document_that_is_odd_comes_first(tmp_path):
    """Its number of values does not count, because most tokens have another."""
    columns = made([1, 5, 9], 2)
    columns["ids"][0] = [[1, 2, 3]]
    with pytest.raises(PackerError, match=r"document 0 .* a list of 3, for token 0: give every token 2 numbers"):
        packer.pack(save(tmp_path, "rows.jsonl", columns), tmp_path / "out", max_len=8, keep_tokens=KEPT)


def test_a_row_that_a_dataset_leaves_out_may_have_another_number_of_values(tmp_path):
    columns = made([3, 2, 4], 2)
    columns["ids"][1] = [[7, 8], [9]]
    chosen = datasets.Dataset(table_of(columns)).select([2, 0])
    manifest = packer.pack(chosen, tmp_path / "out", max_len=8, keep_tokens=KEPT)
    assert manifest.totals.tokens == 7
    assert list(packer.verify(tmp_path / "out", chosen)) == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.list_(pa.list_(pa.string())), "'ids' holds list<item: list<item: string>>; expected lists of numbers"),
        (pa.list_(pa.list_(pa.list_(pa.int8()))), "expected lists of numbers, one for each token"),
        (
            pa.list_(pa.list_(pa.bool_())),
            "holds lists of fixed_size_list.*bool.*: save the same number of values for every token, and int8 for bool",
        ),
        (
            pa.list_(pa.list_(pa.int8(), 0)),
            r"holds lists of fixed_size_list<item: int8>\[0\]: save the same number of values",
        ),
    ],
)
def test_other_values_are_refused(tmp_path, kind, words):
    value = {pa.string(): [["a"]], pa.bool_(): [[True]], pa.int8(): [[]]}
    leaf = kind.value_type.value_type
    table = pa.table({"input_ids": [[5]], "ids": pa.array([value.get(leaf, [[[1]]])], kind)})
    with pytest.raises(PackerError, match=words):
        packer.pack(write_ipc(tmp_path / "a.arrow", table), tmp_path / "out", max_len=8, keep_tokens=["ids"])


def test_a_mask_has_one_value_per_token(tmp_path):
    table = pa.table({"input_ids": [[5, 6]], "loss_mask": [[[1, 0], [1, 1]]]})
    with pytest.raises(PackerError, match="'loss_mask' holds list<item: list<item: int64>>; expected lists of numbers"):
        packer.pack(write_ipc(tmp_path / "a.arrow", table), tmp_path / "out", max_len=8)


def test_padding_of_documents_is_stripped_from_their_values(tmp_path):
    columns = made([6, 4], 2)
    masks = [[0, 0, 1, 1, 1, 0], [1, 1, 1, 1]]
    table = table_of(columns).append_column("attention_mask", pa.array(masks, pa.list_(pa.int8())))
    packer.pack(write_ipc(tmp_path / "a.arrow", table), tmp_path / "out", max_len=8, keep_tokens=KEPT, sync=False)
    values = {0: columns["ids"][0][2:5], 1: columns["ids"][1]}
    for row in packer.load(tmp_path / "out"):
        assert row["ids"].tolist() == naive.values_in_row(row, values, 2)


def test_types_of_several_files_are_joined_and_their_numbers_of_values_compared(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    one, two = made([4, 3], 2), made([5], 2, seed=1)
    write_as(folder / "a.parquet", table_of(one, "fixed"))
    write_as(folder / "b.parquet", table_of(two, logprobs=pa.float64()))
    packer.pack(folder, tmp_path / "out", max_len=8, keep_tokens=KEPT, sync=False)
    values = one["logprobs"] + two["logprobs"]
    for row in packer.load(tmp_path / "out"):
        assert row["logprobs"].dtype == np.float64
        assert row["logprobs"].tolist() == naive.values_in_row(row, values, 2)
    write_as(folder / "b.parquet", table_of(made([5], 3)))
    with pytest.raises(PackerError, match=r"document 2 \(b.parquet row 0\): 'ids' holds .* a list of 3, for token 0"):
        packer.pack(folder, tmp_path / "other", max_len=8, keep_tokens=KEPT)


def test_batches_and_other_readers_have_an_axis_of_values(tmp_path):
    columns = made([5, 9, 3, 12, 7], 2)
    packer.pack(save(tmp_path, "rows.arrow", columns), tmp_path / "out", max_len=16, keep_tokens=KEPT, sync=False)
    dataset = packer.load(tmp_path / "out")
    rows = [dataset[0], dataset[1]]
    flat = packer.collate(rows, keep_tokens=KEPT)
    assert flat["ids"].shape == (*flat["input_ids"].shape, 2)
    assert flat["logprobs"].dtype == torch.float16
    expected = [naive.values_in_row(row, columns["ids"], 2) for row in rows]
    tokens = [int((row["seq_lengths"] * (row["doc_ids"] >= 0)).sum()) for row in rows]
    assert flat["ids"][0].tolist() == [
        each for row, count in zip(expected, tokens, strict=True) for each in row[:count]
    ]
    assert packer.collate(rows, format="encoder", keep_tokens=KEPT)["ids"].tolist() == expected
    static = packer.static_shape(dataset, rows=2)
    assert packer.collate(rows, static=static, keep_tokens=KEPT)["ids"].shape == (1, static.tokens, 2)
    shown = succeeded("show", tmp_path / "out", 0)
    first, second = columns["ids"][dataset[0]["doc_ids"][0]][:2]
    assert f"[{first[0]} {first[1]}] [{second[0]} {second[1]}]" in shown
    saved = datasets.load_from_disk(str(tmp_path / "out"))
    assert saved.with_format("numpy")[0]["ids"].tolist() == expected[0]
    packer.export(tmp_path / "out", tmp_path / "parquet", to="parquet")
    (file,) = (tmp_path / "parquet").glob("*.parquet")
    assert pq.read_table(file)["ids"].to_pylist() == [naive.values_in_row(row, columns["ids"], 2) for row in dataset]


def test_the_padding_row_has_the_axis_of_values(tmp_path):
    packer.pack(save(tmp_path, "rows.arrow", made([5, 9, 3], 2)), tmp_path / "out", max_len=16, keep_tokens=KEPT)
    dataset = packer.load(tmp_path / "out")
    (row,) = dataset.__getitems__([])
    assert (row["ids"].shape, row["ids"].dtype, row["ids"].any()) == ((16, 2), np.int32, False)


def test_verify_names_a_token_whose_values_differ(tmp_path):
    columns = made([5, 9, 3], 2)
    columns["logprobs"][0][1][0] = float("nan")
    packer.pack(save(tmp_path, "rows.arrow", columns), tmp_path / "out", max_len=16, keep_tokens=KEPT)
    assert list(packer.verify(tmp_path / "out", tmp_path / "rows.arrow")) == []
    columns["ids"][1][4] = [11, 12]
    (fault,) = packer.verify(tmp_path / "out", save(tmp_path, "rows.arrow", columns))
    assert fault.startswith("document 1 (rows.arrow row 1): ids at position 4 is [11, 12] in the source, [")


def test_damaged_values_of_a_token_are_left_out_by_the_loader(tmp_path):
    packer.pack(save(tmp_path, "rows.arrow", made([5, 9, 3], 2)), tmp_path / "out", max_len=32, keep_tokens=KEPT)
    (path,) = (tmp_path / "out").glob("data-*.arrow")
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    values = pa.array([None, *range(63)], pa.int32())
    nested = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(values, 2), 32)
    write_ipc(path, table.set_column(table.schema.get_field_index("ids"), "ids", nested))
    fit_manifest(tmp_path / "out")
    assert "ids" not in packer.load(tmp_path / "out")[0]


def test_an_index_names_the_number_of_values(tmp_path):
    source = save(tmp_path, "source.arrow", made([7, 3, 30, 0, 12] * 4, 2), "fixed")
    index = packer.pack(source, tmp_path / "index", max_len=24, keep_tokens=KEPT, index_only=True)
    assert index.source.widths == {"ids": 2, "logprobs": 2}
