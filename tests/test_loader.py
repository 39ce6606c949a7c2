"""Rows and batches of a packed dataset, as a training loop sees them.

The token of document d at place p is `1000 * d + p + 1`, so every token tells where it comes from; 0 is padding.
"""

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.loader import NO_LOSS
from packer.shards.columns import PADDING, SEGMENT_COLUMNS, TOKEN_COLUMNS
from packer.shards.manifest import MANIFEST
from tests import naive

MAX_LEN = 12
LENGTHS = [5, 12, 1, 30, 7, 3, 3, 9, 1, 2, 11, 4, 6, 8, 10, 5, 5, 2]


def tokens_of(document: int, length: int) -> list[int]:
    return [1000 * document + place + 1 for place in range(length)]


def labels_of(document: int, length: int) -> list[int]:
    """Labels of a source that masks every third token, and trains on its first."""
    return [NO_LOSS if place % 3 == 2 else token for place, token in enumerate(tokens_of(document, length))]


def write_source(path: Path, lengths, *, labels=True) -> Path:
    documents = list(enumerate(lengths))
    columns = {"input_ids": pa.array([tokens_of(*document) for document in documents], pa.list_(pa.int32()))}
    if labels:
        columns["labels"] = pa.array([labels_of(*document) for document in documents], pa.list_(pa.int32()))
    table = pa.table(columns)
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)
    return path


def make(folder: Path, lengths=LENGTHS, **options) -> Path:
    """Pack documents of these lengths; return the folder of the rows."""
    source = write_source(folder / "source.arrow", lengths, labels=options.pop("source_labels", True))
    out = folder / "packed"
    packer.pack(source, out, **{"max_len": MAX_LEN, "position_ids": True, "sync": False, **options})
    return out


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """A packed dataset of several shards."""
    return make(tmp_path_factory.mktemp("several"), shard_size=3 * 3 * 4 * MAX_LEN)


@pytest.fixture(scope="module")
def dataset(packed) -> packer.PackedDataset:
    return packer.load(packed)


def edit_manifest(folder: Path, edit) -> None:
    """Change a manifest in place; its checksum is for `packer verify`, the loader does not look at it."""
    content = json.loads((folder / MANIFEST).read_text())
    edit(content)
    (folder / MANIFEST).write_text(json.dumps(content))


def rows_on_disk(folder: Path) -> list[dict[str, list[int]]]:
    """All rows as lists, read shard by shard with pyarrow alone."""
    rows = []
    for name in sorted(path.name for path in folder.glob("*.arrow")):
        with pa.memory_map(str(folder / name)) as mapped:
            rows += pa.ipc.open_stream(mapped).read_all().to_pylist()
    return rows


def as_lists(row) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in row.items()}


def segments_of(row) -> list[tuple[int, int, int]]:
    """(document, start, length) of a row's segments, padding left out."""
    columns = (row["doc_ids"].tolist(), row["doc_starts"].tolist(), row["seq_lengths"].tolist())
    return [segment for segment in zip(*columns, strict=True) if segment[0] != PADDING]


def heads(batch) -> list[int]:
    """First token of every segment of a batch: names the segment."""
    return batch["input_ids"][0, batch["cu_seq_lens_q"][:-1]].tolist()


# ---- rows ----


def test_rows_are_those_on_disk_over_all_shards(packed, dataset):
    assert len(dataset.manifest.shards) > 2
    rows = rows_on_disk(packed)
    assert [as_lists(row) for row in dataset] == rows
    assert [as_lists(dataset[number]) for number in range(len(rows))] == rows
    assert len(dataset) == len(rows) == dataset.manifest.packs


