"""Benchmarks run to the end, those that train on a machine without a GPU, and write what they say they write."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.writing import write_lines

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def run(name: str, *arguments: object) -> str:
    program = ["-m", "packer", "stats"] if name == "stats" else [str(ROOT / "benchmarks" / f"{name}.py")]
    command = [sys.executable, *program, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


README = (ROOT / "benchmarks" / "README.md").read_text().replace("\\\n    ", "")
COMMANDS = re.findall(r"(?:^|`)((?:python benchmarks/|packer stats ).*?)(?:`|$)", README, re.MULTILINE)

SMALL = {
    "bench_balance": {"--max-len": 8192, "--ranks": 4, "--rows": 64},
    "bench_convergence": {"--documents": 60, "--held-out": 8, "--seeds": 2, "--width": 24},
    "bench_loader": {"--gigabytes": 0.004, "--runs": 1, "--peer-batches": 2},
    "bench_memory": {},
    "bench_pack": {"--gigabytes": 0.002, "--runs": 1},
    "bench_plan": {"--runs": 1},
    "bench_rows": {"--max-len": 512, "--log-normal": 2000},
    "bench_sources": {"--megabytes": 1, "--runs": 1},
    "bench_token_files": {"--tokens": 2e5, "--runs": 1},
    "bench_tokenize_files": {"--cores": 1},
    "bench_train": {"--documents": 60, "--steps": 1, "--runs": 1},
    "bench_windows": {"--documents": 60, "--held-out": 4, "--seeds": 2, "--window": 2},
    "stats": {},
}
"""Options that make each command of benchmarks/README.md small: replaced where it has them, added where not."""

PRINTED = {
    "bench_balance": "8 steps",
    "bench_convergence": "held-out loss|held out, epoch 3",
    "bench_loader": "packer.batches, hf_rows",
    "bench_memory": "verify --source",
    "bench_pack": "packer verify",
    "bench_plan": "survey",
    "bench_rows": "shuffled",
    "bench_sources": "jsonl.zst",
    "bench_token_files": "read index",
    "bench_tokenize_files": "packer, tokenizers",
    "bench_train": "padding-free bound",
    "bench_windows": "rows in order",
    "stats": "Lower bound",
}
"""Words of the table that each of them prints, as a pattern."""


def name_of(command: str) -> str:
    return Path(command.split()[1]).stem


def files(folder: Path) -> dict[str, str]:
    """Small files and folders for the names in the commands of benchmarks/README.md."""
    words = [f"{'some words and ' * (1 + number % 40)}{number}" for number in range(120)]
    prompts = [{"prompt": text, "completion": text[::-1]} for text in words]
    chats = [{"messages": [{"role": role, "content": text} for role in ("user", "assistant")]} for text in words]
    np.save(folder / "LENGTHS.npy", np.random.default_rng(0).integers(20, 2000, 500))
    (folder / "histogram.csv").write_text("length,count\n100,50\n300,40\n512,30\n")
    made = {
        "LENGTHS.npy": folder / "LENGTHS.npy",
        "benchmarks/results": folder / "results",
        "qwen3": save_tokenizer(folder / "tokenizer"),
        "sgd_multiturn.jsonl": write_lines(folder / "chats.jsonl", chats),
        "t0_train_50k.jsonl": write_lines(folder / "prompts.jsonl", prompts),
        "wikipedia_bert_512.csv": folder / "histogram.csv",
    }
    return {name: str(path) for name, path in made.items()}


def smaller(command: str, paths: dict[str, str]) -> list[str]:
    """The arguments of a command of benchmarks/README.md, at its smallest size, with small files."""
    options = {name: str(value) for name, value in SMALL[name_of(command)].items()}
    arguments: list[str] = []
    for word in shlex.split(command)[2:]:
        if arguments and arguments[-1] in options:
            arguments.append(options.pop(arguments[-1]))
        elif re.fullmatch(r"1e\d", word):
            arguments.append("1e3")
        elif word != "...":
            arguments.append(paths.get(word.removesuffix(".zst"), word))
    return [*arguments, *(word for option in options.items() for word in option)]


def test_the_readme_of_benchmarks_has_a_command_for_each():
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("bench_*.py")}
    assert {*map(name_of, COMMANDS)} == scripts | {"stats"} == SMALL.keys() == PRINTED.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMMANDS, ids=map(name_of, COMMANDS))
def test_commands_of_the_readme_run_at_their_smallest_size(command, tmp_path):
    if "--output" in command and "--repack" not in command:
        pytest.importorskip("matplotlib")
    output = run(name_of(command), *smaller(command, files(tmp_path)))
    assert re.search(PRINTED[name_of(command)], output), output


@pytest.mark.nightly
def test_bench_train_measures_every_way(tmp_path):
    output = run("bench_train", "--documents", 60, "--steps", 1, "--runs", 1, "--curve", tmp_path / "curve.csv")
    assert output.startswith("no GPU: a tiny model")
    ways = ["padded", "grouped by length", "DataCollatorWithFlattening", "wrapped", "packed", "padding-free bound"]
    lines = output.splitlines()
    assert [line[:26].strip() for line in lines[-len(ways) :]] == ways
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["way"] for row in rows} == set(ways[:-1])
    assert all(4 < float(row["loss"]) < 9 for row in rows)


@pytest.mark.nightly
def test_bench_windows_trains_on_rows_in_every_order(tmp_path):
    texts = write_lines(tmp_path / "texts.jsonl", [{"text": "some words " * (1 + at % 9)} for at in range(60)])
    options = ("--documents", 50, "--held-out", 4, "--max-len", 64, "--seeds", 2, "--window", 2)
    run("bench_windows", texts, *options, "--output", tmp_path / "losses.json")
    (found,) = json.loads((tmp_path / "losses.json").read_text())
    assert {way: len(values) for way, values in found["losses_by_seed"].items()} == {
        "balance=None": 2,
        "balance=2": 2,
        "rows in order": 2,
    }


@pytest.mark.nightly
def test_bench_convergence_trains_padded_and_flattened_alike(tmp_path):
    pytest.importorskip("matplotlib")
    run("bench_convergence", "--documents", 60, "--held-out", 8, "--seeds", 1, "--output", tmp_path)
    found = json.loads((tmp_path / "convergence.json").read_text())
    differences = found["padded_and_flattened_differ_at_most"]
    assert differences.pop("float32") < 1e-4
    assert all(most < 1e-10 for most in differences.values())
    assert (tmp_path / "convergence.svg").read_text().startswith("<?xml")
