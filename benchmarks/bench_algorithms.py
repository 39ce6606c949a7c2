"""Packs, gap to the lower bound and seconds of every algorithm on a histogram.

    python benchmarks/bench_algorithms.py histogram.csv --max-segments 3
    python benchmarks/bench_algorithms.py lengths.npy --max-len 4096

The histogram is a CSV file with the header `length,count`, or counted from an array of document lengths (.npy), long
ones split. The first solution of each algorithm, which compiles its kernels, is thrown away, and the median of the
others shown. The bound is the best that is known without solving; `optimal` proves a better one.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import click
import numpy as np

from packer.algorithms import ALGORITHMS
from packer.algorithms.bounds import lower_bound
from packer.errors import PackerError
from packer.plan import cut_documents


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option("--max-len", type=int, help="Tokens of a row [default: the longest length].")
@click.option("--max-segments", type=int, help="The most segments in a row.")
@click.option("--runs", default=3, show_default=True, help="Solutions that count.")
def main(source: Path, max_len: int | None, max_segments: int | None, runs: int) -> None:
    if source.suffix == ".npy":
        lengths = np.load(source).astype(np.int32)
        histogram = cut_documents(lengths, max_len or int(lengths.max()), "split").histogram()
    else:
        rows = np.loadtxt(source, delimiter=",", skiprows=1, dtype=np.int64)
        histogram = np.zeros((max_len or int(rows[:, 0].max())) + 1, np.int64)
        histogram[rows[:, 0]] = rows[:, 1]
    bound = lower_bound(histogram, max_segments)
    limit = "no limit" if max_segments is None else f"at most {max_segments} segments"
    print(f"{source.name}: {histogram.sum():,} segments, max_len {len(histogram) - 1}, {limit}, bound {bound:,}")
    for name, algorithm in ALGORITHMS.items():
        seconds = []
        try:
            for _ in range(runs + 1):
                begun = time.perf_counter()
                packs = algorithm.solve(histogram, max_segments).packs
                seconds.append(time.perf_counter() - begun)
        except PackerError as error:
            print(f"{name:17} {error}")
            continue
        print(f"{name:17} {packs:>12,} {packs / bound - 1:>9.4%} {statistics.median(seconds[1:]):>9.4f} s")


if __name__ == "__main__":
    main()