def test_rows_of_several_record_batches_read_in_any_order(tmp_path):
    max_len = 1 << 16
    lengths = [max_len - 7 * document for document in range(11)]
    out = make(tmp_path, lengths, max_len=max_len, shard_size=6 * 3 * 4 * max_len)
    with pa.memory_map(str(out / "data-00000-of-00002.arrow")) as mapped:
        assert len(pa.ipc.open_stream(mapped).read_all().to_batches()) > 1
    dataset = packer.load(out)
    rows = rows_on_disk(out)
    for number in np.random.default_rng(0).permutation(len(dataset)):
        assert as_lists(dataset[number]) == rows[number]


def test_negative_numbers_count_from_the_end(dataset):
    assert as_lists(dataset[-1]) == as_lists(dataset[len(dataset) - 1])
    assert as_lists(dataset[-len(dataset)]) == as_lists(dataset[0])


def test_a_row_that_is_not_there_is_an_index_error(dataset):
    rows = len(dataset)
    with pytest.raises(IndexError, match=f"row {rows} of {rows}"):
        dataset[rows]
    with pytest.raises(IndexError, match=f"row -{rows + 1} of {rows}"):
        dataset[-rows - 1]


def test_columns_have_the_documented_types_and_names(dataset):
    row = dataset[0]
    assert dataset.column_names == list(row) == [*TOKEN_COLUMNS, *SEGMENT_COLUMNS]
    assert {name: values.dtype.name for name, values in row.items()} == {
        "input_ids": "int32",
        "labels": "int32",
        "position_ids": "int32",
        "seq_lengths": "int32",
        "doc_ids": "int64",
        "doc_starts": "int32",
    }
    assert all(row[name].shape == (MAX_LEN,) for name in TOKEN_COLUMNS)


def test_rows_hold_every_token_of_the_source_where_they_say(dataset):
    found = {}
    for row in dataset:
        place = 0
        for document, start, length in segments_of(row):
            for offset in range(length):
                found[document, start + offset] = int(row["input_ids"][place + offset])
            place += length
    expected = {(d, p): tokens_of(d, length)[p] for d, length in enumerate(LENGTHS) for p in range(length)}
    assert found == expected


def test_rows_are_read_only_views_of_the_mapped_file(packed):
    before = pa.total_allocated_bytes()
    dataset = packer.load(packed)
    rows = list(dataset)
    assert pa.total_allocated_bytes() == before
    for values in (values for row in rows for values in row.values()):
        assert not values.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_rows_outlive_the_dataset(packed):
    row = packer.load(packed)[0]
    assert as_lists(row) == rows_on_disk(packed)[0]


def test_the_dataset_pickles_as_its_path(packed, dataset, tmp_path, monkeypatch):
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 1000
    assert [as_lists(row) for row in pickle.loads(pickled)] == rows_on_disk(packed)
    monkeypatch.chdir(packed.parent)
    relative = pickle.dumps(packer.load(packed.name))
    monkeypatch.chdir(tmp_path)
    assert len(pickle.loads(relative)) == len(dataset)


def test_dataloader_workers_read_the_same_batches(dataset):
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(
        dataset, batch_size=2, collate_fn=packer.collate, num_workers=2, multiprocessing_context="spawn"
    )
    expected = list(packer.batches(dataset, rows=2, seed=None))
    found = list(loader)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert heads(one) == heads(other)


def test_the_repr_says_what_it_is(packed, dataset):
    assert repr(dataset) == f"PackedDataset({str(packed)!r}, rows={len(dataset)}, max_len=12)"


# ---- batches ----


@pytest.fixture(scope="module")
def disk_order(dataset) -> list[int]:
    """First tokens of all segments, in the order on disk."""
    return [tokens_of(d, LENGTHS[d])[start] for row in dataset for d, start, _ in segments_of(row)]


