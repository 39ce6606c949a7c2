"""Options from a file and from a packed dataset; and what `packer doctor` says."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.options import PackOptions, options_of
from tests.helpers.cli import ROOT, run_process, source  # noqa: F401 (a fixture)
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


def test_the_command_line_wins_over_the_file_and_the_file_over_the_dataset(source):
    packer.pack(source, "first", max_len=16, seed=1, long="drop", shard_size="10KB")
    Path("pack.toml").write_text("max_len = 32\nseed = 2\n")
    for order in (("--like", "first", "--config", "pack.toml"), ("--config", "pack.toml", "--like", "first")):
        succeeded("pack", source, "-o", "out", "--seed", 3, "--overwrite", *order)
        options = manifest_of("out")["options"]
        assert {name: options[name] for name in ("max_len", "seed", "long", "shard_size")} == {
            **{"max_len": 32, "seed": 3},
            **{"long": "drop", "shard_size": 10_000},
        }


def test_one_value_of_a_list_needs_no_brackets_in_a_file(source):
    Path("pack.toml").write_text('max_len = 64\nkeep-tokens = "values"\noutput = "out"\n')
    pq.write_table(pa.table({"input_ids": [[1, 2]], "values": [[0.5, 1.5]]}), "rows.parquet")
    succeeded("pack", "rows.parquet", "--config", "pack.toml")
    assert manifest_of("out")["options"]["keep_tokens"] == ["values"]


def test_like_takes_every_option_that_shapes_the_bytes(tmp_path, monkeypatch, shared_data):
    monkeypatch.chdir(tmp_path)
    pq.write_table(
        pa.table({"messages": [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]] * 9}),
        "chats.parquet",
    )
    tokenizer = str(shared_data / "tokenizers" / "qwen3")
    template = Path(__file__).parent.parent / "benchmarks" / "chat_templates" / "chatml.jinja"
    succeeded(
        "pack", "chats.parquet", "-o", "one", "--max-len", 64, "--tokenizer", tokenizer, "--chat-template", template
    )
    succeeded("pack", "chats.parquet", "-o", "two", "--like", "one", "--tokenizer", tokenizer)
    assert hashes(Path("one")) == hashes(Path("two"))
    assert manifest_of("one")["options"] == manifest_of("two")["options"]
    assert (
        {"chat_template", "tokenizer", "pad_id"} <= set(manifest_of("one")["options"]) <= set(options_of(PackOptions))
    )


def test_stats_like_a_dataset_name_the_options_that_they_cannot_predict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pa.table({"input_ids": [[*range(20)]] * 9, "turn_starts": [[0, 5, 12]] * 9})
    pq.write_table(table, "chats.parquet")
    packer.pack("chats.parquet", "first", max_len=16, split_at="turns")
    stderr = run("stats", "chats.parquet", "--like", "first").stderr
    assert "first was packed with --split-at turns, which stats cannot predict" in stderr
    assert not run("pack", "chats.parquet", "--like", "first", "-o", "second").stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("maxlen = 3", "pack has no option 'maxlen'; did you mean max_len?"),
        ("as_json = true", "pack has no option 'as_json'"),
        ("max_len = 0", "Invalid value for '--max-len'"),
        ('max_len = "many"', "Invalid value for '--max-len'"),
        ('max_len = 8\nlong = "cut"', "Invalid value for '--long'"),
        ("max_len = ", "pack.toml cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(source, content, words):
    Path("pack.toml").write_text(content)
    result = run("pack", source, "--config", "pack.toml")
    assert result.exit_code == (1 if "cannot be read" in words else 2)
    assert words in result.stderr.splitlines()[-1]


def test_a_file_or_dataset_that_is_not_there_is_named(source):
    for name in ("config", "like"):
        result = run("pack", source, f"--{name}", "nowhere")
        assert result.exit_code == 1
        assert "nowhere" in result.stderr.splitlines()[-1]
    assert run("pack", source, "--config", "nowhere").stderr.endswith(
        "nowhere cannot be read: No such file or directory\n"
    )


def test_the_doctor_names_versions_machine_and_cache(tmp_path):
    facts = json.loads(succeeded("doctor", "--json"))
    assert facts["versions"]["packer"] == packer.__version__
    assert None not in facts["versions"].values()
    assert set(facts["optional"]) >= {"torch", "trl"}
    assert facts["machine"]["cores"] >= 1
    versions = {
        json.loads(path.read_bytes())["format_version"] for path in (ROOT / "tests" / "golden").rglob("manifest.json")
    }
    assert {*facts["formats"]} == versions, "every format that is read has golden files"
    assert 0 < facts["machine"]["memory_available_bytes"] <= facts["machine"]["memory_bytes"]
    text = succeeded("doctor")
    assert all(len(line) <= 80 for line in text.splitlines() if "/" not in line)
    assert f"packer         {packer.__version__}" in text
    assert f"\nreads formats  {', '.join(map(str, facts['formats']))}\n" in text


@pytest.mark.parametrize("name", ["NUMBA_CACHE_DIR", "PACKER_CACHE_DIR"])
def test_the_doctor_finds_the_cache_that_the_environment_names(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, str(tmp_path / "cache"))
    facts = json.loads(run_process("-m", "packer", "doctor", "--json").stdout)
    assert facts["kernel_cache"]["folder"].startswith(str(tmp_path / "cache"))
    assert facts["kernel_cache"]["kernels"] == 0
