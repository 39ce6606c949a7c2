"""Exports: exactly the columns of a trainer, with the values of the documents; complete or not there."""

import errno
import json
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.exporting.targets import TARGETS
from packer.exporting.write_export import COMPRESSIONS, RECORD, convert
from packer.output import replace_folder
from packer.shards.files import HashingFile
from tests.helpers import naive
from tests.helpers.commands import run
from tests.helpers.exporting import beside, read
from tests.helpers.formats import drawn_rows, row_segments
from tests.helpers.packed_rows import LENGTHS, MAX_LEN, labels_of, make, rows_on_disk, segments_of, tokens_of

BY_EOS = "megatron-indexed"  # test_eos_exports has documents that end in EOS
TRAINERS = [name for name in TARGETS if name not in ("parquet", "hub", BY_EOS)]
ROOT = Path(__file__).parent.parent


def pieces_of(row, *, source_labels: bool) -> list[tuple[list[int], list[int]]]:
    """Return (tokens, labels) of the segments of a row, taken from the documents."""
    pieces = []
    for document, start, length in segments_of(row):
        tokens = tokens_of(document, LENGTHS[document])
        labels = labels_of(document, LENGTHS[document]) if source_labels else tokens
        pieces.append((tokens[start : start + length], labels[start : start + length]))
    return pieces


# ---- values ----


@pytest.mark.parametrize("target", TRAINERS)
@pytest.mark.parametrize(("source_labels", "labels"), [(True, True), (False, True), (False, False)])
def test_the_rows_of_an_export_hold_the_documents(tmp_path, target, source_labels, labels):
    packed = make(tmp_path, source_labels=source_labels, labels=labels, pad_id=7, shard_size=3 * 3 * 4 * MAX_LEN)
    packer.export(packed, tmp_path / "out", to=target)
    rows = list(packer.load(packed))
    assert any(row["doc_ids"][-1] == -1 for row in rows), "padding"
    expected = [
        naive.exported_row(target, pieces_of(row, source_labels=source_labels), max_len=MAX_LEN, pad_id=7)
        for row in rows
    ]
    assert read(tmp_path / "out") == expected


@given(st.lists(row_segments, min_size=1, max_size=4), st.booleans(), st.data())
def test_columns_equal_the_naive_ones_for_any_rows(lengths, has_labels, data):
    rows, _ = drawn_rows(lengths, has_labels, data)
    pieces = []
    for row, segments in zip(rows, lengths, strict=True):
        ends = np.cumsum(segments).tolist()
        spans = [slice(end - length, end) for end, length in zip(ends, segments, strict=True)]
        labels = row["labels"] if has_labels else row["input_ids"]
        pieces.append([(row["input_ids"][span], labels[span]) for span in spans])
    batch = record_batch(rows)
    for target in TRAINERS:
        expected = [naive.exported_row(target, row, max_len=8, pad_id=0) for row in pieces]
        for row, drawn in zip(expected, rows, strict=True):  # the drawn padding is not pad_id
            for name in {"inputs", "input", "tokens", "input_ids"} & set(row):
                row[name] = drawn["input_ids"] if target != "megatron" else row[name]
        assert convert(TARGETS[target], batch).to_pylist() == expected


def record_batch(rows) -> pa.RecordBatch:
    """Return rows of lists as a record batch of a shard."""
    fixed = pa.list_(pa.int32(), len(rows[0]["input_ids"]))
    types = {"input_ids": fixed, "labels": fixed, "seq_lengths": pa.list_(pa.int32()), "doc_ids": pa.list_(pa.int64())}
    starts = [[0] * len(row["doc_ids"]) for row in rows]
    columns = {name: pa.array([row[name] for row in rows], types[name]) for name in rows[0]}
    return pa.RecordBatch.from_pydict({**columns, "doc_starts": pa.array(starts, pa.list_(pa.int32()))})


def test_parquet_has_columns_kept_from_the_source(tmp_path):
    columns = {"input_ids": [[1, 2, 3], [4, 5], [6]], "word": ["a", "b", None]}
    columns["score"] = [[float(token) for token in tokens] for tokens in columns["input_ids"]]
    pq.write_table(pa.table(columns), tmp_path / "source.parquet")
    packed = tmp_path / "packed"
    packer.pack(tmp_path / "source.parquet", packed, max_len=8, keep=["word"], keep_tokens=["score"], sync=False)
    exported = packer.export(packed, tmp_path / "out", to="parquet")
    assert (exported.columns["word"], exported.columns["score"]) == ("list<string>", "list<double>")
    assert read(tmp_path / "out") == rows_on_disk(packed)


