"""Every error about a source is one line with the location, the value found and the remedy."""

import gzip
import json
import os
import subprocess
import sys
import time

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packer.errors import PackerError, SourceError
from packer.facts.rejection import REMEDY
from packer.sources.source import Source
from packer.sources.tokenized_source import open_source
from tests.small import shrink

GOOD = '{"input_ids": [1, 2]}'


def refused(source, tmp_path, **options) -> str:
    """Return the one-line error of surveying a source, which must equal that of spilling it."""
    messages = []
    for read in (
        Source.survey,
        lambda opened: opened.spill(tmp_path / ".spill") and opened.spill(tmp_path / ".spill").survey(),
    ):
        with pytest.raises(PackerError) as caught:
            read(open_source(source, **options))
        messages.append(str(caught.value))
    left = [p.name for p in (tmp_path / ".spill").glob("*")] if (tmp_path / ".spill").exists() else []
    assert not [name for name in left if name.startswith(".")]  # no unfinished file
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]
    return messages[0]


def save_table(path, table: pa.Table, compression=None):
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=2)
    return path


JSON_LINES = {
    "[1, 2]": "an array where an object is expected; write one object per line",
    "null": "null where an object is expected",
    "3": "a number where an object is expected",
    '{"input_ids": [1, 2': "not valid JSON: Expecting ',' delimiter",
    GOOD + GOOD: "not valid JSON: Extra data",
    '{"input_ids": [1], "input_ids": [2]}': "not valid JSON: a field is given twice: 'input_ids'",
    '{"text": "hello", "id": 3}': "no 'input_ids' (found: text, id)",
    "{}": "no 'input_ids' (found: none)",
    '{"input_ids": null}': "'input_ids' is null; drop the row",
    '{"input_ids": "abc"}': "'input_ids' holds \"abc\" where a list of integers is expected",
    '{"input_ids": 5}': "'input_ids' holds 5 where a list",
    '{"input_ids": [1, null]}': "'input_ids' holds null at position 1 where an integer",
    '{"input_ids": [1.5]}': "'input_ids' holds 1.5 at position 0 where an integer",
    '{"input_ids": [1.0]}': "'input_ids' holds 1.0 at position 0",
    '{"input_ids": ["a"]}': "'input_ids' holds \"a\" at position 0",
    '{"input_ids": [true]}': "'input_ids' holds true at position 0",
    '{"input_ids": [[1]]}': "'input_ids' holds [1] at position 0",
    '{"input_ids": [9223372036854775808]}': "'input_ids' holds 9223372036854775808 at position 0: a token id is from 0",
    '{"input_ids": [1], "labels": [1]}': "'labels', but the file's first line has no such list; give it to all or none",
    '{"input_ids": ' + "[" * 100_000: "not valid JSON",
}


@pytest.mark.parametrize("line", JSON_LINES, ids=range(len(JSON_LINES)))
@pytest.mark.parametrize("block", [10, 1 << 24])
def test_a_bad_line_is_named(tmp_path, monkeypatch, line, block):
    shrink(monkeypatch, json_block=block)
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{GOOD}\n\n{GOOD}\n{line}\n{GOOD}\n")
    message = refused(path, tmp_path)
    assert message.startswith("document 2 (rows.jsonl line 4): ")
    assert JSON_LINES[line] in message


def test_documents_are_numbered_across_files(tmp_path):
    (tmp_path / "a.jsonl").write_text(f"{GOOD}\n{GOOD}\n")
    (tmp_path / "b.jsonl").write_text(f'{GOOD}\n{{"input_ids": null}}\n')
    assert refused(tmp_path, tmp_path).startswith("document 3 (b.jsonl line 2): 'input_ids' is null")


def test_invalid_utf8(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(GOOD.encode() + b'\n{"input_ids": [1], "text": "\xff"}\n')
    message = refused(tmp_path / "a.jsonl", tmp_path)
    expected = "invalid UTF-8 at byte 28 of the line; write the file as UTF-8"
    assert message == f"document 1 (a.jsonl line 2): {expected}; {REMEDY}"


def test_missing_labels_name_the_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1], "labels": [1]}\n' + GOOD)
    message = refused(tmp_path / "a.jsonl", tmp_path)
    assert message.startswith("document 1 (a.jsonl line 2): no 'labels', but the file's first line has such list")


