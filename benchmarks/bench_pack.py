"""The whole `packer pack` command: seconds and memory by size and workers, against `cp` and TRL's pack_dataset.

    python benchmarks/bench_pack.py --gigabytes 1 --gigabytes 4 --runs 5
    python benchmarks/bench_pack.py --gigabytes 4 --folder /dev/shm --no-trl
    python benchmarks/bench_pack.py --lengths lengths.npy --max-len 2048

The corpus is made: random tokens in documents of log-normal lengths (or the lengths of --lengths, repeated), with
labels, saved by datasets.save_to_disk. Every figure is the wall time of a process, Python's start included; commands
are run in turn, A B C A B C, after one round that is thrown away, and ratios are taken round by round. `cp` copies as
many bytes as are written. "net" is without start-up: what a pack of a small corpus takes is subtracted. Memory is the
most anonymous memory that was resident (RssAnon, looked at every 5 ms), pages of mapped files not counted. TRL gets the
same columns; its result stays in its cache, as in a training job. Without TRL installed it is left out.
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
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import click
from corpora import make_corpus

import packer

TRL = """
import datasets, sys
from trl.data_utils import pack_dataset
dataset = datasets.load_from_disk(sys.argv[1])
packed = pack_dataset(dataset, seq_length=int(sys.argv[2]), strategy="bfd")
print(len(packed))
"""


class Run(NamedTuple):
    """What a command took."""

    seconds: float
    anonymous: int
    """Bytes, at most, of memory that is no page of a file."""


def timed(command: list[str], environment: dict[str, str] | None = None) -> Run:
    """Run a command that must succeed."""
    begun = time.perf_counter()
    most = 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | (environment or {}))
        status = Path(f"/proc/{process.pid}/status")
        while True:
            try:
                process.wait(0.005)
                break
            except subprocess.TimeoutExpired:
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                most = max(most, int(fields.get("RssAnon", "0 kB").split()[0]) << 10)
        seconds = time.perf_counter() - begun
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{output.read().decode()}")
    return Run(seconds, most)


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def start_up(source: Path, work: Path, max_len: int) -> float:
    """Print what does not depend on the size of the corpus; return the seconds of a pack that has nothing to do."""
    command = [sys.executable, "-m", "packer"]
    helps = [timed([*command, "--help"]).seconds for _ in range(6)][1:]
    cache = work / "numba"
    pack = [*command, "pack", str(source), "--max-len", str(max_len), "-o", str(work / "small"), "--overwrite"]
    pack += ["--no-sync"]
    first = timed(pack, {"NUMBA_CACHE_DIR": str(cache)}).seconds
    again = statistics.median(timed(pack, {"NUMBA_CACHE_DIR": str(cache)}).seconds for _ in range(7))
    print(f"packer --help                              {statistics.median(helps):8.2f} s")
    print(f"first pack of a small corpus (JIT compile) {first:8.2f} s")
    print(f"next packs of it: start-up                 {again:8.2f} s")
    return again


@click.command()
@click.option("--gigabytes", multiple=True, default=[1.0], show_default=True, help="Sizes of the corpus, with labels.")
@click.option("--max-len", default=4096, show_default=True)
@click.option("--lengths", type=click.Path(path_type=Path, exists=True), help="Document lengths, a .npy file.")
@click.option("--runs", default=5, show_default=True, help="Rounds that count.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
@click.option("--trl/--no-trl", default=True, help="Whether TRL takes part, if it is installed.")
@click.option("--alone", is_flag=True, help="Neither cp nor TRL: for memory at sizes that need the disk.")
def main(
    gigabytes: tuple[float, ...],
    max_len: int,
    lengths: Path | None,
    runs: int,
    folder: Path | None,
    trl: bool,
    alone: bool,
) -> None:
    work = Path(tempfile.mkdtemp(prefix="bench-pack-", dir=folder))
    try:
        versions = " ".join(f"{name} {installed(name)}" for name in ("pyarrow", "numba", "datasets", "trl"))
        print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
              f"Python {platform.python_version()}, {versions}")  # fmt: skip
        make_corpus(work / "small-corpus", 1_250, max_len, lengths_file=lengths)
        begun = start_up(work / "small-corpus", work, max_len)
        for size in gigabytes:
            peers = () if alone else ("cp", "TRL pack_dataset") if trl and installed("trl") else ("cp",)
            one_size(work, size, max_len, lengths, runs, begun, peers)
    finally:
        shutil.rmtree(work)


def one_size(
    work: Path,
    gigabytes: float,
    max_len: int,
    lengths: Path | None,
    runs: int,
    begun: float,
    peers: tuple[str, ...],
) -> None:
    """Measure and print one table."""
    tokens = make_corpus(work / "corpus", int(gigabytes * 1e9 / 8), max_len, lengths_file=lengths)
    out = work / "packed"
    pack = [sys.executable, "-m", "packer", "pack", str(work / "corpus"), "--max-len", str(max_len), "-o", str(out)]
    timed(pack)
    written = sum(path.stat().st_size for path in out.iterdir())
    documents = packer.load(out).manifest.totals.documents
    shutil.rmtree(work / "same-bytes", ignore_errors=True)
    if peers:
        shutil.copytree(out, work / "same-bytes")
    commands = {
        "cp": ["cp", "-r", str(work / "same-bytes"), str(work / "copied")],
        "packer": pack,
        "packer --no-sync": [*pack, "--no-sync"],
        "packer --no-sync --workers 1": [*pack, "--no-sync", "--workers", "1"],
        "packer verify": [sys.executable, "-m", "packer", "verify", str(work / "same-bytes")],
    }
    commands["TRL pack_dataset"] = [sys.executable, "-c", TRL, str(work / "corpus"), str(max_len)]
    left_out = {"cp", "TRL pack_dataset"} - {*peers} | ({"packer verify"} if not peers else set())
    commands = {name: command for name, command in commands.items() if name not in left_out}
    took: dict[str, list[Run]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, command in commands.items():
            for left in ("packed", "copied"):
                shutil.rmtree(work / left, ignore_errors=True)
            for cached in (work / "corpus").glob("cache-*"):
                cached.unlink()
            run = timed(command)
            if turn:
                took[name].append(run)
    print(f"\n{documents:,} documents, {tokens:,} tokens, {written / 1e9:.2f} GB written, max_len {max_len}, "
          f"median of {runs} rounds\n")  # fmt: skip
    print(f"{'':30} {'seconds':>8} {'M tokens/s':>11} {'x cp':>6} {'net':>6} {'x TRL':>6} {'RssAnon':>9}")
    for name, results in took.items():
        middle = statistics.median(run.seconds for run in results)
        shown = {"cp": "", "net": "", "TRL pack_dataset": ""}
        for peer in ("cp", "TRL pack_dataset"):
            if peer in took:
                ratios = [other.seconds / own.seconds for own, other in zip(results, took[peer], strict=True)]
                shown[peer] = f"{statistics.median(ratios):.2f}"
        if name.startswith("packer") and "cp" in took:
            net = [other.seconds / (own.seconds - begun) for own, other in zip(results, took["cp"], strict=True)]
            shown["net"] = f"{statistics.median(net):.2f}"
        memory = max(run.anonymous for run in results) / 2**20
        print(f"{name:30} {middle:8.2f} {tokens / middle / 1e6:11.1f} {shown['cp']:>6} {shown['net']:>6} "
              f"{shown['TRL pack_dataset']:>6} {memory:5.0f} MiB")  # fmt: skip
    for left in ("corpus", "packed", "copied", "same-bytes"):
        shutil.rmtree(work / left, ignore_errors=True)


if __name__ == "__main__":
    main()
