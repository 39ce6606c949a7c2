"""Benchmarks run to the end, those that train on a machine without a GPU, and write what they say they write."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.writing import write_lines

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("bench_pack", ("--gigabytes", 0.002, "--runs", 1), ("max_len 4096", "packer verify", "x cp")),
        ("bench_plan", ("1e3", "2e3", "--threads", 1, "--runs", 1), ("1,000 ", "2,000 ", "survey")),
        ("bench_memory", ("1e3",), ("pack", "verify --source")),
        ("bench_loader", ("--gigabytes", 0.004, "--runs", 1, "--peer-batches", 2), ("packer.batches", "x peer")),
        ("bench_sources", ("--megabytes", 1, "--runs", 1), ("arrow", "parquet zstd", "jsonl.zst")),
        ("bench_token_files", ("--tokens", 2e5, "--runs", 1), (".idx", ".bin, EOS", "read index")),
        ("bench_rows", ("--log-normal", 2000, "--max-len", 512), ("log-normal 2,000", "shuffled")),
        ("bench_balance", ("--log-normal", "--max-len", 8192, "--ranks", 4, "--rows", 64), ("log-normal", "8 steps")),
    ],
)
def test_every_benchmark_runs_at_its_smallest_size(name, arguments, words):
    output = run(name, *arguments)
    assert all(word in output for word in words), output


@pytest.mark.nightly
def test_the_benchmark_of_tokenizing_runs_at_its_smallest_size(tmp_path):
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    texts = write_lines(tmp_path / "texts.jsonl", [{"text": f"text {number} of a few words"} for number in range(40)])
    output = run("bench_tokenize_files", "--tokenizer", tokenizer, "--cores", 1, texts)
    assert "datasets.map" in output


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
