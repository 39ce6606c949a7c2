"""A dataset on the Hugging Face Hub is packed and loaded by its id or address, whole or a part of it.

A server on this machine imitates the Hub, in processes that have nothing of it in their cache.
"""

import json
import os
import subprocess
import sys

import pytest

import packer
from tests.helpers.fake_hub import served
from tests.helpers.writing import write_lines

pytest.importorskip("huggingface_hub")

ROWS = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]
LOOK = """
import json, sys
import packer
for name in json.loads(sys.argv[1]):
    try:
        found = [row["input_ids"].tolist() for row in packer.load(name)]
    except packer.PackerError as error:
        found = str(error)
    print(json.dumps(found))
"""


@pytest.fixture
def hub(tmp_path):
    """Folder of a dataset on the Hub: packed rows, packed rows in a folder, and JSON lines in another."""
    folder = tmp_path / "hub"
    for name in ("lines", "more/rows"):
        (folder / name).mkdir(parents=True)
    write_lines(folder / "lines" / "a.jsonl", ROWS)
    packer.pack(folder / "lines" / "a.jsonl", tmp_path / "out", max_len=8)
    for file in (tmp_path / "out").iterdir():
        for place in (folder, folder / "more" / "rows"):
            (place / file.name).write_bytes(file.read_bytes())
    return folder


def run(tmp_path, address, *command, **more):
    environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"} | more
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout if done.returncode == 0 else done.stderr


def test_packed_rows_on_the_hub_are_loaded_by_id_or_address_and_again_without_a_network(tmp_path, hub):
    rows = [row["input_ids"].tolist() for row in packer.load(tmp_path / "out")]
    names = ["org/x", "hf://datasets/org/x", "hf:/datasets/org/x/", "hf://datasets/org/x@main/more/rows"]
    wrong = ["org/none", "hf://datasets/org/x/none", "hf://models/org/x"]
    with served(hub, "org/x") as address:
        found = [
            json.loads(line) for line in run(tmp_path, address, "-c", LOOK, json.dumps(names + wrong)).splitlines()
        ]
    assert found[: len(names)] == [rows] * len(names)
    none, inside, other = found[len(names) :]
    assert none.startswith("org/none: neither a local path nor a dataset on the Hugging Face Hub (")
    assert inside == "org/x on the Hugging Face Hub has no none: check the path"
    assert other.startswith("hf://models/org/x: an address on the Hub is like hf://datasets/org/name")
    again = run(tmp_path, "http://127.0.0.1:9", "-c", LOOK, json.dumps(names), HF_HUB_OFFLINE="1")
    assert [json.loads(line) for line in again.splitlines()] == [rows] * len(names)
    unreachable = run(tmp_path, "http://127.0.0.1:9", "-c", LOOK, json.dumps(["org/other"]))
    assert "the Hugging Face Hub cannot be reached" in unreachable


def test_a_part_of_a_dataset_on_the_hub_is_packed(tmp_path, hub):
    pack = ("-m", "packer", "pack", "--max-len", "8", "--output", "packed")
    with served(hub, "org/x") as address:
        printed = run(tmp_path, address, *pack, "hf://datasets/org/x/lines")
    assert "Packed 2 documents into 1 row of 8 tokens" in printed
    assert [row["input_ids"].tolist() for row in packer.load(tmp_path / "packed")] == [[1, 2, 3, 4, 5, 0, 0, 0]]
