"""Kept columns have a type that holds every value of the source, or the error names the document that does not fit."""

import gzip

import datasets
import pyarrow as pa
import pytest

import packer
from tests.helpers.small import shrink
from tests.helpers.writing import write_as
from tests.helpers.zstd import zstd

BIG = 2**53 + 1  # not representable as a double


@pytest.fixture(params=["tokens", "text"])
def kind(request):
    return request.param


@pytest.fixture
def small(monkeypatch):
    """Use pieces and blocks of one or two lines."""
    shrink(monkeypatch, piece=100, json_block=60, record_block=60)


DOCUMENT = {"tokens": {"input_ids": [5, 6]}, "text": {"text": "a b"}}


def write(path, records, kind):
    return write_as(path, [{**DOCUMENT[kind], **record} for record in records])


def pack(source, out, request, kind, **options):
    tokenizer = {"tokenizer": request.getfixturevalue("tokenizer")} if kind == "text" else {}
    return packer.pack(source, out, max_len=16, sync=False, **{"keep": ["k"], **tokenizer, **options})


def verified(out, source, request, kind):
    tokenizer = {"tokenizer": request.getfixturevalue("tokenizer")} if kind == "text" else {}
    return list(packer.verify(out, source, **tokenizer))


def kept(out, column="k"):
    """Return the value of each document, and the type of the column."""
    rows = datasets.load_from_disk(str(out)).data.table
    values = {}
    for ids, row in zip(rows["doc_ids"].to_pylist(), rows[column].to_pylist(), strict=True):
        values |= {document: value for document, value in zip(ids, row, strict=True) if document >= 0}
    return [values[document] for document in sorted(values)], rows[column].type.value_type


HELD = {
    "fractions after an integer": ([1, 1.5], pa.float64()),
    "a reward that begins with 0": ([0, 0.999], pa.float64()),
    "an integer after fractions": ([0.25, 3], pa.float64()),
    "large integers": ([1, BIG], pa.int64()),
    "null first": ([None, "news"], pa.string()),
    "null in between": (["news", None, "code"], pa.string()),
    "truth after null": ([None, None, True], pa.bool_()),
    "nothing but null": ([None, None], pa.null()),
    "empty lists first": ([[], None, ["a"]], pa.list_(pa.string())),
    "fractions in lists": ([[1], [0.5, 2]], pa.list_(pa.float64())),
    "strings like dates": (["2024-01-01", "later"], pa.string()),
}


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("blocks", ["small", "whole"])
def test_a_column_of_json_lines_holds_every_value(tmp_path, request, kind, name, blocks):
    if blocks == "small":
        request.getfixturevalue("small")
    values, value_type = HELD[name]
    source = write(tmp_path / "rows.jsonl", [{"k": value} for value in values], kind)
    pack(source, tmp_path / "out", request, kind)
    assert kept(tmp_path / "out") == (values, value_type)
    assert verified(tmp_path / "out", source, request, kind) == []


@pytest.mark.parametrize("name", ["fields", "nested"])
def test_fields_missing_from_the_first_line_are_kept(tmp_path, request, kind, small, name):
    records = [{"a": 1}, {"a": 2, "b": "x"}, None, {"c": [1.5]}, {"a": 0.5}]
    wanted = [{"a": None, "b": None, "c": None, **record} if record else None for record in records]
    if name == "nested":
        records, wanted = [[record] for record in records], [[record] for record in wanted]
    source = write(tmp_path / "rows.jsonl", [{"k": record} for record in records], kind)
    pack(source, tmp_path / "out", request, kind)
    assert kept(tmp_path / "out")[0] == wanted
    assert verified(tmp_path / "out", source, request, kind) == []


def test_a_column_missing_from_the_first_lines_is_null_there(tmp_path, request, kind, small):
    records = [{}, {"note": 'the "k" of others'}, {"k": 3}, {}]
    source = write(tmp_path / "rows.jsonl", records, kind)
    pack(source, tmp_path / "out", request, kind)
    assert kept(tmp_path / "out") == ([None, None, 3, None], pa.int64())


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_types_do_not_depend_on_pieces_or_workers(tmp_path, monkeypatch, request, kind, ending):
    values = [{"z": number} if number % 9 else {"a": number / 2, "z": None} for number in range(1, 120)]
    records = [{"k": value, "l": number if number < 100 else 0.5} for number, value in enumerate(values)]
    text = write(tmp_path / "plain.jsonl", records, kind).read_bytes()
    source = tmp_path / f"rows.{ending}"
    if ending.endswith("zst"):
        text = zstd.compress(text)
    source.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    found = []
    for size, workers in ((1 << 22, 1), (300, 1), (300, 3)):
        shrink(monkeypatch, piece=size, json_block=size, record_block=size)
        out = tmp_path / f"out-{size}-{workers}"
        manifest = pack(source, out, request, kind, keep=["k", "l"], workers=workers)
        found.append([shard.xxh3_128 for shard in manifest.shards])
        assert verified(out, source, request, kind) == []
    assert found[0] == found[1] == found[2]
    assert kept(out)[0] == [{"z": None, "a": None, **value} for value in values]
    assert kept(out, "l") == ([record["l"] for record in records], pa.float64())


