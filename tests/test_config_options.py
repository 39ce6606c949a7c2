"""Options from a file."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from tests.helpers.cli import source  # noqa: F401 (a fixture)
from tests.helpers.commands import run, succeeded
from tests.helpers.pack import hashes


def manifest_of(folder: str) -> dict:
    return json.loads(Path(folder, "manifest.json").read_bytes())


def test_a_file_sets_the_defaults_of_all_options(source):
    Path("pack.toml").write_text(
        f"""dataset = "{source}"
output = "out"
max_len = 32
long = "truncate"
shard-size = "10KB"
add_column = ["position_ids"]
labels = false
sync = false
workers = 1
"""
    )
    succeeded("pack", "--config", "pack.toml", "--seed", 3)
    packer.pack(
        source, "same", max_len=32, long="truncate", shard_size="10KB", add_column="position_ids", labels=False, seed=3
    )
    assert hashes(Path("out")) == hashes(Path("same"))


def test_the_command_line_wins_over_the_file(source):
    Path("pack.toml").write_text('max_len = 32\nseed = 2\nlong = "drop"\n')
    succeeded("pack", source, "-o", "out", "--seed", 3, "--config", "pack.toml")
    options = manifest_of("out")["options"]
    assert {name: options[name] for name in ("max_len", "seed", "long")} == {"max_len": 32, "seed": 3, "long": "drop"}


def test_one_value_of_a_list_needs_no_brackets_in_a_file(source):
    Path("pack.toml").write_text('max_len = 64\nkeep-tokens = "values"\noutput = "out"\n')
    pq.write_table(pa.table({"input_ids": [[1, 2]], "values": [[0.5, 1.5]]}), "rows.parquet")
    succeeded("pack", "rows.parquet", "--config", "pack.toml")
    assert manifest_of("out")["options"]["keep_tokens"] == ["values"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("maxlen = 3", "pack has no option 'maxlen'; did you mean max_len?"),
        ("as_json = true", "pack has no option 'as_json'"),
        ("max_len = 0", "--max-len: "),
        ('max_len = "many"', "--max-len: "),
        ('max_len = 8\nlong = "cut"', "--long: "),
        ("max_len = ", "pack.toml cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(source, content, words):
    Path("pack.toml").write_text(content)
    result = run("pack", source, "--config", "pack.toml")
    assert result.exit_code == (1 if "cannot be read" in words else 2)
    assert words in result.stderr.splitlines()[-1]


def test_a_file_that_is_not_there_is_named(source):
    result = run("pack", source, "--config", "nowhere")
    assert result.exit_code == 1
    assert result.stderr.endswith("nowhere cannot be read: No such file or directory\n")