def test_megatron_refuses_labels_that_are_not_the_tokens(tmp_path):
    source = pa.table({"input_ids": [[1, 2, 3], [4, 5, 6]], "labels": [[1, 2, 3], [4, 5, 9]]})
    pq.write_table(source, tmp_path / "source.parquet")
    packer.pack(tmp_path / "source.parquet", tmp_path / "packed", max_len=8, sync=False)
    with pytest.raises(PackerError, match="document 1 has the label 9 at the token 6: Megatron-Bridge takes labels"):
        packer.export(tmp_path / "packed", tmp_path / "out", to="megatron")
    assert not (tmp_path / "out").exists()
    assert not beside(tmp_path / "out")
    packer.export(tmp_path / "packed", tmp_path / "out", to="torchtune")


def test_megatron_reads_aligned_extents_unchanged(tmp_path):
    packed = make(tmp_path, max_len=16, align=4, add_column=[], pad_id=99)
    packer.export(packed, tmp_path / "out", to="megatron", eos_id=99)
    packer.export(packed, tmp_path / "all", to="parquet")
    assert read(tmp_path / "all") == rows_on_disk(packed)
    for found, row in zip(read(tmp_path / "out"), packer.load(packed), strict=True):
        real = row["doc_ids"] != -1
        extents = row["seq_lengths"][real].tolist()
        sequences = list(naive.megatron_sequences(found))
        assert [len(tokens) for tokens, _, _ in sequences] == extents
        assert [token for tokens, _, _ in sequences for token in tokens] == row["input_ids"][: sum(extents)].tolist()
        trained = [label for _, labels, mask in sequences for label, counts in zip(labels, mask, strict=True) if counts]
        assert trained == [label for label in row["labels"].tolist() if label != -100]


# ---- files ----


COLUMNS = {
    "megatron": {"input_ids": pa.int32(), "loss_mask": pa.int8(), "seq_start_id": pa.int32()},
    "maxtext": dict.fromkeys(
        ["inputs", "inputs_position", "inputs_segmentation", "targets", "targets_position", "targets_segmentation"],
        pa.int32(),
    ),
    "torchtune": dict.fromkeys(["tokens", "labels", "input_pos", "seq_lens"], pa.int32()),
    "llama-factory": dict.fromkeys(["input_ids", "labels", "position_ids", "attention_mask"], pa.int32()),
}
PARQUET = [name for name, target in TARGETS.items() if target.ending == ".parquet"]
ARROW = [name for name, target in TARGETS.items() if target.ending == ".arrow" and not target.keeps_shards]


@pytest.mark.parametrize("target", PARQUET)
def test_a_shard_becomes_a_file_of_exactly_the_columns_and_a_record_batch_a_row_group(packed, tmp_path, target):
    packer.export(packed, tmp_path / "out", to=target)
    ending = ".idx.parquet" if target == "megatron" else ".parquet"
    shards = sorted(packed.glob("*.arrow"))
    assert len(shards) > 2
    for shard in shards:
        batches = pa.ipc.open_stream(shard.read_bytes()).read_all().to_batches()
        found = pq.ParquetFile(tmp_path / "out" / (shard.stem + ending))
        groups = [found.metadata.row_group(number).num_rows for number in range(found.num_row_groups)]
        assert groups == [batch.num_rows for batch in batches]
        if target in COLUMNS:
            kinds = {name: pa.list_(pa.field("element", kind)) for name, kind in COLUMNS[target].items()}
            assert found.schema_arrow == pa.schema(kinds)


@pytest.mark.parametrize("target", ARROW)
def test_datasets_opens_a_folder_of_arrow_and_overwrite_replaces_all_of_it(packed, tmp_path, target):
    datasets = pytest.importorskip("datasets")
    record = packer.export(packed, tmp_path / "out", to=target)
    assert record.compression == "none"
    opened = datasets.load_from_disk(str(tmp_path / "out"))
    assert opened.to_list() == read(tmp_path / "out")
    assert {name: feature.feature.dtype for name, feature in opened.features.items()} == {
        name: str(kind) for name, kind in COLUMNS[target].items()
    }
    (tmp_path / "out" / "mine").write_text("mine")
    packer.export(packed, tmp_path / "out", to="parquet", overwrite=True)
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".parquet", ".json", ""}
    assert not (tmp_path / "out" / "state.json").exists()