def test_verify_detects_values_that_were_cast_to_another_type(tmp_path, request, kind):
    records = [{"k": 1, "l": {"a": 1}}, {"k": 1, "l": {"a": 1}}]
    source = write(tmp_path / "rows.jsonl", records, kind)
    pack(source, tmp_path / "out", request, kind, keep=["k", "l"])
    for changed, words in (
        ({"k": 1.5}, "k is 1.5 in the source, 1 in the rows"),
        ({"k": None}, "k is None in the source, 1 in the rows"),
        ({"l": {"a": 1, "b": 2}}, "l is {'a': 1, 'b': 2} in the source, {'a': 1} in the rows"),
    ):
        write(source, [records[0], {**records[1], **changed}], kind)
        (fault,) = verified(tmp_path / "out", source, request, kind)
        assert fault == f"document 1 (rows.jsonl line 2): {words}"
    write(source, [{**record, "k": "1"} for record in records], kind)
    (fault,) = verified(tmp_path / "out", source, request, kind)
    assert fault.endswith(": k is '1' in the source, 1 in the rows")
    write(source, [{**record, "k": 1.0} for record in records], kind)
    assert verified(tmp_path / "out", source, request, kind) == []


def test_lists_of_parquet_and_json_may_be_kept_together(tmp_path):
    """Their fields have other names, "element" and "item", which Arrow's hashes of equal types tell apart."""
    folder = tmp_path / "folder"
    folder.mkdir()
    write_as(folder / "a.parquet", [{"input_ids": [1, 2], "k": [0.5, 1.5], "tags": ["x"]}])
    write_as(folder / "b.jsonl", [{"input_ids": [3], "k": [2.5], "tags": []}])
    packer.pack(folder, tmp_path / "out", max_len=4, keep=["tags"], keep_tokens=["k"], sync=False)
    assert list(packer.verify(tmp_path / "out", folder)) == []
    (row,) = packer.load(tmp_path / "out")
    assert sorted(row["k"].tolist()) == [0, 0.5, 1.5, 2.5]


@pytest.mark.parametrize("keep", [["k"], []])
def test_groups_may_be_null_at_first(tmp_path, request, kind, small, keep):
    values = [None, None, 1, 2.5, 1, None, 2.5] * 5
    source = write(tmp_path / "rows.jsonl", [{"k": value} for value in values], kind)
    pack(source, tmp_path / "out", request, kind, group_by="k", keep=keep)
    assert verified(tmp_path / "out", source, request, kind) == []
    for row in packer.load(tmp_path / "out"):
        found = [values[document] for document in row["doc_ids"] if document >= 0]
        assert len({*found}) == 1


def test_a_column_of_lists_per_token_holds_every_value(tmp_path, small):
    lists = [[], [1, 2], [0.5, 1], [3]]
    source = write_as(tmp_path / "rows.jsonl", [{"input_ids": [7] * len(k), "k": k} for k in lists])
    packer.pack(source, tmp_path / "out", max_len=8, keep_tokens=["k"])
    table = datasets.load_from_disk(str(tmp_path / "out")).data.table
    assert table["k"].type.value_type == pa.float64()
    assert sorted(value for row in table["k"].to_pylist() for value in row)[-5:] == [0.5, 1, 1, 2, 3]
    assert list(packer.verify(tmp_path / "out", source)) == []


# ---- several files ----