def order_of(dataset, **options) -> list[int]:
    """First tokens of all segments, in the order in which an epoch shows them."""
    return [head for batch in packer.batches(dataset, tensors="numpy", **options) for head in heads(batch)]


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_an_epoch_shows_every_row_once(dataset, disk_order, rows):
    found = list(packer.batches(dataset, rows=rows, seed=3, epoch=2, tensors="numpy"))
    assert len(found) == -(-len(dataset) // rows)
    assert sorted(head for batch in found for head in heads(batch)) == sorted(disk_order)


def test_the_order_depends_on_seed_and_epoch_alone(packed, dataset, tmp_path):
    order = order_of(dataset, rows=1, seed=3, epoch=2)
    np.random.seed(1)
    assert order_of(packer.load(packed), rows=1, seed=3, epoch=2) == order
    assert order_of(dataset, rows=4, seed=3, epoch=2) == order
    for seed, epoch in [(3, 1), (2, 2), (2, 3), (5, 0)]:
        assert order_of(dataset, rows=1, seed=seed, epoch=epoch) != order


def test_without_a_seed_the_order_is_that_on_disk(dataset, disk_order):
    assert order_of(dataset, rows=2, seed=None, epoch=7) == disk_order
    assert order_of(dataset, rows=2) != disk_order


def test_drop_last_leaves_out_only_what_does_not_fill_a_batch(dataset):
    rows = next(number for number in range(2, 10) if len(dataset) % number)
    kept = list(packer.batches(dataset, rows=rows, drop_last=True, tensors="numpy"))
    everything = list(packer.batches(dataset, rows=rows, tensors="numpy"))
    assert [heads(batch) for batch in kept] == [heads(batch) for batch in everything[:-1]]
    assert not list(packer.batches(dataset, rows=len(dataset) + 1, drop_last=True, tensors="numpy"))
    assert len(list(packer.batches(dataset, rows=len(dataset), drop_last=True, tensors="numpy"))) == 1


def test_a_batch_of_no_rows_is_refused(dataset):
    with pytest.raises(PackerError, match="rows is 0: a batch has at least 1"):
        next(packer.batches(dataset, rows=0))


# ---- collate ----

row_segments = st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda lengths: sum(lengths) <= 8)


@given(st.lists(row_segments, min_size=1, max_size=5), st.booleans(), st.data())
def test_collate_equals_the_naive_batch(lengths, has_labels, data):
    rows = []
    for segments in lengths:
        tail = 8 - sum(segments)
        row = {
            "input_ids": data.draw(st.lists(st.integers(0, 9), min_size=8, max_size=8)),
            "seq_lengths": segments + [tail] * (tail > 0),
            "doc_ids": [*range(len(segments))] + [PADDING] * (tail > 0),
        }
        if has_labels:
            row["labels"] = naive.masked_labels([row["input_ids"]], [segments])[0]
        rows.append(row)
    arrays = [{name: np.array(values, np.int32) for name, values in row.items()} for row in rows]
    found = packer.collate(arrays, tensors="numpy")
    values = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in found.items()}
    assert values == naive.flattened_batch(rows)


def test_collate_gives_the_documented_shapes_and_types(dataset):
    torch = pytest.importorskip("torch")
    rows = [dataset[0], dataset[1]]
    segments = [segment for row in rows for segment in segments_of(row)]
    tokens = sum(length for _, _, length in segments)
    batch = packer.collate(rows)
    assert {name: (value.dtype, tuple(value.shape)) for name, value in batch.items() if torch.is_tensor(value)} == {
        "input_ids": (torch.int64, (1, tokens)),
        "labels": (torch.int64, (1, tokens)),
        "position_ids": (torch.int64, (1, tokens)),
        "seq_idx": (torch.int32, (1, tokens)),
        "cu_seq_lens_q": (torch.int32, (len(segments) + 1,)),
        "cu_seq_lens_k": (torch.int32, (len(segments) + 1,)),
    }
    longest = max(length for _, _, length in segments)
    others = {name: value for name, value in batch.items() if not torch.is_tensor(value)}
    assert others == {"max_length_q": longest, "max_length_k": longest, "use_cache": False}
    assert type(batch["max_length_q"]) is int


