"""Seconds and memory of planning: from a file of document lengths to a plan that says which rows every shard holds.

    python benchmarks/bench_plan.py 1e5 1e6 1e7 1e8 1e9
    python benchmarks/bench_plan.py 1e6 --peers          # needs the extra "bench"

Lengths are drawn log-normal (median 245 tokens, sigma 1, capped at 20,000; what is longer than max_len is split), and
lie in a file that is mapped. Each number of documents has a process of its own, which plans once untimed, so that the
JIT compiler is left out, and then `--runs` times: "survey" looks through all lengths, "rows" solves, draws or deals the
rows of all shards. Memory is the peak of RssAnon while it plans. The peers get the same lengths, cut at max_len:
LightBinPack a Python list, which is what it takes, TRL an Arrow table of one-byte tokens.
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
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from packer.engine import Engine
from packer.options import PackOptions
from packer.plan.cutting import Planning, SegmentReader
from packer.plan.plan_partitions import plan_partitions, survey

ROW_BYTES = 8  # input_ids and labels
SHARD_SIZE = 512_000_000
BLOCK = 10_000_000
TURN = 0.5  # seconds for which a packer repeats itself before it is the next one's turn


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
        "pool": found.totals.pool_rows / found.totals.rows,
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


def peers(lengths: NDArray[np.int32], max_len: int) -> dict[str, Callable[[], int]]:
    """What other packers do with the lengths; each call gives the number of packs."""
    import lightbinpack
    import pyarrow as pa
    from trl.data_utils import _pack_bfd

    as_list = np.minimum(lengths, max_len).tolist()
    offsets = np.concatenate([[0], np.cumsum(as_list)])
    tokens = pa.LargeListArray.from_arrays(offsets, np.zeros(int(offsets[-1]), np.int8))
    table = pa.table({"input_ids": tokens})
    return {
        "LightBinPack obfd": lambda: len(lightbinpack.obfd(as_list, max_len)),
        "TRL bfd": lambda: len(_pack_bfd(table, max_len)),
    }


def compare_with_peers(documents: int, max_len: int, threads: int, runs: int) -> None:
    """Ours and theirs in turn, half a second each at least, in one process; ratios are taken round by round."""
    lengths = np.minimum(draw_lengths(documents), max_len)
    plan(lengths, max_len, "bfd", threads)
    calls: dict[str, Callable[[], Any]] = {
        f"packer bfd, {threads} threads": lambda: plan(lengths, max_len, "bfd", threads)["row_count"],
        "packer bfd, 1 thread": lambda: plan(lengths, max_len, "bfd", 1)["row_count"],
        f"packer auto, {threads} threads": lambda: plan(lengths, max_len, "auto", threads)["row_count"],
        **peers(lengths, max_len),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    packs = {}
    for turn in range(runs + 1):
        for name, call in calls.items():
            repeats, begun = 0, time.perf_counter()
            while (spent := time.perf_counter() - begun) < TURN:
                packs[name] = call()
                repeats += 1
            if turn:
                seconds[name].append(spent / repeats)
    ours = next(iter(seconds.values()))
    print(f"\n{documents:,} documents, max_len {max_len}, median of {runs} rounds\n")
    print(f"{'':24} {'rows':>10} {'seconds':>9} {'times ours':>11}")
    for name, took in seconds.items():
        ratio = statistics.median(theirs / own for theirs, own in zip(took, ours, strict=True))
        print(f"{name:24} {packs[name]:10,} {statistics.median(took):9.4f} {ratio:11.1f}")


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@click.command()
@click.argument("documents", nargs=-1, required=True)
@click.option("--max-len", default=4096, show_default=True)
@click.option("--algorithm", default="auto", show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Plans that count.")
@click.option("--peers", "with_peers", is_flag=True, help="LightBinPack and TRL beside us, on the first number.")
@click.option("--as-json", is_flag=True, hidden=True, help="Measure here and print JSON: what a child process does.")
def main(
    documents: tuple[str, ...],
    max_len: int,
    algorithm: str,
    threads: int,
    runs: int,
    with_peers: bool,
    as_json: bool,
) -> None:
    numbers = [int(float(text)) for text in documents]
    if as_json:
        print(json.dumps(measure(numbers[0], max_len, algorithm, threads, runs)))
        return
    versions = ", ".join(f"{name} {installed(name)}" for name in ("numba", "numpy", "lightbinpack", "trl"))
    print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
          f"Python {platform.python_version()}, {versions}")  # fmt: skip
    print(f"max_len {max_len}, {algorithm}, {threads} threads")
    print(f"\n{'documents':>14} {'rows':>11} {'above':>6} {'pool':>6} {'survey':>8} {'rows':>8} {'total s':>9} "
          f"{'ns each':>8} {'RssAnon':>9}")  # fmt: skip
    for number in numbers:
        command = [sys.executable, __file__, str(number), "--max-len", str(max_len), "--algorithm", algorithm]
        command += ["--threads", str(threads), "--runs", str(runs if number < 10**9 else 1), "--as-json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{number:,} documents failed:\n{done.stderr}")
        found = json.loads(done.stdout)
        print(f"{number:14,} {int(found['row_count']):11,} {int(found['above']):6,} {found['pool']:6.2%} "
              f"{found['survey']:8.4f} {found['rows']:8.4f} {found['total']:9.4f} "
              f"{found['total'] / number * 1e9:8.1f} "
              f"{found['memory'] / 2**30:6.2f} GiB", flush=True)  # fmt: skip
    if with_peers:
        compare_with_peers(numbers[0], max_len, threads, runs)


if __name__ == "__main__":
    main()