def test_the_record_describes_the_export_without_path_or_time(packed, tmp_path):
    record = packer.export(packed, tmp_path / "out", to="torchtune")
    text = (tmp_path / "out" / RECORD).read_text()
    assert json.loads(text) == json.loads(json.dumps(record.to_dict()))
    dataset = packer.load(packed)
    assert record.packed == {
        "fingerprint": dataset.fingerprint, "format_version": 2, "max_len": MAX_LEN, "pad_id": 0, "rows": len(dataset)
    }  # fmt: skip
    assert record.columns == {name: f"list<{type}>" for name, type in COLUMNS["torchtune"].items()}
    shards = [(entry.file.removesuffix(".arrow"), entry.rows) for entry in dataset.manifest.shards]
    assert [(file.file.removesuffix(".parquet"), file.rows) for file in record.files] == shards
    assert record.bytes == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.parquet"))
    assert str(tmp_path) not in text


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_bytes_do_not_depend_on_workers_and_the_rows_not_on_compression(packed, tmp_path, compression):
    for workers in (1, 3):
        packer.export(packed, tmp_path / str(workers), to="parquet", compression=compression, workers=workers)
    one, three = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "13")
    assert one == three
    assert read(tmp_path / "1") == rows_on_disk(packed)
    found = pq.ParquetFile(next((tmp_path / "1").glob("*.parquet"))).metadata.row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_progress_ends_with_all_tokens(packed, tmp_path):
    steps = []
    packer.export(packed, tmp_path / "out", to="parquet", progress=lambda *step: steps.append(step))
    total = len(packer.load(packed)) * MAX_LEN
    assert steps[-1] == ("export", total, total)
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


@pytest.mark.parametrize("target", PARQUET)
def test_datasets_and_pyarrow_read_the_folder(packed, tmp_path, target):
    datasets = pytest.importorskip("datasets")
    packer.export(packed, tmp_path / "out", to=target)
    expected = read(tmp_path / "out")
    assert pq.read_table(tmp_path / "out").to_pylist() == expected
    for name, options in (
        ("parquet", {"data_files": str(tmp_path / "out" / "*.parquet")}),
        (str(tmp_path / "out"), {}),
    ):
        found = datasets.load_dataset(name, split="train", cache_dir=str(tmp_path / "cache"), **options)
        assert found.to_list() == expected


# ---- the folder ----


def test_an_existing_export_is_replaced_only_with_overwrite(packed, tmp_path):
    out = tmp_path / "out"
    packer.export(packed, out, to="maxtext")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = make(tmp_path, max_len=16)
    for source, options, found in (
        (packed, {"to": "torchtune"}, "to maxtext, not torchtune"),
        (packed, {"to": "maxtext", "compression": "none"}, "with compression zstd, not none"),
        (other, {"to": "maxtext"}, "from other rows"),
    ):
        message = f"out is complete, exported {found}: choose another output, or replace it with overwrite"
        with pytest.raises(PackerError, match=message):
            packer.export(source, out, **options)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert packer.export(packed, out, to="torchtune", overwrite=True).to == "torchtune"
    assert list(read(out)[0]) == list(COLUMNS["torchtune"])
    assert not beside(out)


def test_the_same_export_again_checks_the_files_and_leaves_them(packed, tmp_path):
    arguments = packed, "--to", "parquet", "-o", tmp_path / "out"
    assert invoke(*arguments).exit_code == 0
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    done = invoke(*arguments)
    assert "out is complete, exported in the same way from the same rows: nothing to do" in done.stdout
    assert json.loads(invoke(*arguments, "--json").stdout)["found_complete"]
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    next((tmp_path / "out").glob("*.parquet")).write_bytes(b"")
    done = invoke(*arguments)
    assert (done.exit_code, "_export.json says" in done.stderr) == (1, True)


