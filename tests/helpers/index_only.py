"""What `tests/test_index_only.py` shares with other tests."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest

import packer
from tests.helpers.token_files import in_one, write_indexed
from tests.helpers.writing import write_ipc

LENGTHS = [5, 12, 1, 30, 7, 3, 3, 9, 1, 2, 11, 4, 6, 8, 10, 5, 5, 2, 0, 25] * 7


def tokens_of(lengths, first=0):
    """Documents of which every token says where it comes from."""
    return [[(first + document) * 100 + place for place in range(length)] for document, length in enumerate(lengths)]


def columns_of(lengths, first=0, *, token_type="int32", list_type=pa.list_, **extra):
    """Columns of documents of which every token says where it comes from; every third label is masked."""
    tokens = tokens_of(lengths, first)
    columns = {"input_ids": pa.array(tokens, list_type(pa.type_for_alias(token_type)))}
    for name, make in extra.items():
        columns[name] = make(tokens)
    return columns


def masked(tokens):
    return pa.array([[-100 if place % 3 == 2 else token for place, token in enumerate(one)] for one in tokens])


def write(path, columns, *, batch_rows=13, ipc_file=False):
    return write_ipc(path, pa.table(columns), stream=not ipc_file, rows=batch_rows)


def packed_twice(folder, source, **options):
    """Pack a source to a copy and to an index of three or more shards; return their folders."""
    options = {"max_len": 16, "shard_size": 16 * 4 * 12, "sync": False, **options}
    packer.pack(source, folder / "copy", **options)
    packer.pack(source, folder / "index", index_only=True, **options)
    return folder / "copy", folder / "index"


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def same_rows(copied, indexed):
    assert len(copied) == len(indexed)
    assert copied.column_names == indexed.column_names
    for one, other in zip(copied, indexed, strict=True):
        assert list(one) == list(other)
        for name, values in one.items():
            assert values.dtype == other[name].dtype, name
            assert values.tolist() == other[name].tolist(), name


def plain(folder, **extra):
    return write(folder / "source.arrow", columns_of(LENGTHS, **extra))


def several_files(folder):
    data = folder / "data"
    data.mkdir()
    write(data / "a.arrow", columns_of(LENGTHS[:50], token_type="int64"))
    write(data / "b.arrow", columns_of([]))
    write(data / "c.arrow", columns_of(LENGTHS[50:], 50, token_type="uint16", list_type=pa.large_list), ipc_file=True)
    return data


def fixed_lists(folder):
    values = pa.array(np.arange(16 * 40), pa.int64())
    return write(folder / "fixed.arrow", {"input_ids": pa.FixedSizeListArray.from_arrays(values, 16)})


def shuffled_dataset(folder):
    datasets = pytest.importorskip("datasets")
    columns = columns_of(LENGTHS, labels=masked)
    made = datasets.Dataset(pa.table(columns)).shuffle(seed=3)
    made.save_to_disk(str(folder / "saved"))
    return folder / "saved"


SOURCES = {
    "plain": (plain, {}),
    "labels": (lambda folder: plain(folder, labels=masked), {"add_column": ["position_ids"]}),
    "no labels column": (plain, {"labels": False}),
    "aligned": (lambda folder: plain(folder, labels=masked), {"align": 4, "add_column": ["position_ids"], "pad_id": 7}),
    "long integers in files": (several_files, {}),
    "fixed lists": (fixed_lists, {"max_len": 40}),
    "truncated": (plain, {"long": "truncate"}),
    "dropped": (plain, {"long": "drop"}),
    "wrapped": (plain, {"algorithm": "wrapped"}),
    "solved": (plain, {"algorithm": "bfd"}),
    "kept": (
        lambda folder: plain(
            folder,
            name=lambda tokens: pa.array(
                [f"document {number}" if number % 3 else None for number in range(len(tokens))]
            ),
            score=lambda tokens: pa.array([[token / 2 for token in one] for one in tokens]),
            topk=lambda tokens: pa.array(
                [[[token, -1, 7] for token in one] for one in tokens], pa.list_(pa.list_(pa.int16()))
            ),
        ),
        {"keep": ["name"], "keep_tokens": ["score", "topk"], "align": 2},
    ),
    "groups": (
        lambda folder: plain(folder, repo=lambda tokens: pa.array([number % 9 for number in range(len(tokens))])),
        {"group_by": "repo"},
    ),
    "shuffled": (shuffled_dataset, {}),
    "indexed": (lambda folder: write_indexed(folder / "a", in_one(tokens_of(LENGTHS)), "int64"), {}),
}

OFTEN = ("plain", "kept", "wrapped", "indexed", "labels", "groups", "shuffled", "truncated")
NAMES = sorted(SOURCES, key=lambda name: OFTEN.index(name) if name in OFTEN else len(OFTEN))
"""Names of the sources, those first that show most; tests of every change use a few of them."""
