"""Writing shards beside `cp`: what each part of the work takes, and how the whole compares in many rounds.

    python benchmarks/bench_write.py --gigabytes 2 --runs 10
    python benchmarks/bench_write.py --gigabytes 2 --runs 10 --folder /dev/shm

Parts are CPU seconds of one thread for each GB written: copying documents from the mapped source in its order and in a
random one, hashing, and writing to a new file. What a pack with one worker takes beyond them is the plan, labels,
padding and Python. Then `cp` and `packer pack --no-sync` take turns, after a round that is thrown away. Start-up, the
time of a pack just large enough to load every kernel, is taken off ("net"). Source and shards stay in the page cache:
memory must hold four times the size.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import xxhash
from bench_pack import installed
from corpora import make_corpus
from numpy.typing import NDArray

from packer.algorithms.jit import compile_from_now_on
from packer.gather import Spans, TokenColumn, gather

MAX_LEN = 4096
TOGETHER = 64 * MAX_LEN  # tokens of a column in a record batch


def used(command: list[str]) -> tuple[float, float]:
    """Run a command that must succeed; return its wall and CPU seconds."""
    before, begun = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds, after = time.perf_counter() - begun, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, cpu


def parts(corpus: Path, work: Path) -> dict[str, float]:
    """Return the CPU seconds of one thread for a GB of each part, the least of three."""
    compile_from_now_on()
    table = pa.ipc.open_stream(pa.memory_map(str(corpus / "data-00000-of-00001.arrow"))).read_all()
    columns = [TokenColumn.from_arrow(table[name].chunks) for name in ("input_ids", "labels")]
    lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in table["input_ids"].chunks]).astype(
        np.int64
    )
    out = np.empty(2 * TOGETHER, np.int32)
    gigabytes = 8 * int(lengths.sum()) / 1e9

    def copy(order: NDArray[np.int64]) -> None:
        ends = np.searchsorted(np.cumsum(lengths[order]), np.arange(1, 1 + int(lengths.sum()) // TOGETHER) * TOGETHER)
        for lists in np.split(order, ends):
            places = np.cumsum(lengths[lists]) - lengths[lists]
            for column in columns:
                gather(column.addresses, Spans(lists, np.zeros_like(lists), lengths[lists], places), -100, out)

    def hashed() -> None:
        digest = xxhash.xxh3_128()
        for _ in range(int(gigabytes * 1e9) // out.nbytes):
            digest.update(out)

    def write() -> None:
        path = work / "written"
        with path.open("wb", buffering=0) as file:
            for _ in range(int(gigabytes * 1e9) // out.nbytes):
                file.write(out.data)
        path.unlink()

    in_order = np.arange(len(lengths))
    shuffled = np.random.default_rng(0).permutation(in_order)
    copy(in_order)  # loads kernels, and maps every page of the source
    kinds = {
        "copied in order": lambda: copy(in_order),
        "copied in a random order": lambda: copy(shuffled),
        "hashed": hashed,
        "written, a file removed": write,
    }
    return {name: min(cpu_seconds(kind) for _ in range(3)) / gigabytes for name, kind in kinds.items()}


def cpu_seconds(work: Callable[[], None]) -> float:
    """Run a function, and return its CPU seconds."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


@click.command()
@click.option("--gigabytes", default=2.0, show_default=True, help="Size of the corpus, with labels.")
@click.option("--runs", default=10, show_default=True, help="Rounds that count.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(gigabytes: float, runs: int, folder: Path | None) -> None:
    versions = " ".join(f"{name} {installed(name)}" for name in ("pyarrow", "numpy", "numba"))
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {versions}")
    work = Path(tempfile.mkdtemp(prefix="bench-write-", dir=folder))
    try:
        corpus, small, out, same = (work / name for name in ("corpus", "small", "packed", "same-bytes"))
        make_corpus(corpus, int(gigabytes * 1e9 / 8), MAX_LEN)
        make_corpus(small, 4_000_000, MAX_LEN)

        def pack(source: Path, *options: str) -> tuple[float, float]:
            shutil.rmtree(out, ignore_errors=True)
            command = [sys.executable, "-m", "packer", "pack", str(source), "--max-len", str(MAX_LEN), "--no-sync"]
            return used([*command, "-o", str(out), *options])

        def copy() -> tuple[float, float]:
            found = used(["cp", "-r", str(same), str(work / "copied")])
            shutil.rmtree(work / "copied")
            return found

        pack(corpus)
        out.rename(same)
        written = sum(path.stat().st_size for path in same.iterdir()) / 1e9
        start = [pack(small, "--workers", "1") for _ in range(4)][1:]
        found = parts(corpus, work)
        found["pack, one worker"] = (
            pack(corpus, "--workers", "1")[1] - statistics.median(cpu for _, cpu in start)
        ) / written
        found["cp"] = copy()[1] / written
        print(f"\n{written:.2f} GB of shards, CPU seconds for each GB\n")
        for name, seconds in found.items():
            print(f"{name:28} {seconds:6.2f}")
        begun = statistics.median(wall for wall, _ in start)
        rounds = [(copy()[0], pack(corpus)[0] - begun) for _ in range(runs + 1)][1:]
        ratios = [copied / packed for copied, packed in rounds]
        print(f"\n{runs} rounds, wall seconds; {begun:.2f} s of start-up are taken off packer's\n")
        print("cp             ", *(f"{copied:5.2f}" for copied, _ in rounds))
        print("packer, net    ", *(f"{packed:5.2f}" for _, packed in rounds))
        print("times cp       ", *(f"{ratio:5.2f}" for ratio in ratios))
        print(f"median {statistics.median(ratios):.2f}, least {min(ratios):.2f}, most {max(ratios):.2f}")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
