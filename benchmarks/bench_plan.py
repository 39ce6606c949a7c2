"""Seconds and memory of planning: from a file of document lengths to a plan that says which rows every shard holds.

    python benchmarks/bench_plan.py 1e5 1e6 1e7 1e8 1e9

Lengths are drawn log-normal (median 245 tokens, sigma 1, capped at 20,000; what is longer than max_len is split), and
lie in a file that is mapped. Each number of documents has a process of its own, which plans once untimed, so that the
JIT compiler is left out, and then `--runs` times: "survey" looks through all lengths, "rows" decides how the rows of
all partitions are made. Memory is the peak of RssAnon while it plans.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import prepare_for
from packer.engines.engine import Engine
from packer.options import PackOptions
from packer.plan.partition_plan import plan_partitions, survey
from packer.plan.rows import Planning
from packer.plan.segments import SegmentReader

ROW_BYTES = 8  # input_ids and labels
SHARD_SIZE = 512_000_000
BLOCK = 10_000_000


def draw_lengths(documents: int, out: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
    """Log-normal lengths, in blocks so that they take no more memory than they hold."""
    random = np.random.default_rng(0)
    lengths = np.empty(documents, np.int32) if out is None else out
    for first in range(0, documents, BLOCK):
        block = random.standard_normal(min(BLOCK, documents - first), np.float32)
        np.exp(block + np.float32(5.5), out=block)
        lengths[first : first + len(block)] = np.minimum(block + 1, 20_000)
    return lengths


class PeakMemory:
    """The largest RssAnon of this process while the block runs, looked at every 10 ms."""

    def __enter__(self) -> PeakMemory:
        self.bytes, self._done = 0, threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watching.join()

    def _watch(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
            self.bytes = max(self.bytes, int(line.split()[1]) * 1024)
            if self._done.wait(0.01):
                return


def plan(lengths: NDArray[np.int32], max_len: int, algorithm: str, threads: int) -> dict[str, float]:
    """Plan once; the seconds of every step, and what came out."""
    prepare_for(len(lengths))
    options = PackOptions(max_len=max_len, algorithm=algorithm, shard_size=SHARD_SIZE)
    reader = SegmentReader(options=options, documents=len(lengths), lengths=lengths)
    rows_per_shard = SHARD_SIZE // (ROW_BYTES * max_len)
    planning = Planning(reader=reader, rows_per_shard=rows_per_shard, engine=Engine(workers=threads))
    begun = time.perf_counter()
    surveyed = survey(planning)
    middle = time.perf_counter()
    found = plan_partitions(planning, surveyed)
    ended = time.perf_counter()
    return {
        "survey": middle - begun,
        "rows": ended - middle,
        "total": ended - begun,
        "row_count": found.totals.rows,
        "above": found.totals.rows - found.totals.lower_bound,
    }


def measure(documents: int, max_len: int, algorithm: str, threads: int, runs: int) -> dict[str, float]:
    """Medians of several plans, in this process."""
    plan(draw_lengths(min(documents, 1_000_000)), max_len, algorithm, threads)
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        lengths = np.lib.format.open_memmap(file.name, "w+", np.int32, (documents,))
        draw_lengths(documents, lengths)
        lengths.flush()
        del lengths
        mapped = np.load(file.name, mmap_mode="r").view(np.ndarray)
        with PeakMemory() as peak:
            found = [plan(mapped, max_len, algorithm, threads) for _ in range(runs)]
    return {name: statistics.median(run[name] for run in found) for name in found[0]} | {"memory": peak.bytes}


@click.command()
@click.argument("documents", nargs=-1, required=True)
@click.option("--max-len", default=4096, show_default=True)
@click.option("--algorithm", default="auto", show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Plans that count.")
@click.option("--as-json", is_flag=True, hidden=True, help="Measure here and print JSON: what a child process does.")
def main(
    documents: tuple[str, ...],
    max_len: int,
    algorithm: str,
    threads: int,
    runs: int,
    as_json: bool,
) -> None:
    numbers = [int(float(text)) for text in documents]
    if as_json:
        print(json.dumps(measure(numbers[0], max_len, algorithm, threads, runs)))
        return
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numba", "numpy"))
    print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
          f"Python {platform.python_version()}, {versions}")  # fmt: skip
    print(f"max_len {max_len}, {algorithm}, {threads} threads")
    print(f"\n{'documents':>14} {'rows':>11} {'above':>6} {'survey':>8} {'rows':>8} {'total s':>9} "
          f"{'ns each':>8} {'RssAnon':>9}")  # fmt: skip
    for number in numbers:
        command = [sys.executable, __file__, str(number), "--max-len", str(max_len), "--algorithm", algorithm]
        command += ["--threads", str(threads), "--runs", str(runs if number < 10**9 else 1), "--as-json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{number:,} documents failed:\n{done.stderr}")
        found = json.loads(done.stdout)
        print(f"{number:14,} {int(found['row_count']):11,} {int(found['above']):6,} "
              f"{found['survey']:8.4f} {found['rows']:8.4f} {found['total']:9.4f} "
              f"{found['total'] / number * 1e9:8.1f} "
              f"{found['memory'] / 2**30:6.2f} GiB", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