def table_of(values, kind):
    return pa.table({**{name: [value] * len(values) for name, value in DOCUMENT[kind].items()}, "k": values})


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.null(), pa.string(), pa.string()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
        (pa.list_(pa.int8()), pa.list_(pa.float32(), 2), pa.list_(pa.float32())),
    ],
    ids=str,
)
def test_files_of_parquet_may_differ_in_type(tmp_path, request, kind, one, other, joined):
    (tmp_path / "files").mkdir()
    values = {pa.int64(): [1, 2], pa.int32(): [1, 2], pa.float64(): [0.5, None], pa.null(): [None, None]}
    of = lambda value: values.get(value, [[1, 2], [3, 4]] if pa.types.is_nested(value) else ["a", "b"])  # noqa: E731
    write_as(tmp_path / "files" / "a.parquet", table_of(pa.array(of(one), one), kind))
    write_as(tmp_path / "files" / "b.parquet", table_of(pa.array(of(other), other), kind))
    for name in ("first", "again"):
        pack(tmp_path / "files", tmp_path / name, request, kind)
        assert kept(tmp_path / name) == ([*of(one), *of(other)], joined)
    assert verified(tmp_path / "first", tmp_path / "files", request, kind) == []


def test_pairs_of_json_lines_hold_every_value(tmp_path, small):
    sides = {f"{side}_{column}": [1, 2] for side in ("chosen", "rejected") for column in ("input_ids", "labels")}
    records = [{**sides, "k": k} for k in (1, 2.5, None, 7)]
    source = write_as(tmp_path / "rows.jsonl", records)
    packer.pack(source, tmp_path / "out", max_len=8, pairs=True, long="drop", keep=["k"])
    assert kept(tmp_path / "out")[0] == [1, 2.5, None, 7]
    assert list(packer.verify(tmp_path / "out", source)) == []


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
def test_a_mask_that_an_empty_first_file_lacks_is_read(tmp_path, ending):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "0.jsonl").touch()
    write_as(tmp_path / "files" / f"b.{ending}", [{"input_ids": [1, 2], "loss_mask": [1, 0]}])
    packer.pack(tmp_path / "files", tmp_path / "out", max_len=8, untrained="keep-all")
    assert packer.load(tmp_path / "out")[0]["labels"].tolist() == [-100] * 8


# ---- Arrow types ----

WORDS = ["b", None, "a", "b"]
PLAIN = {
    "string_view": (pa.array(WORDS, pa.string_view()), pa.string()),
    "binary_view": (pa.array([b"b", None, b"a", b"b"], pa.binary_view()), pa.binary()),
    "run ends": (pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], WORDS), pa.string()),
    "views in structs": (
        pa.array([{"a": "b"}, None, {"a": "c"}, {"a": "b"}], pa.struct([("a", pa.string_view())])),
        pa.struct([("a", pa.string())]),
    ),
    "float16": (pa.array([0.5, 2, 1, 0.5], pa.float16()), pa.float16()),
    "dictionary": (pa.array(WORDS).dictionary_encode(), pa.string()),
    "decimal": (pa.array(["1.50", None, "2.25", "1.50"]).cast(pa.decimal128(5, 2)), pa.decimal128(5, 2)),
    "date": (pa.array([1, None, 2, 1], pa.int32()).cast(pa.date32()), pa.date32()),
}


@pytest.mark.parametrize("name", PLAIN)
def test_columns_of_any_type_can_be_kept_and_grouped_by(tmp_path, request, kind, name):
    values, plain = PLAIN[name]
    source = write_as(tmp_path / "rows.arrow", table_of(values, kind), rows=3)
    pack(source, tmp_path / "out", request, kind)
    assert kept(tmp_path / "out") == (values.to_pylist(), plain)
    assert verified(tmp_path / "out", source, request, kind) == []
    if not pa.types.is_nested(plain):
        pack(source, tmp_path / "grouped", request, kind, group_by="k", keep=[])
        assert verified(tmp_path / "grouped", source, request, kind) == []
        assert len(packer.load(tmp_path / "grouped")) == 3


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_lists_of_half_precision_are_kept_per_token(tmp_path, ending):
    table = pa.table({"input_ids": [[1, 2, 3], [4]], "k": pa.array([[0.5, 2, -1], [8]], pa.list_(pa.float16()))})
    source = write_as(tmp_path / f"rows.{ending}", table)
    packer.pack(source, tmp_path / "out", max_len=4, keep_tokens=["k"])
    (row,) = packer.load(tmp_path / "out")
    assert row["k"].dtype == "float16"
    assert sorted(row["k"].tolist()) == [-1, 0.5, 2, 8]
    assert list(packer.verify(tmp_path / "out", source)) == []
    pytest.importorskip("torch")
    (batch,) = packer.batches(packer.load(tmp_path / "out"), rows=1, keep_tokens=["k"])
    assert str(batch["k"].dtype) == "torch.float16"