def test_padding_is_left_out_and_there_is_no_attention_mask(dataset):
    rows = [row for row in dataset if row["doc_ids"][-1] == PADDING]
    assert rows, "the example has a row with padding"
    batch = packer.collate(rows, tensors="numpy")
    assert (batch["input_ids"] != 0).all()
    assert batch["input_ids"].shape[1] == sum(length for row in rows for _, _, length in segments_of(row))
    assert "attention_mask" not in batch


def test_numpy_and_torch_batches_are_equal_and_own_their_memory(dataset):
    torch = pytest.importorskip("torch")
    pairs = zip(packer.batches(dataset, rows=2), packer.batches(dataset, rows=2, tensors="numpy"), strict=True)
    for tensors, arrays in pairs:
        assert list(tensors) == list(arrays)
        for name, value in arrays.items():
            if isinstance(value, np.ndarray):
                assert torch.equal(tensors[name], torch.from_numpy(value))
                assert value.flags.writeable
            else:
                assert tensors[name] == value


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("return_tensors", ["pt", "np"])
def test_collate_equals_transformers_flattening_of_the_same_documents(tmp_path, labels, return_tensors):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    dataset = packer.load(make(tmp_path, source_labels=labels, labels=labels))
    collator = transformers.DataCollatorWithFlattening(
        return_tensors=return_tensors, return_flash_attn_kwargs=True, return_seq_idx=True
    )
    for first in range(0, len(dataset), 3):
        rows = [dataset[row] for row in range(first, min(first + 3, len(dataset)))]
        documents = []
        for document, start, length in (segment for row in rows for segment in segments_of(row)):
            piece = slice(start, start + length)
            documents.append({"input_ids": tokens_of(document, LENGTHS[document])[piece]})
            if labels:
                documents[-1]["labels"] = labels_of(document, LENGTHS[document])[piece]
        found = packer.collate(rows, tensors="torch" if return_tensors == "pt" else "numpy")
        assert found.pop("use_cache") is False
        expected = collator(documents)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert type(found[name]) is type(value), name
            if torch.is_tensor(value) or isinstance(value, np.ndarray):
                assert found[name].dtype == value.dtype, name
                assert found[name].tolist() == value.tolist(), name
            else:
                assert found[name] == value, name


def test_without_a_labels_column_the_labels_are_the_tokens_but_for_first_ones(tmp_path):
    dataset = packer.load(make(tmp_path, labels=False))
    assert "labels" not in dataset.column_names
    batch = packer.collate(list(dataset), tensors="numpy")
    firsts = batch["position_ids"] == 0
    assert (batch["labels"][firsts] == NO_LOSS).all()
    assert (batch["labels"][~firsts] == batch["input_ids"][~firsts]).all()


def test_position_ids_on_disk_are_those_of_the_batch_and_need_not_be_there(tmp_path):
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    dataset = packer.load(make(tmp_path / "with"))
    without = packer.load(make(tmp_path / "without", position_ids=False))
    assert without.column_names == [name for name in dataset.column_names if name != "position_ids"]
    for row, same in zip(dataset, without, strict=True):
        batch, same_batch = packer.collate([row], tensors="numpy"), packer.collate([same], tensors="numpy")
        positions = batch["position_ids"][0].tolist()
        assert positions == same_batch["position_ids"][0].tolist()
        assert positions == row["position_ids"].tolist()[: len(positions)]
        assert batch["labels"].tolist() == same_batch["labels"].tolist()


def test_tensors_without_torch_are_an_error_that_says_what_to_install(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PackerError, match=r'torch is not installed: pip install "packer\[torch\]", or ask for tensors'):
        packer.collate([dataset[0]])
    packer.collate([dataset[0]], tensors="numpy")


# ---- other readers, other versions ----