def test_labels_of_another_length(tmp_path):
    rows = {"input_ids": [[1], [1, 2, 3]], "labels": [[1], [1, 2]]}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({k: v[i] for k, v in rows.items()}) for i in range(2)))
    expected = "'labels' has 2 values for 3 in 'input_ids'; both need the same number (-100 where there is no loss)"
    assert refused(tmp_path / "a.jsonl", tmp_path) == f"document 1 (a.jsonl line 2): {expected}; {REMEDY}"
    for name in ("a.arrow", "a.parquet"):
        path = save_table(tmp_path / name, pa.table(rows))
        assert refused(path, tmp_path) == f"document 1 ({name} row 1): {expected}; {REMEDY}"


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet", "z.arrow"])
@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16(), 2)])
def test_nulls_in_arrow_and_parquet(tmp_path, name, kind):
    if name == "a.parquet" and pa.types.is_fixed_size_list(kind) and pa.__version__ < "26":
        pytest.skip("pyarrow before 26 cannot read a null fixed-size list back from Parquet")
    good = [[1, 2]] * 5
    compression = "zstd" if name == "z.arrow" else None
    for column, other in (("input_ids", "labels"), ("labels", "input_ids")):
        for bad, expected in (
            (None, f"'{column}' is null; drop the row or give it a list (it may be empty)"),
            ([3, None], f"'{column}' holds a null at position 1 of 2; remove it or give it a value"),
        ):
            lists = pa.array([*good, bad, [3, 4]], kind)
            table = pa.table({column: lists, other: pa.array([*good, [3, 4], [3, 4]], pa.list_(pa.int32()))})
            path = save_table(tmp_path / name, table, compression)
            assert refused(path, tmp_path) == f"document 5 ({name} row 5): {expected}; {REMEDY}"


def test_nulls_behind_an_indices_mapping():
    dataset = datasets.Dataset.from_dict({"input_ids": [[1], None, [2, None], [3]]})
    with pytest.raises(SourceError, match=r"document 1 \(dataset row 2\): 'input_ids' holds a null at position 1 of 2"):
        open_source(dataset.select([3, 2, 1])).survey()
    with pytest.raises(SourceError, match=r"document 2 \(dataset row 1\): 'input_ids' is null"):
        open_source(dataset.select([3, 0, 1])).survey()


