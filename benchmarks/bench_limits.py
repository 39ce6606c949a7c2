"""Rows under two limits: tokens and images, drawn by packer, by first fit and by first fit decreasing, and the bounds.

    python benchmarks/bench_limits.py 1e5 1e6
    python benchmarks/bench_limits.py --lengths LENGTHS.npy

A made-up vision table: text of log-normal length (median 245 tokens, sigma 1), and in 70% of the documents images, 4 on
average and at most 30, of one size a document. Rows hold 8,192 tokens and 16 images; documents above either are left
out. The sizes of images decide what binds: 256 to 1,500 tokens an image tokens, 64 to 256 images, 256 to 460 both. With
--lengths, tokens are lengths from a file, cut at 8,192, and a second column is drawn beside them, of 0 to 15.
Seconds are CPU seconds of one thread, without the JIT compiler; rows are counted above the larger of the two bounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import vector_bounds
from packer.plan.vector_packing import pack_vectors, vector_first_fit

CAPACITIES = np.array([8192, 16])
WAYS = ("packer", "first fit decreasing", "first fit")
TOKENS_PER_IMAGE = {"tokens bind": (256, 1500), "images bind": (64, 256), "both bind": (256, 460)}


def vision_table(documents: int, tokens_per_image: tuple[int, int]) -> NDArray[np.int32]:
    """Return demands of tokens and images, shape (2, documents)."""
    random = np.random.default_rng(0)
    drawn = 4 * documents
    images = np.where(random.random(drawn) < 0.7, np.minimum(random.geometric(0.25, drawn), 30), 0)
    tokens = random.lognormal(5.5, 1, drawn).astype(np.int64) + 1
    tokens += images * random.integers(*tokens_per_image, drawn)
    fits = (tokens <= CAPACITIES[0]) & (images <= CAPACITIES[1])
    return np.stack([tokens[fits], images[fits]])[:, :documents].astype(np.int32)


def table_of(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return lengths with a second column that grows with them: 0 to 15, by chance."""
    tokens = np.minimum(lengths, CAPACITIES[0])
    share = np.random.default_rng(0).random(len(tokens)) * tokens / np.quantile(tokens, 0.9)
    return np.stack([tokens, np.minimum(share * 2, 15)]).astype(np.int32)


def first_fit(demands: NDArray[np.int32], order: NDArray[np.int64]) -> int:
    """Return the rows of first fit in this order."""
    rooms = np.empty((0, len(CAPACITIES)), np.int64)
    row_of = np.empty(demands.shape[1], np.int64)
    return vector_first_fit(np.ascontiguousarray(demands.T), CAPACITIES, order, rooms, row_of)


def decreasing(demands: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return items in decreasing order of their largest share of a capacity."""
    return np.argsort(-(demands / CAPACITIES[:, None]).max(axis=0), kind="stable")


def measure(name: str, demands: NDArray[np.int32], runs: int) -> None:
    """Print a line of the table."""
    bounds = vector_bounds(demands, CAPACITIES)
    ways: dict[str, Callable[[], int]] = {
        "packer": lambda: len(pack_vectors(demands, CAPACITIES, seed=1)),
        "first fit decreasing": lambda: first_fit(demands, decreasing(demands)),
        "first fit": lambda: first_fit(demands, np.arange(demands.shape[1])),
    }
    cells = []
    for pack in ways.values():
        seconds = []
        for _ in range(runs):
            begun = time.process_time()
            rows = pack()
            seconds.append(time.process_time() - begun)
        speed = demands.shape[1] / statistics.median(seconds) / 1e6
        cells.append(f"{rows:>9,} {rows / bounds.max() - 1:>+7.2%} {speed:>5.2f} M/s")
    print(f"{name:12} {demands.shape[1]:>9,} {bounds[0]:>8,} {bounds[1]:>8,}", *cells, flush=True)


@click.command(help=__doc__)
@click.argument("documents", nargs=-1, type=float)
@click.option("--lengths", type=click.Path(exists=True, path_type=Path), help="Lengths of documents, a .npy file.")
@click.option("--runs", default=3, show_default=True, help="Runs of each, of which the median is printed.")
def main(documents: tuple[float, ...], lengths: Path | None, runs: int) -> None:
    warm = vision_table(20_000, (256, 460))
    pack_vectors(warm, CAPACITIES, seed=1)
    first_fit(warm, decreasing(warm))
    print(f"{'':12} {'items':>9} {'tokens':>8} {'images':>8}", *(f"{way:>26}" for way in WAYS))
    for number in documents:
        for name, tokens_per_image in TOKENS_PER_IMAGE.items():
            measure(name, vision_table(int(number), tokens_per_image), runs)
    if lengths is not None:
        measure(lengths.stem[:12], table_of(np.load(lengths)), runs)


if __name__ == "__main__":
    main()