def test_datasets_opens_the_folder_as_it_is_and_maps_it(packed, dataset):
    datasets = pytest.importorskip("datasets")
    files = sorted(packed.iterdir())
    before = pa.total_allocated_bytes()
    opened = datasets.load_from_disk(str(packed))
    assert pa.total_allocated_bytes() - before < sum(entry.bytes for entry in dataset.manifest.shards)
    assert opened.column_names == dataset.column_names
    assert opened.to_list() == rows_on_disk(packed)
    assert [Path(file["filename"]) for file in opened.cache_files] == sorted(packed.glob("*.arrow"))
    assert sorted(packed.iterdir()) == files


def test_columns_of_a_later_version_are_ignored(tmp_path):
    out = make(tmp_path)
    expected = [as_lists(row) for row in packer.load(out)]
    (shard,) = out.glob("*.arrow")
    with pa.memory_map(str(shard)) as mapped:
        table = pa.ipc.open_stream(mapped).read_all()
    extra = pa.array([[7] * len(lengths) for lengths in table["seq_lengths"].to_pylist()], pa.list_(pa.int32()))
    table = table.append_column("source_ids", extra).append_column("note", pa.array(["x"] * table.num_rows))
    renewed = shard.with_suffix(".new")
    with pa.ipc.new_stream(str(renewed), table.schema) as stream:
        stream.write_table(table)
    renewed.rename(shard)
    edit_manifest(out, lambda content: content["shards"][0].update(bytes=shard.stat().st_size, novelty=1))
    dataset = packer.load(out)
    assert [as_lists(row) for row in dataset] == expected
    assert dataset.column_names == list(dataset[0])


# ---- what cannot be loaded ----


def refusal(folder: Path) -> str:
    with pytest.raises(PackerError) as raised:
        packer.load(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    assert refusal(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: no such file or folder"


def test_a_folder_that_was_not_packed_is_refused(tmp_path):
    assert refusal(tmp_path) == f"{tmp_path} is not a packed dataset: it has no {MANIFEST}; `packer pack` makes one"


def test_an_unfinished_pack_is_refused(tmp_path):
    (tmp_path / ".packer").mkdir()
    expected = f"{tmp_path} is an unfinished pack: repeat the command that began it, to finish it"
    assert refusal(tmp_path) == expected


def test_an_unknown_format_version_is_refused(tmp_path):
    out = make(tmp_path)
    edit_manifest(out, lambda content: content.update(format_version=2))
    message = refusal(out)
    assert message.startswith(f"{out / MANIFEST} has format version 2, this package reads 1: upgrade packer, or pack")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format_version": 1}'])
def test_a_damaged_manifest_is_refused(tmp_path, content):
    (tmp_path / MANIFEST).write_text(content)
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path / MANIFEST} is damaged")
    assert "pack again" in message


def test_a_missing_shard_is_named(tmp_path):
    out = make(tmp_path)
    (shard,) = out.glob("*.arrow")
    shard.unlink()
    message = refusal(out)
    assert message.startswith(f"{shard} is missing, the manifest names it: ")
    assert "restore it, or pack again" in message


def test_a_truncated_shard_is_named_with_its_size(tmp_path):
    out = make(tmp_path)
    (shard,) = out.glob("*.arrow")
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size - 1000)
    assert refusal(out).startswith(f"{shard} has {size - 1000:,} bytes, the manifest says {size:,}: ")


def test_a_shard_of_other_bytes_is_named(tmp_path):
    out = make(tmp_path)
    (shard,) = out.glob("*.arrow")
    shard.write_bytes(bytes(shard.stat().st_size))
    assert refusal(out).startswith(f"{shard} ")


def test_a_shard_of_other_rows_is_named(tmp_path):
    out = make(tmp_path)
    (shard,) = out.glob("*.arrow")
    rows = len(packer.load(out))
    edit_manifest(out, lambda content: content["shards"][0].update(rows=rows + 1))
    assert refusal(out).startswith(f"{shard} has {rows} rows, the manifest says {rows + 1}")