TYPES = {
    "float": (pa.list_(pa.float32()), [1.0]),
    "string": (pa.string(), "a b"),
    "nested": (pa.list_(pa.list_(pa.int32())), [[1]]),
    "scalar": (pa.int64(), 1),
    "strings": (pa.large_list(pa.string()), ["a"]),
    "bool": (pa.list_(pa.bool_()), [True]),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_unsupported_types_are_named(tmp_path, kind, name):
    found, value = TYPES[kind]
    path = save_table(tmp_path / name, pa.table({"input_ids": pa.array([value], found)}))
    found = open_type(path)
    assert refused(path, tmp_path) == (
        f"{name}: column 'input_ids' holds {found}; expected list, large_list or fixed_size_list of integers "
        "(int8 to int64, uint8 to uint64)"
    )


def open_type(path):
    if path.suffix == ".parquet":
        return pq.read_schema(path).field(0).type
    return pa.ipc.open_stream(path.read_bytes()).schema.field(0).type


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet", "a.jsonl"])
def test_a_missing_column_names_those_found(tmp_path, name):
    path = tmp_path / name
    if name == "a.jsonl":
        path.write_text('{"tokens": [1], "text": "a"}')
    else:
        save_table(path, pa.table({"tokens": [[1]], "text": ["a"]}))
    assert refused(path, tmp_path) == (
        f"{name}: no column 'input_ids' (found: tokens, text); name the tokens' column with --input-column, "
        "or give --tokenizer to pack text"
    )
    message = refused(path, tmp_path, input_column="tokens", labels_column="mask")
    assert "no labels column 'mask'" in message


def test_labels_in_some_files_only(tmp_path):
    save_table(tmp_path / "a.parquet", pa.table({"input_ids": [[1]], "labels": [[1]]}))
    (tmp_path / "b.jsonl").write_text(GOOD)
    assert refused(tmp_path, tmp_path) == (
        "a.parquet has a column 'labels', b.jsonl has none; give labels to all files or to none"
    )


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_spill_rejects_values_outside_int32(tmp_path, value, name):
    documents = [[1], [2, 3, value], [4]]
    path = tmp_path / name
    if name == "a.jsonl":
        path.write_text("\n".join(json.dumps({"input_ids": d}) for d in documents))
    else:
        pq.write_table(pa.table({"input_ids": documents}), path)
    place = "line 2" if name == "a.jsonl" else "row 1"
    with pytest.raises(SourceError) as caught:
        open_source(path).spill(tmp_path / "spill")
    assert str(caught.value) == (
        f"document 1 ({name} {place}): 'input_ids' holds {value} at position 2: "
        f"a token id is from 0 to 2147483647; fix the source; {REMEDY}"
    )
    assert not list((tmp_path / "spill").iterdir())


# damaged files


@pytest.mark.parametrize("kind", ["stream", "file", "stream-zstd", "parquet", "gz", "zst"])
def test_truncation_anywhere_is_detected(tmp_path, kind):
    table = pa.table({"input_ids": [[i, i + 1] for i in range(400)]})
    text = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    path = tmp_path / {"parquet": "a.parquet", "gz": "a.jsonl.gz", "zst": "a.jsonl.zst"}.get(kind, "a.arrow")
    if kind == "file":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    elif kind in ("gz", "zst"):
        path.write_bytes(gzip.compress(text) if kind == "gz" else zstandard.compress(text))
    else:
        save_table(path, table, "zstd" if kind == "stream-zstd" else None)
    whole = path.read_bytes()
    assert len(open_source(path).survey().lengths()) == 400
    for size in {0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 9, len(whole) - 8, len(whole) - 4, len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(PackerError, match=r"a\.|empty dataset") as caught:
            open_source(path).survey()
        assert "\n" not in str(caught.value)


def test_truncated_jsonl(tmp_path):
    (tmp_path / "a.jsonl").write_text(f"{GOOD}\n{GOOD[:-3]}")
    assert refused(tmp_path / "a.jsonl", tmp_path).startswith("document 1 (a.jsonl line 2): not valid JSON")


def test_two_streams_in_one_file(tmp_path):
    path = save_table(tmp_path / "a.arrow", pa.table({"input_ids": [[1]]}))
    path.write_bytes(path.read_bytes() * 2)
    assert "bytes follow the end of the Arrow stream" in refused(path, tmp_path)


def test_offsets_outside_the_values(tmp_path):
    path = save_table(tmp_path / "a.arrow", pa.table({"input_ids": pa.array([[7, 8], [9]], pa.list_(pa.int32()))}))
    offsets = np.array([0, 2, 3], np.int32).tobytes()
    for wrong in ([0, 2, 3000], [0, 4, 3], [-1, 2, 3]):
        assert path.read_bytes().count(offsets) == 1
        bad = tmp_path / "b.arrow"
        bad.write_bytes(path.read_bytes().replace(offsets, np.array(wrong, np.int32).tobytes()))
        assert refused(bad, tmp_path).startswith("b.arrow: cannot be read, truncated or corrupt: ")


# paths and options


def test_empty_datasets(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n \n")
    save_table(tmp_path / "a.parquet", pa.table({"input_ids": pa.array([], pa.list_(pa.int32()))}))
    datasets.Dataset.from_dict({"input_ids": [[1]]}).filter(lambda row: False).save_to_disk(tmp_path / "saved")
    for name in ("a.jsonl", "a.parquet", "saved"):
        message = refused(tmp_path / name, tmp_path)
        assert message.startswith(str(tmp_path / name))
        assert "empty dataset" in message


def test_paths_and_options(tmp_path):
    cases = {
        "nothing.jsonl": "no such file or folder",
        "none*.jsonl": "no file to read; supported formats are Arrow",
        "folder": "no file to read; supported formats are Arrow",
        "a.bin": "unknown format (it begins with b'abc'); supported formats are Arrow",
        "packed": "manifest.json is damaged (no 'options')",
    }
    for name in ("folder", "packed"):
        (tmp_path / name).mkdir()
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "packed" / "manifest.json").write_text('{"format_version": 5}')
    for name, expected in cases.items():
        assert expected in refused(tmp_path / name, tmp_path)
    with pytest.raises(PackerError, match="a source of type list"):
        open_source([[1, 2]])


def test_splits_are_named(tmp_path):
    one = datasets.Dataset.from_dict({"input_ids": [[1]]})
    datasets.DatasetDict(train=one, test=one).save_to_disk(tmp_path / "two")
    one.save_to_disk(tmp_path / "one")
    (tmp_path / "a.jsonl").write_text(GOOD)
    assert "has 2 splits (train, test); choose one, as in --split train" in refused(tmp_path / "two", tmp_path)
    assert "no such split (found: train, test)" in refused(tmp_path / "two", tmp_path, split="dev")
    assert "leave --split out" in refused(tmp_path / "one", tmp_path, split="train")
    assert "leave --split out" in refused(tmp_path / "a.jsonl", tmp_path, split="train")
    assert "has 2 splits" in refused(datasets.DatasetDict(train=one, test=one), tmp_path)


def test_a_folder_of_saved_datasets_names_them(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[1]]}).save_to_disk(tmp_path / "d" / "part1")
    message = refused(tmp_path / "d", tmp_path)
    assert f"contains 1 saved dataset(s): {tmp_path / 'd' / 'part1'}; give one of them" in message