def test_an_empty_folder_and_a_link_are_filled(packed, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    packer.export(packed, tmp_path / "link", to="parquet")
    assert (tmp_path / "link").is_symlink()
    assert read(tmp_path / "empty") == rows_on_disk(packed)


def test_the_folder_is_named_after_the_packed_dataset(tmp_path, monkeypatch):
    packed = make(tmp_path)
    packer.export(packed, to="maxtext")
    assert (tmp_path / "packed-maxtext" / RECORD).is_file()
    monkeypatch.chdir(packed)
    packer.export(".", to="torchtune")
    assert (tmp_path / "packed-torchtune" / RECORD).is_file()


def change(packed: Path) -> None:
    shard = next(packed.glob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize(
    ("source", "out", "options", "message"),
    [
        ("packed", "file", {}, "file exists and is not a folder: choose another output"),
        ("packed", "foreign", {"overwrite": True}, "foreign exists and is not an export: choose another output"),
        ("packed", "packed", {"overwrite": True}, "packed is inside the packed dataset: choose an output next to it"),
        ("packed", "packed/out", {}, "out is inside the packed dataset: choose an output next to it"),
        (
            "packed",
            "out",
            {"to": "nowhere"},
            "to is 'nowhere': choose one of megatron, maxtext, torchtune, llama-factory",
        ),
        ("packed", "out", {"compression": "zip"}, "compression is 'zip': choose one of zstd, snappy, none"),
        (
            "packed",
            "out",
            {"to": "hub", "compression": "zstd"},
            "compression is zstd, and an export for hub has no Parquet files: leave it out",
        ),
        ("foreign", "out", {}, "is not a packed dataset: it has no manifest.json"),
        ("changed", "out", {}, "does not match its hash in the manifest: changed after packing; restore it, or pack"),
        ("packed", "file/out", {}, "Not a directory: make it writable, or choose another folder"),
    ],
)
def test_mistakes_are_reported_in_one_line_and_change_nothing(tmp_path, source, out, options, message):
    packed = make(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "mine").write_text("mine")
    if source == "changed":
        change(packed.rename(tmp_path / "changed"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PackerError) as error:
        packer.export(tmp_path / source, tmp_path / out, **{"to": "torchtune", **options})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_is_reported_and_leaves_nothing(packed, tmp_path, monkeypatch, overwrite):
    out = tmp_path / "out"
    if overwrite:
        packer.export(packed, out, to="parquet")
    before = sorted(tmp_path.rglob("*"))
    written = 0
    write = HashingFile.write

    def full(self, data):
        nonlocal written
        written += 1
        if written > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "disk")
        return write(self, data)

    monkeypatch.setattr(HashingFile, "write", full)
    with pytest.raises(PackerError, match=r"No space left on device: free some space and repeat the same command$"):
        packer.export(packed, out, to="torchtune", overwrite=overwrite)
    assert sorted(tmp_path.rglob("*")) == before


def is_complete(out: Path) -> bool:
    """Whether an export has exactly the files of its record."""
    record = json.loads((out / RECORD).read_text())
    names = {RECORD, *(file["file"] for file in record["files"]), *record["small_files"]}
    return {path.name for path in out.iterdir()} == names


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_export_that_begins_while_the_old_one_is_deleted_is_refused(packed, tmp_path, monkeypatch, exchanges):
    out, rmtree, refusals = tmp_path / "out", shutil.rmtree, []
    packer.export(packed, out, to="parquet")

    def delete_slowly(path, **options):
        if not refusals:
            with pytest.raises(PackerError, match="out is being written by another packer: wait for it") as refusal:
                packer.export(packed, out, to="torchtune", overwrite=True)
            refusals.append(refusal)
        rmtree(path, **options)

    if not exchanges:
        monkeypatch.setattr(replace_folder, "exchange", lambda *_: False)
    monkeypatch.setattr(shutil, "rmtree", delete_slowly)
    packer.export(packed, out, to="maxtext", overwrite=True)
    assert refusals
    assert is_complete(out)
    assert "inputs_segmentation" in read(out)[0]
    assert not beside(out)


# ---- the command ----


invoke = partial(run, "export")


def test_the_command_says_what_it_wrote(packed, tmp_path):
    done = invoke(packed, "--to", "megatron", "-o", tmp_path / "out", "--no-sync")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"Exported {len(packer.load(packed))} rows of {MAX_LEN} tokens to megatron in ")
    assert lines[1:4] == ["input_ids     list<int32>", "loss_mask     list<int8>", "seq_start_id  list<int32>"]
    assert lines[-1] == f"Written to {tmp_path / 'out'}"


def test_the_command_prints_json_and_reports_mistakes_in_one_line(packed, tmp_path):
    arguments = packed, "-o", tmp_path / "out"
    found = json.loads(invoke(*arguments, "--to", "torchtune", "--json", "--compression", "snappy").stdout)
    assert found.pop("output") == str(tmp_path / "out")
    assert found.pop("seconds") > 0
    assert found.pop("compiling") == 0
    assert not found.pop("found_complete")
    assert found == json.loads((tmp_path / "out" / RECORD).read_text())
    assert found["compression"] == "snappy"
    done = invoke(*arguments, "--to", "parquet")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("packer: ")
    assert "--overwrite" in done.stderr
    assert invoke(*arguments, "--to", "parquet", "--overwrite").exit_code == 0
    assert invoke(packed, "--to", "nowhere").exit_code == 2


@pytest.mark.parametrize(
    "nulls", [pa.nulls(len(LENGTHS)), pa.nulls(len(LENGTHS), pa.list_(pa.null()))], ids=["k", "lists"]
)
def test_a_kept_column_without_a_value_is_exported(tmp_path, nulls):
    tokens = [tokens_of(*each) for each in enumerate(LENGTHS)]
    pq.write_table(pa.table({"input_ids": tokens, "k": nulls}), tmp_path / "source.parquet")
    packer.pack(tmp_path / "source.parquet", tmp_path / "packed", max_len=MAX_LEN, keep=["k"])
    packer.export(tmp_path / "packed", tmp_path / "out", to="parquet")
    table = pa.concat_tables(map(pq.read_table, sorted((tmp_path / "out").glob("*.parquet"))))
    rows = list(packer.load(tmp_path / "packed"))
    assert [len(values) for values in table["k"].to_pylist()] == [len(row["doc_ids"]) for row in rows]
    assert {value for values in table["k"].to_pylist() for value in values} == {None}
