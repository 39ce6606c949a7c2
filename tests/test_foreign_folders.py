"""Folders of other tools are recognized by their marks, and refused with a command that converts them."""

import ast
import json
import re

import pytest

from packer.sources.find_source import FOREIGN
from packer.sources.formats import SIDE_FILES
from packer.stores.paths import PathList
from tests.helpers.remote_sources import upload
from tests.helpers.splits import refused, save, tokens_of

MDS = {"shards": [{"column_names": ["input_ids"], "raw_data": {"basename": "shard.00000.mds"}}], "version": 2}
LITDATA = {"chunks": [{"chunk_bytes": 44, "filename": "chunk-0-0.bin"}], "config": {"item_loader": None}}
LITDATA_TOKENS = {**LITDATA, "config": {"item_loader": "TokensLoader"}}

FOLDERS = {
    "a Delta table": {"_delta_log/00000000000000000000.json": {"add": {}}, "y=1/m=2/part-0.jsonl": None},
    "an Iceberg table": {"metadata/00000-1.metadata.json": {"format-version": 2}, "data/y=1/00000-0.jsonl": None},
    "a Hudi table": {".hoodie/hoodie.properties": "", "2024/01/31/0.jsonl": None},
    "a Lance dataset": {"_versions/1.manifest": "", "data/0.lance": "", "data/0.jsonl": None},
    "a litdata dataset of tokens": {"index.json": LITDATA_TOKENS, "chunk-0-0.bin": "\3\0\0\0" * 8},
    "a litdata dataset": {"index.json": LITDATA, "chunk-0-0.bin": "\3\0\0\0" * 8},
    "an MDS dataset": {"index.json": MDS, "shard.00000.mds": ""},
    "a zarr store": {"zarr.json": {"zarr_format": 3}, "input_ids/zarr.json": {"zarr_format": 3}},
    "a zarr store of version 2": {".zgroup": "{}", "input_ids/.zarray": "{}", "input_ids/0.jsonl": None},
    "an unfinished output of Spark": {"_temporary/0/part-1.jsonl": None, "part-0.jsonl": None},
    "an output of Spark's Structured Streaming": {"_spark_metadata/0": "v1", "part-0.jsonl": None},
}
"""Files of each kind; None is a document of tokens."""


def write(folder, files):
    for name, content in files.items():
        if content is None:
            save(folder, [name])
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def kind_of(message, folder):
    assert message.startswith(str(folder)), message
    return next(kind for kind in FOREIGN if f" is {kind.what}: " in message)


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_of_another_tool_is_refused_wherever_a_path_is_in_it(tmp_path, what):
    folder = write(tmp_path / "lake" / "table", FOLDERS[what])
    kind = kind_of(refused(folder), folder)
    assert kind.what.partition(",")[0] == what.removesuffix(" of version 2")
    inside = [path for path in folder.rglob("*") if path.suffix in (".jsonl", ".bin", ".mds", ".json", ".lance")]
    inside += [path.parent for path in inside if path.parent.name[0] not in "._"]
    for path in inside:
        assert kind_of(refused(path), folder) == kind
    assert kind_of(refused(tmp_path / "lake"), folder) == kind
    other = save(tmp_path / "other", ["a.jsonl"])
    assert kind_of(refused(PathList((str(other), str(inside[0])))), folder) == kind


def test_every_kind_is_tried_and_every_command_is_one(tmp_path):
    """They were run by hand, with deltalake 1.6, pyiceberg 0.12, hudi 0.5, pylance 14, zarr 3.1, and the others.

    Here, they are only parsed.
    """
    found = set()
    for number, files in enumerate(FOLDERS.values()):
        folder = write(tmp_path / str(number), files)
        message = refused(folder)
        found.add(kind_of(message, folder))
        command = re.search(r"python -c '([^']*)' \(package ([\w-]+)\), and pack what that writes$", message)
        if command:
            assert f'"{folder}' in command[1]
            assert f'"{number}' in command[1]
            ast.parse(command[1])
        else:
            assert "Spark" in message
    assert found == set(FOREIGN)


def test_a_folder_in_object_storage_is_copied_first(tmp_path, bucket):
    remote = upload(write(tmp_path / "table", FOLDERS["a Delta table"]), bucket / "table")
    for path in (remote, remote / "y=1", remote / "y=1" / "m=2" / "part-0.jsonl"):
        message = refused(str(path))
        assert message.startswith(f"{remote} is a Delta table, ")
        assert "copy it here, and convert it" in message
        assert 'DeltaTable("table")' in message


def test_what_other_tools_leave_beside_data_does_no_harm(tmp_path):
    save(tmp_path, ["part-0.jsonl"])
    for name in ("_SUCCESS", "_metadata", ".part-0.jsonl.crc", "README.md", "README.txt", "notes.csv"):
        (tmp_path / name).write_text("not data")
    assert tokens_of(tmp_path) == [0]


@pytest.mark.parametrize(
    "index", [{"input_ids": [5], "shards": "a", "chunks": "b"}, {"input_ids": [5], "raw_data": []}]
)
def test_data_may_have_the_name_of_an_index(tmp_path, index):
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert tokens_of(tmp_path) == [5]


SIDE = ["dataset_info.json", "dataset_infos.json", "config.json", "manifest.json", "state.json", "dataset_dict.json"]
SIDE += ["_export.json"]


def test_side_files_are_no_data(tmp_path):
    assert set(SIDE) == SIDE_FILES
    save(tmp_path, ["sub/a.jsonl"])
    for name in set(SIDE) - {"state.json", "dataset_dict.json"}:
        (tmp_path / "sub" / name).write_text('{"text": "not data"}')
    assert tokens_of(tmp_path) == [0]
    for name in ("state.json", "dataset_dict.json"):
        (tmp_path / name).write_text("[]")
        assert name in refused(tmp_path)  # of a saved set
        (tmp_path / name).unlink()