def test_a_saved_dataset_without_a_shard(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[1], [2]]}).save_to_disk(tmp_path / "d", num_shards=2)
    (tmp_path / "d" / "data-00001-of-00002.arrow").unlink()
    assert refused(tmp_path / "d", tmp_path) == ("data-00001-of-00002.arrow: cannot be read: No such file or directory")
    (tmp_path / "d" / "state.json").write_text("{")
    assert "state.json: cannot be read, truncated or corrupt" in refused(tmp_path / "d", tmp_path)


def test_an_indices_mapping_outside_the_data(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[1], [2]]}).save_to_disk(tmp_path / "d")
    save_table(tmp_path / "d" / "indices.arrow", pa.table({"indices": pa.array([0, 2], pa.uint64())}))
    state = json.loads((tmp_path / "d" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "d" / "state.json").write_text(json.dumps(state))
    assert "its indices mapping reaches from row 0 to 2, the data from 0 to 1" in refused(tmp_path / "d", tmp_path)


def test_a_hub_id_without_a_network_fails_quickly(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    code = "from packer.sources.tokenized_source import open_source; open_source('no-one-here/no-such-dataset')"
    for offline in ("0", "1"):
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": offline, "HF_ENDPOINT": "http://127.0.0.1:9"},
        )
        assert time.monotonic() - start < 20
        last = done.stderr.splitlines()[-1]
        fault = {
            "0": " is not a local path, and the Hugging Face Hub cannot be reached",
            "1": ": neither a local path nor a dataset on the Hugging Face",
        }
        assert f"PackerError: no-one-here/no-such-dataset{fault[offline]}" in last


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(tmp_path):
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / "a.jsonl").chmod(0)
    assert refused(tmp_path / "a.jsonl", tmp_path) == "a.jsonl: cannot be read: Permission denied"


# names in a saved dataset that point outside its folder


@pytest.mark.parametrize("name", ["../other/data.arrow", "/elsewhere/data.arrow", "sub/../../data.arrow", "..", ""])
@pytest.mark.parametrize("column", ["_data_files", "_indices_data_files"])
def test_a_saved_dataset_may_only_name_files_in_its_folder(tmp_path, monkeypatch, name, column):
    datasets.Dataset.from_dict({"input_ids": [[1], [2]]}).save_to_disk(tmp_path / "d")
    state = json.loads((tmp_path / "d" / "state.json").read_text())
    state[column] = [{"filename": name}]
    (tmp_path / "d" / "state.json").write_text(json.dumps(state))
    monkeypatch.setattr("packer.sources.mapped.ipc.map_file", lambda path: pytest.fail(f"{path} was opened"))
    message = refused(tmp_path / "d", tmp_path)
    assert message.startswith(f"{tmp_path / 'd' / 'state.json'}: names {name!r}, not a plain name in this folder")


@pytest.mark.parametrize("name", ["../one", "/etc", "a/b", "."])
@pytest.mark.parametrize("split", [None, "train"])
def test_splits_of_a_saved_dataset_must_be_in_its_folder(tmp_path, name, split):
    one = datasets.Dataset.from_dict({"input_ids": [[1]]})
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=one).save_to_disk(tmp_path / "d")
    (tmp_path / "d" / "dataset_dict.json").write_text(
        json.dumps({"splits": [name] if split is None else [name, split]})
    )
    message = refused(tmp_path / "d", tmp_path, split=split)
    assert message.startswith(f"{tmp_path / 'd' / 'dataset_dict.json'}: names {name!r}, not a plain name")
