"""A second row length of the same corpus as an index and as a copy: seconds, bytes, and tokens a second to tensors.

    python benchmarks/bench_index.py 400e6
    python benchmarks/bench_index.py 400e6 --labels --runs 5

Both are packed by the whole command, in turn, after one round that compiles the kernels and is thrown away; start-up is
included. Then epochs of `packer.batches` read both, 4 rows a batch, in one process, in turn: from the page cache, and
cold, when the files were dropped from it before (posix_fadvise). With --labels, the corpus has a column of labels, and
an index reads that as well.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from bench_pack import installed, timed
from corpora import make_corpus

import packer

ROWS = 4
COLD_BATCHES = 2000


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def drop_from_cache(folder: Path) -> None:
    """Have the files of a folder read from the disk again."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def speed(dataset: packer.PackedDataset, epoch: int, most: int | None = None) -> float:
    """Tokens a second of an epoch, or of its first batches."""
    tokens, begun = 0, time.perf_counter()
    for number, batch in enumerate(packer.batches(dataset, rows=ROWS, epoch=epoch), 1):
        tokens += batch["input_ids"].shape[1]
        if number == most:
            break
    return tokens / (time.perf_counter() - begun)


def shown(values: list[float], unit: float = 1.0) -> str:
    """Median, least and most."""
    scaled = [value / unit for value in values]
    return f"{statistics.median(scaled):8.2f} {min(scaled):8.2f} {max(scaled):8.2f}"


@click.command()
@click.argument("tokens", type=float)
@click.option("--labels", is_flag=True, help="A corpus with a column of labels.")
@click.option("--max-len", default=4096, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Rounds that count.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(tokens: float, labels: bool, max_len: int, runs: int, folder: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-index-", dir=folder) as name:
        work = Path(name)
        corpus = work / "corpus"
        count = make_corpus(corpus, int(tokens), max_len, labels=labels)
        command = [sys.executable, "-m", "packer", "pack", str(corpus), "--max-len", str(max_len), "--no-sync", "-o"]
        extra = {"copy": [], "index": ["--index-only"]}
        taken: dict[str, list[float]] = {kind: [] for kind in extra}
        for turn in range(runs + 1):
            for kind, words in extra.items():
                shutil.rmtree(work / kind, ignore_errors=True)
                seconds = timed([*command, str(work / kind), *words]).seconds
                if turn:
                    taken[kind].append(seconds)
        begun = time.perf_counter()
        loaded = {"copy": packer.load(work / "copy"), "index": packer.load(work / "index", source=corpus)}
        opening = time.perf_counter() - begun
        warm: dict[str, list[float]] = {kind: [] for kind in extra}
        cold: dict[str, list[float]] = {kind: [] for kind in extra}
        for turn in range(runs + 1):
            for kind, dataset in loaded.items():
                found = speed(dataset, turn)
                if turn:
                    warm[kind].append(found)
        reopened: dict[str, Callable[[], packer.PackedDataset]] = {
            "copy": lambda: packer.load(work / "copy"),
            "index": lambda: packer.load(work / "index", source=corpus),
        }
        loaded.clear()
        for turn in range(runs):
            for kind, reopen in reopened.items():
                dataset = reopen()  # maps files, which would keep them in the cache
                del dataset
                for each in (corpus, work / "copy", work / "index"):
                    drop_from_cache(each)
                cold[kind].append(speed(reopen(), turn, COLD_BATCHES))

        versions = " ".join(f"{name} {installed(name)}" for name in ("numpy", "numba", "pyarrow", "torch"))
        machine = platform.processor() or platform.machine()
        print(f"{os.cpu_count()} cores, {machine}, Python {platform.python_version()}, {versions}")
        print(f"{count:,} tokens in documents of log-normal lengths, rows of {max_len}; median of {runs}, least, most")
        print(f"opening both took {opening:.2f} s\n")
        print(f"{'':34} {'copy':>26} {'index':>26}   index / copy")
        for what, figures, unit in (
            ("pack, s", taken, 1.0),
            ("warm, M tokens/s", warm, 1e6),
            ("cold, M tokens/s", cold, 1e6),
        ):
            ratios = [index / copy for copy, index in zip(figures["copy"], figures["index"], strict=True)]
            copy, index = (shown(figures[kind], unit) for kind in ("copy", "index"))
            print(f"{what:34} {copy} {index} {statistics.median(ratios):14.2f}")
        sizes = {kind: size_of(work / kind) for kind in extra}
        print(f"{'on disk, MB':34} {sizes['copy'] / 1e6:26,.1f} {sizes['index'] / 1e6:26,.1f} "
              f"{sizes['index'] / sizes['copy']:14.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
