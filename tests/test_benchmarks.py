"""Benchmarks run to the end, those that train on a machine without a GPU, and write what they say they write."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
def test_bench_convergence_trains_padded_and_flattened_alike(tmp_path):
    pytest.importorskip("matplotlib")
    run("bench_convergence", "--documents", 60, "--held-out", 8, "--seeds", 1, "--output", tmp_path)
    found = json.loads((tmp_path / "convergence.json").read_text())
    differences = found["padded_and_flattened_differ_at_most"]
    assert differences.pop("float32") < 1e-4
    assert all(most < 1e-10 for most in differences.values())
    assert (tmp_path / "convergence.svg").read_text().startswith("<?xml")
    assert (tmp_path / "convergence.csv").read_text().startswith("way,seed,curve,documents,loss\n")


@pytest.mark.nightly
def test_bench_scale_plan_marks_what_was_extrapolated():
    output = run("bench_scale_plan", "plan", 1e3, 1e7, "--surveyed", 1e6, "--tasks", 3, "--shard-size", "128MB")
    columns = {line[:26].strip(): line[26:].split("  ") for line in output.splitlines()[3:]}
    cells = {name: [cell.strip() for cell in each if cell.strip()] for name, each in columns.items()}
    assert cells["shards"][0].isdecimal()
    assert cells["shards"][1].endswith("*")
    assert cells["survey, CPU seconds"][1].endswith("*")
    ran, planned = (int(cells[name][1].replace(",", "")) for name in ("that ran", "tasks"))
    assert ran < planned / 10
    assert int(cells["blocks of a partition"][1]) > 150


@pytest.mark.nightly
def test_bench_scale_plan_counts_requests_and_prices_them():
    one, other = (
        run("bench_scale_plan", "costs", 1e9, "--surveyed", 1e6, "--shard-size", "64MB", "--get-price", price)
        for price in (0, 4)
    )
    counts, priced = ({line[:26].strip(): line[26:].strip() for line in each.splitlines()} for each in (one, other))
    gets = sum(
        float(counts[name].split()[0]) for name in counts if name.startswith("GET") and counts[name].endswith(" M")
    )
    difference = int(priced["price of requests"][1:].replace(",", "")) - int(counts["price of requests"][1:])
    assert abs(difference - gets * 1e6 * 4 / 1000) < 100
