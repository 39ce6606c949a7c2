"""Tokens per second of the whole `packer pack` command, against `cp` of the same bytes and TRL's pack_dataset.

    python benchmarks/bench_pack.py --gigabytes 1 --runs 5
    python benchmarks/bench_pack.py --lengths lengths.npy --max-len 2048

The corpus is made: random tokens in documents of log-normal lengths (or the lengths of --lengths, repeated), with
labels, saved by datasets.save_to_disk. Every figure is the wall time of a process, Python's start included; commands
are run in turn, A B C A B C, after one round that is thrown away, and ratios are taken round by round. TRL gets the
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

import click
from corpora import make_corpus

TRL = """
import datasets, sys
from trl.data_utils import pack_dataset
dataset = datasets.load_from_disk(sys.argv[1])
packed = pack_dataset(dataset, seq_length=int(sys.argv[2]), strategy="bfd")
print(len(packed))
"""


def timed(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Wall seconds of a command that must succeed."""
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return seconds


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def start_up(source: Path, work: Path, max_len: int) -> None:
    """Print what does not depend on the size of the corpus."""
    packer = [sys.executable, "-m", "packer"]
    helps = [timed([*packer, "--help"]) for _ in range(6)][1:]
    cache = work / "numba"
    pack = [*packer, "pack", str(source), "--max-len", str(max_len), "-o", str(work / "small"), "--overwrite"]
    first = timed(pack, {"NUMBA_CACHE_DIR": str(cache)})
    again = [timed(pack, {"NUMBA_CACHE_DIR": str(cache)}) for _ in range(5)]
    print(f"packer --help                              {statistics.median(helps):8.2f} s")
    print(f"first pack of a small corpus (JIT compile) {first:8.2f} s")
    print(f"next packs of it                           {statistics.median(again):8.2f} s")


@click.command()
@click.option("--gigabytes", default=1.0, show_default=True, help="Size of the corpus: input_ids and labels.")
@click.option("--max-len", default=4096, show_default=True)
@click.option("--lengths", type=click.Path(path_type=Path, exists=True), help="Document lengths, a .npy file.")
@click.option("--runs", default=5, show_default=True, help="Rounds that count.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(gigabytes: float, max_len: int, lengths: Path | None, runs: int, folder: Path | None) -> None:
    work = Path(tempfile.mkdtemp(prefix="bench-pack-", dir=folder))
    try:
        tokens = make_corpus(work / "corpus", int(gigabytes * 1e9 / 8), max_len, lengths_file=lengths)
        make_corpus(work / "small-corpus", 1_250_000, max_len, lengths_file=lengths)
        versions = " ".join(f"{name} {installed(name)}" for name in ("pyarrow", "numba", "datasets", "trl"))
        print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
              f"Python {platform.python_version()}, {versions}")  # fmt: skip
        start_up(work / "small-corpus", work, max_len)

        out = work / "packed"
        packer = [sys.executable, "-m", "packer", "pack", str(work / "corpus"), "--max-len", str(max_len)]
        packer += ["-o", str(out)]
        timed(packer)
        written = sum(path.stat().st_size for path in out.iterdir())
        shutil.copytree(out, work / "same-bytes")
        commands = {
            "cp": ["cp", "-r", str(work / "same-bytes"), str(work / "copied")],
            "packer": packer,
            "packer --no-sync": [*packer, "--no-sync"],
            "packer --no-sync --workers 1": [*packer, "--no-sync", "--workers", "1"],
        }
        if installed("trl"):
            commands["TRL pack_dataset"] = [sys.executable, "-c", TRL, str(work / "corpus"), str(max_len)]
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(runs + 1):
            for name, command in commands.items():
                for left in ("packed", "copied"):
                    shutil.rmtree(work / left, ignore_errors=True)
                for cached in (work / "corpus").glob("cache-*"):
                    cached.unlink()
                took = timed(command)
                if turn:
                    seconds[name].append(took)
        print(f"\n{tokens:,} tokens, {written / 1e9:.2f} GB written, max_len {max_len}, median of {runs} rounds\n")
        print(f"{'':30} {'seconds':>8} {'M tokens/s':>11} {'x cp':>6} {'x TRL':>6}")
        for name, took in seconds.items():
            against = {}
            for peer in ("cp", "TRL pack_dataset"):
                if peer in seconds:
                    ratios = [other / own for own, other in zip(took, seconds[peer], strict=True)]
                    against[peer] = f"{statistics.median(ratios):6.2f}"
            middle = statistics.median(took)
            print(f"{name:30} {middle:8.2f} {tokens / middle / 1e6:11.1f} "
                  f"{against['cp']} {against.get('TRL pack_dataset', ''):>6}")  # fmt: skip
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
