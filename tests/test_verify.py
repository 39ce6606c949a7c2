"""Faults that `verify` finds even if all hashes match: wrong values in rows, and a manifest that contradicts them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import packer
from packer import PackerError
from packer.column_names import PADDING
from tests.helpers import json_paths
from tests.helpers.json_paths import values_in
from tests.helpers.packed_rows import MAX_LEN, edit_manifest, fit_manifest, make, seal, write_source
from tests.helpers.writing import write_ipc, write_lines

LENGTHS = [5, 4, 30, 0, 7, 3, 3]
MISSING = "is in the source, but missing from the rows, repeated or cut elsewhere there"

Columns = dict[str, NDArray[Any]]  # values of every column of a shard, all rows flattened


def rewrite(path: Path, change: Callable[[Columns], None]) -> None:
    """Rewrite a shard with other values in its columns."""
    (batch,) = pa.ipc.open_stream(path.read_bytes()).read_all().combine_chunks().to_batches()
    values = {name: batch[name].flatten().to_numpy().copy() for name in batch.schema.names}
    change(values)
    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(values[field.name], field.type.value_type), type=field.type)
        if pa.types.is_fixed_size_list(field.type)
        else pa.ListArray.from_arrays(batch[field.name].offsets, pa.array(values[field.name]))
        for field in batch.schema
    ]
    write_ipc(path, pa.table(arrays, schema=batch.schema))


def test_the_result_is_true_only_for_a_dataset_without_faults(tmp_path: Path) -> None:
    packed = make(tmp_path, LENGTHS)
    found = packer.verify(packed)
    assert found
    assert found == []
    assert repr(found) == f"{packed} is verified"
    shard = next(packed.glob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    trained = False
    if packer.verify(packed):
        trained = True
    assert not trained
    found = packer.verify(packed)
    assert len(found) == 1
    assert repr(found) == f"{packed} has 1 fault:\n  {found[0]}"


def test_what_is_no_dataset_is_an_error_at_once(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", write_source(tmp_path / "source.arrow", LENGTHS)):
        with pytest.raises(PackerError, match=str(path)):
            packer.verify(path)


def segment(values: Columns, *, at: Callable[[Columns], NDArray[np.bool_]]) -> tuple[int, int]:
    """Return (number, place) of the first segment that fulfills a condition."""
    number = int(np.flatnonzero(at(values))[0])
    return number, int(values["seq_lengths"][:number].sum())


def set_at(name: str, value: int, at: Callable[[Columns], NDArray[np.bool_]], offset: int = 0):
    """Return a change of a value of a segment, or of a token at an offset in the segment."""

    def change(values: Columns) -> None:
        number, place = segment(values, at=at)
        place = place + offset if name in ("input_ids", "labels", "position_ids") else number
        assert values[name][place] != value
        values[name][place] = value

    return change


def is_padding(values: Columns) -> NDArray[np.bool_]:
    return values["doc_ids"] == PADDING


def is_long(values: Columns) -> NDArray[np.bool_]:
    return ~is_padding(values) & (values["seq_lengths"] >= 4)


def is_aligned(values: Columns) -> NDArray[np.bool_]:
    return (values["seq_tokens"] == 5) & (values["seq_lengths"] == 8)


def has_another(values: Columns) -> NDArray[np.bool_]:
    """Return which segments are the first of several in a row."""
    begins = (np.cumsum(values["seq_lengths"]) - values["seq_lengths"]) % MAX_LEN == 0
    return begins & (values["seq_lengths"] < MAX_LEN)


def shift_boundary(values: Columns) -> None:
    number, _ = segment(values, at=has_another)
    values["seq_lengths"][number + 1] += values["seq_lengths"][number]
    values["seq_lengths"][number] = 0


ROWS = {
    "a negative token": ({}, set_at("input_ids", -5, is_long, 1), "a token is negative"),
    "padding of another id": ({}, set_at("input_ids", 9, is_padding), "padding is not pad_id 0"),
    "alignment of another id": ({"align": 4}, set_at("input_ids", 9, is_aligned, 6), "padding is not pad_id 0"),
    "padding that is trained": ({}, set_at("labels", 9, is_padding), "a label of padding, or of a segment's first"),
    "alignment that is trained": ({"align": 4}, set_at("labels", 9, is_aligned, 6), "a label of padding, or of a segm"),
    "a first token that is trained": ({}, set_at("labels", 9, is_long), "a label of padding, or of a segment's first"),
    "positions that go on": ({}, set_at("position_ids", 7, is_long), "position_ids do not restart at 0"),
    "positions that go on in padding": ({}, set_at("position_ids", 7, is_padding), "position_ids do not restart at 0"),
    "fewer trained": ({"source_labels": False}, set_at("labels", -100, is_long, 1), "tokens, the manifest says"),
    "more tokens": ({"align": 4}, set_at("seq_tokens", 6, is_aligned), "real tokens, the manifest"),
    "a start below 0": ({}, set_at("doc_starts", -1, is_long), "a segment is empty or belongs to no document"),
    "a document too many": ({}, set_at("doc_ids", 7, is_long), "0 to 4: document 7 is not of the source, 0 to 6"),
    "a number too large": ({}, set_at("doc_ids", 2**45, is_long), f"document {2**45:,} is not of the source, 0 to 6"),
    "no document": ({}, set_at("doc_ids", -2, is_long), "a segment is empty or belongs to no document"),
    "an empty segment": ({}, shift_boundary, "a segment is empty or belongs to no document"),
    "a row too long": ({}, set_at("seq_lengths", 11, has_another), f"do not sum to {MAX_LEN}"),
    "padding first": ({}, set_at("doc_ids", PADDING, has_another), "padding comes before a segment or fills a row"),
    "more tokens than the extent": ({"align": 4}, set_at("seq_tokens", 9, is_aligned), "rounded up to a multiple of 4"),
}


@pytest.mark.parametrize("fault", ROWS)
def test_wrong_values_in_rows_are_found(tmp_path, fault):
    options, change, words = ROWS[fault]
    packed = make(tmp_path, LENGTHS, **{"seed": 1, **options})
    fit_manifest(packed)
    assert list(packer.verify(packed)) == []
    (path,) = packed.glob("*.arrow")
    rewrite(path, change)
    fit_manifest(packed)
    faults = list(packer.verify(packed))
    assert words in faults[0]
    assert path.name in faults[0]


KEPT = {
    "a value too few": ("weight", lambda rows: pa.array([rows[0][1:], *rows[1:]]), "a value for each segment"),
    "no values": (
        "weight",
        lambda rows: pa.array([None, *rows[1:]], pa.list_(pa.float64())),
        "a value for each segment",
    ),
    "one value": ("weight", lambda rows: pa.array([row[0] for row in rows]), "a value for each segment"),
    "lists of any length": ("logprob", pa.array, "a value for each token"),
    "half a row": (
        "logprob",
        lambda rows: pa.array([row[:6] for row in rows], pa.list_(pa.float64(), 6)),
        "each token",
    ),
    "no tokens": ("logprob", lambda rows: pa.array([None, *rows[1:]], pa.list_(pa.float64(), MAX_LEN)), "each token"),
}


@pytest.mark.parametrize("fault", KEPT)
def test_kept_columns_have_a_value_for_each_segment_or_token(tmp_path, fault):
    name, change, words = KEPT[fault]
    columns = {"input_ids": [[1] * length for length in LENGTHS], "weight": [0.5] * len(LENGTHS)}
    columns["logprob"] = [[-0.5] * length for length in LENGTHS]
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    packed = tmp_path / "packed"
    packer.pack(tmp_path / "a.parquet", packed, max_len=MAX_LEN, keep=["weight"], keep_tokens=["logprob"])
    (path,) = packed.glob("*.arrow")
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    at = table.schema.get_field_index(name)
    rows = table[name].to_pylist()
    table = table.set_column(at, name, change(rows))
    write_ipc(path, table)
    fit_manifest(packed)
    assert words in packer.verify(packed)[0]


def test_more_documents_than_fit_in_memory_are_refused_even_if_all_counts_agree(tmp_path):
    packed = make(tmp_path, LENGTHS)
    content = packer.load(packed).manifest.to_dict()
    for path, value in values_in(content):
        if type(value) is int and path[0] != "shards" and path[-1] in ("documents", "rows", "empty"):
            content = json_paths.replaced(content, path, 2**45)
    seal(packed, content)
    for use in (packer.load, packer.verify):
        with pytest.raises(PackerError, match=r"documents is 35184372088832, not a whole number from 0 to 10995"):
            use(packed)


def test_a_segment_that_the_source_lacks_is_named_by_its_document(tmp_path):
    packed = make(tmp_path, LENGTHS)
    (path,) = packed.glob("*.arrow")
    size = 0

    def fill_padding(values: Columns) -> None:
        nonlocal size
        number, _ = segment(values, at=is_padding)
        values["doc_ids"][number], values["doc_starts"][number] = 6, 3
        size = int(values["seq_lengths"][number])

    def count(content: dict[str, Any]) -> None:
        content["shards"]["tokens"][0] += size
        content["shards"]["untrained_segments"][0] += 1
        totals = content["totals"]
        for name, more in {
            "tokens": size,
            "tokens_packed": size,
            "documents_split": 1,
            "segments": 1,
            "segments_untrained": 1,
        }.items():
            totals[name] += more
        content["source"]["tokens"] += size
        content["source"]["files"][0]["tokens"] += size
        totals["efficiency"] = totals["tokens_packed"] / (totals["rows"] * MAX_LEN)

    rewrite(path, fill_padding)
    edit_manifest(packed, count)
    fit_manifest(packed)
    assert list(packer.verify(packed)) == []
    faults = list(packer.verify(packed, tmp_path / "source.arrow"))
    assert faults == [f"document 6 (source.arrow row 6) {MISSING}"]


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [("arrow", LENGTHS[1:]), ("parquet", LENGTHS[:-2]), ("jsonl", [9] * 11), ("saved", LENGTHS[:-2])],
)
def test_another_source_is_known_by_its_number_of_documents(tmp_path, kind, lengths):
    packed = make(tmp_path, LENGTHS)
    path = write_source(tmp_path / "other.arrow", lengths)
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    if kind == "parquet":
        pq.write_table(table, path := tmp_path / "other.parquet")
    elif kind == "jsonl":
        path = tmp_path / "other.jsonl"
        write_lines(path, table.to_pylist())
    elif kind == "saved":
        datasets = pytest.importorskip("datasets")
        datasets.Dataset(table).select([*range(len(lengths))][::-1]).save_to_disk(path := tmp_path / "saved")
    first, *others = packer.verify(packed, path)
    assert first == f"the source has {len(lengths)} documents, the manifest says 7"
    assert others


@pytest.mark.parametrize(
    ("lengths", "fault"),
    [
        (
            LENGTHS[::-1],
            f"document 0 (other.arrow row 0) {MISSING}",
        ),
        ([*LENGTHS, 0], "the source has 8 documents, the manifest says 7"),
    ],
    ids=["other lengths", "an empty document more"],
)
def test_another_source_is_described_by_the_first_difference(tmp_path, lengths, fault):
    packed = make(tmp_path, LENGTHS)
    assert list(packer.verify(packed, write_source(tmp_path / "other.arrow", lengths))) == [fault]


def test_a_source_whose_values_are_no_longer_token_ids_is_named(tmp_path):
    packed = make(tmp_path, LENGTHS, source_labels=False)
    tokens = [[-7] * length for length in LENGTHS]
    table = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))})
    write_ipc(tmp_path / "bad.arrow", table)
    faults = list(packer.verify(packed, tmp_path / "bad.arrow"))
    assert len(faults) == 1
    assert re.match(
        r"document \d \(bad.arrow row \d\): 'input_ids' holds -7 at position 0: a token id is from", faults[0]
    )


def replaced(name: str, kind: pa.DataType, change: Callable[[list[Any]], list[Any]] = lambda rows: rows):
    """Return a change of the type and rows of a column."""
    return lambda table: table.set_column(
        table.schema.get_field_index(name), name, pa.array(change(table[name].to_pylist()), kind)
    )


OTHER_COLUMNS = {
    "narrow": (
        replaced("doc_ids", pa.list_(pa.int32())),
        "doc_ids is list<item: int32>, it should be list<item: int64>",
    ),
    "no tokens": (
        replaced("labels", pa.list_(pa.int32(), MAX_LEN), lambda rows: [None, *rows[1:]]),
        "there are nulls",
    ),
    "no token": (
        replaced("labels", pa.list_(pa.int32(), MAX_LEN), lambda rows: [[None, *rows[0][1:]], *rows[1:]]),
        "there are nulls",
    ),
    "no segments": (replaced("doc_starts", pa.list_(pa.int32()), lambda rows: [None, *rows[1:]]), "there are nulls"),
    "a segment more": (
        replaced("doc_starts", pa.list_(pa.int32()), lambda rows: [[*rows[0], 0], *rows[1:]]),
        "seq_lengths, doc_ids, doc_starts are of different lengths",
    ),
    "a segment of the next row": (
        replaced("doc_starts", pa.list_(pa.int32()), lambda rows: [[*rows[0], *rows[1][:1]], rows[1][1:], *rows[2:]]),
        "seq_lengths, doc_ids, doc_starts are of different lengths",
    ),
}


@pytest.mark.parametrize("fault", OTHER_COLUMNS)
def test_columns_of_the_wrong_type_or_shape_are_found_and_not_loaded(tmp_path, fault):
    change, words = OTHER_COLUMNS[fault]
    packed = make(tmp_path, LENGTHS)
    (path,) = packed.glob("*.arrow")
    table = change(pa.ipc.open_stream(path.read_bytes()).read_all())
    write_ipc(path, table)
    fit_manifest(packed)
    assert words in packer.verify(packed)[0]
    with pytest.raises(PackerError) as caught:
        list(packer.load(packed))
    assert words in str(caught.value)
