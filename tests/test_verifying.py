"""Faults that `verify` finds in rows that hold every token, but not with the groups of their options."""

import re

import datasets
import numpy as np
import pytest

import packer
from tests.helpers.kept import write
from tests.helpers.verifying import change_rows


def swap(one, first, other, second):
    """Exchange segment `first` of row `one` and `second` of row `other`, which have equal extents."""
    places = [sum(row["seq_lengths"][:at]) for row, at in ((one, first), (other, second))]
    extent = one["seq_lengths"][first]
    assert other["seq_lengths"][second] == extent
    for name, values in one.items():
        per_token = len(values) > len(one["seq_lengths"])
        a, b = (slice(p, p + extent) for p in places) if per_token else (slice(p, p + 1) for p in (first, second))
        values[a], other[name][b] = other[name][b], values[a]


def grouped_columns(documents=240, groups=12):
    random = np.random.default_rng(1)
    return {
        "input_ids": [random.integers(1, 1000, 10).tolist() for _ in range(documents)],
        "source": [f"s{number % groups}" if number % 9 else None for number in range(documents)],
    }


def sources_of(rows, columns):
    """Return the groups of the segments of every row."""
    return [[columns["source"][document] for document in row["doc_ids"] if document >= 0] for row in rows]


def violate(rows, columns):
    """Exchange two segments so that the first row with several segments breaks the rule of its groups."""
    found = sources_of(rows, columns)
    number = next(at for at, held in enumerate(found) if len(held) > 1 and None not in held)
    for other, names in enumerate(found):
        for at, name in enumerate(names):
            if other != number and name not in found[number][1:] and name is not None:
                swap(rows[number], 0, rows[other], at)
                return
    raise AssertionError("nothing to exchange")


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kind", ["parquet", "shuffled"])
def test_rows_that_mix_groups_are_found(kind, keep, tmp_path):
    columns, out = grouped_columns(), tmp_path / "out"
    source = write(tmp_path, kind, columns)
    options = {"max_len": 50, "group_by": "source", "shard_size": 4000}
    packer.pack(source, out, keep=["source"] if keep else [], **options)
    assert list(packer.verify(out, source)) == list(packer.verify(out)) == []
    with pytest.raises(packer.PackerError, match="the list of paths is empty"):
        list(packer.verify(out, []))
    change_rows(out, lambda rows: violate(rows, columns))
    alone, compared = list(packer.verify(out)), list(packer.verify(out, source))
    assert alone == (compared if keep else [])
    held = r"document \d+.* of source '?\w+'? and document \d+.* of source '?\w+'?"
    assert compared
    for fault in compared:
        assert re.search(rf"row \d+ holds {held}, packed with group_by source$", fault)


def test_exchanging_segments_of_one_group_is_no_fault(tmp_path):
    columns, out = grouped_columns(), tmp_path / "out"
    source = write(tmp_path, "parquet", columns)
    packer.pack(source, out, max_len=50, group_by="source", keep=["source"])

    def exchange(rows):
        found = sources_of(rows, columns)
        one, other = next((a, b) for a in range(len(rows)) for b in range(a) if found[a][0] == found[b][0])
        swap(rows[one], 0, rows[other], 0)

    change_rows(out, exchange)
    assert list(packer.verify(out, source)) == []


def paired_columns(pairs=120):
    random = np.random.default_rng(2)
    columns = {"source": [f"s{number % 7}" for number in range(pairs)]}
    for role in ("chosen", "rejected"):
        lengths = random.integers(2, 30, pairs)
        columns[f"{role}_input_ids"] = [random.integers(1, 1000, each).tolist() for each in lengths]
        columns[f"{role}_labels"] = [[-100, *ids[1:]] for ids in columns[f"{role}_input_ids"]]
    return columns


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_decoded_pairs_are_compared_with_what_was_packed(kind, tmp_path):
    columns, out = paired_columns(), tmp_path / "out"
    packer.pack(write(tmp_path, kind, columns), out, max_len=64, pairs=True, keep=["source"])
    for name in columns:
        changed = {**columns, name: list(columns[name])}
        changed[name][100] = "other" if name == "source" else [value + (value >= 0) for value in columns[name][100]]
        (fault,) = packer.verify(out, write(tmp_path, kind, changed))
        row = "line 101" if kind == "jsonl" else "row 100"
        assert fault.startswith(f"document 100 (source.{kind} {row}): ")
    dropped = {name: values[:-1] for name, values in columns.items()}
    assert any("not in the source" in fault for fault in packer.verify(out, write(tmp_path, kind, dropped)))


@pytest.mark.parametrize("name", ["weight", "source", "logprob"])
def test_values_of_kept_columns_at_padding_are_those_of_the_format(tmp_path, name):
    columns = {"input_ids": [[1] * 5] * 9, "weight": [0.5] * 9, "source": ["x"] * 9, "logprob": [[-0.5] * 5] * 9}
    out, source = tmp_path / "out", write(tmp_path, "parquet", columns)
    packer.pack(source, out, max_len=12, keep=["weight", "source"], keep_tokens=["logprob"])
    assert packer.verify(out)
    values = {"weight": 0.25, "source": "y", "logprob": 0.25}

    def change(rows):
        assert rows[0]["doc_ids"][-1] == -1
        rows[0][name][-1] = values[name]

    change_rows(out, change)
    (fault,) = packer.verify(out)
    assert f"{name} is not {'null' if name == 'source' else '0'} at padding" in fault


@pytest.mark.parametrize("algorithm", ["sequential", "wrapped"])
@pytest.mark.parametrize("places", [(0, 1), (3, 50), (0, -1)], ids=str)
def test_rows_that_are_not_in_the_order_of_the_source_are_found(tmp_path, algorithm, places):
    """Also in different record batches and shards."""
    columns = {"input_ids": [[number] * (number % 30 + 1) for number in range(200)]}
    out, source = tmp_path / "out", write(tmp_path, "parquet", columns)
    packer.pack(source, out, max_len=32, algorithm=algorithm, shard_size="2KB")
    assert len(packer.load(out).manifest.shards) > 5
    assert packer.verify(out, source)

    def change(rows):
        one, other = places
        rows[one], rows[other] = rows[other], rows[one]

    change_rows(out, change)
    for faults in (packer.verify(out), packer.verify(out, source)):
        assert any(f"and {algorithm} keeps the order of the source" in fault for fault in faults)


@pytest.mark.parametrize("mask", ["attention_mask", "loss_mask"])
def test_a_shuffled_dataset_with_masks_is_verified_and_measured_as_it_is_packed(tmp_path, mask):
    tokens = [[number] * 6 for number in range(1, 60)]
    dataset = datasets.Dataset.from_dict({"input_ids": tokens, mask: [[1, 1, 1, 0, 0, 0]] * 59}).shuffle(seed=3)
    out = tmp_path / "out"
    manifest = packer.pack(dataset, out, max_len=16)
    assert packer.verify(out, dataset)
    assert not packer.verify(out, dataset.shuffle(seed=4))
    assert packer.stats(dataset, max_len=16).rows == manifest.rows


@pytest.mark.parametrize("lengths", [[40, 100], [100, 100, 3], [65], [64, 200, 64]], ids=str)
def test_truncated_documents_cut_at_the_end_of_a_row_are_verified(tmp_path, lengths):
    source = write(tmp_path, "arrow", {"input_ids": [list(range(length)) for length in lengths]})
    packer.pack(source, tmp_path / "out", max_len=64, algorithm="wrapped", long="truncate")
    assert list(packer.verify(tmp_path / "out", source)) == []
