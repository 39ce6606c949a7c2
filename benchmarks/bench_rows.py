"""What rows look like: how many, how mixed, and how even in attention work; solved and drawn, beside a shuffled corpus.

    python benchmarks/bench_rows.py LENGTHS.npy ... [--max-len 4096] [--log-normal 1000000]

For every set of document lengths and every row length: the rows that `optimal` needs, and those that `auto` makes, in
shards of 512 MB and in about ten partitions of a shard each, with the proved bound; how many of them are drawn; the
share of the variance of log length that lies within rows (formula in `packer.report.measures`), beside that of the
shuffled corpus; the largest work of a row in a 7B model, over the mean; and the CPU seconds that both take to plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.algorithms.index_arrays import joined_ranges
from packer.algorithms.sequential import sequential
from packer.options import PackOptions
from packer.plan.make_plan import plan_lengths
from packer.plan.partition_plan import PartitionPlan
from packer.plan.segments import cut_documents
from packer.report.measures import RowFigures, RowSums

ROW_BYTES = 8  # a token and its label


def log_normal(documents: int) -> NDArray[np.int32]:
    """Lengths as in bench_plan.py: median 245 tokens, sigma 1, capped at 20,000."""
    drawn = np.exp(np.random.default_rng(0).standard_normal(documents, np.float32) + np.float32(5.5))
    return np.minimum(drawn + 1, 20_000).astype(np.int32)


def solved(lengths: NDArray[np.int32], max_len: int) -> tuple[int, RowFigures]:
    """The rows of `optimal`, by patterns alone."""
    algorithm = get_algorithm("optimal")
    patterns = algorithm.solve(cut_documents(lengths, max_len, "split").histogram)
    sums = RowSums(max_len)
    order = np.repeat(np.arange(len(patterns.counts)), patterns.counts)
    depths = np.diff(patterns.offsets)[order]
    segments = patterns.extents[joined_ranges(patterns.offsets[:-1][order], depths)]
    sums.add(segments, np.cumsum(np.concatenate([[0], depths])))
    return patterns.packs, sums.finish()


def made(lengths: NDArray[np.int32], max_len: int, shard_size: int) -> tuple[PartitionPlan, int, RowFigures]:
    """The plan of `auto` as `pack` makes it, its bound, and what its rows are like."""
    plan = plan_lengths(lengths, PackOptions(max_len=max_len, shard_size=shard_size))
    assert isinstance(plan, PartitionPlan)
    sums = RowSums(max_len)
    for rows in map(plan.rows, range(len(plan.shard_starts) - 1)):
        sums.add(rows.lengths, rows.row_starts)
    return plan, plan.totals.lower_bound, sums.finish()


def shuffled(histogram: NDArray[np.int64]) -> RowFigures:
    """Figures of a shuffled corpus: segments in random order, in rows that end before an overflow."""
    lengths = np.repeat(np.arange(len(histogram), dtype=np.int32), histogram)
    lengths = np.random.default_rng(0).permutation(lengths)
    sums = RowSums(len(histogram) - 1)
    sums.add(lengths, sequential(lengths, len(histogram) - 1).row_starts)
    return sums.finish()


def line(name: str, lengths: NDArray[np.int32], max_len: int) -> list[Any]:
    """One row of the table."""
    begun = time.process_time()
    packs, before = solved(lengths, max_len)
    middle = time.process_time()
    plan, bound, now = made(lengths, max_len, 512 * 10**6)
    ended = time.process_time()
    total = int(lengths.sum(dtype=np.int64)) * ROW_BYTES
    with small_partitions():
        ten, _, _ = made(lengths, max_len, max(ROW_BYTES * max_len, total // 10))
    histogram = cut_documents(lengths, max_len, "split").histogram
    return [
        name,
        f"{max_len:,}",
        f"{bound:,}",
        f"{packs:,}",
        f"{plan.totals.rows:,}",
        f"{ten.totals.rows:,}",
        f"{drawn_in(plan):.0%}",
        f"{before.within_row_share:.3f}",
        f"{now.within_row_share:.3f}",
        f"{shuffled(histogram).within_row_share:.3f}",
        f"{before.work_peak:.2f}",
        f"{now.work_peak:.2f}",
        f"{middle - begun:.2f}",
        f"{ended - middle:.2f}",
    ]


@contextmanager
def small_partitions() -> Iterator[None]:
    """Make every shard a partition of its own."""
    with mock.patch("packer.plan.partition_plan.PARTITION_TOKENS", 1):
        yield


def drawn_in(plan: PartitionPlan) -> float:
    """Return the share of the rows that are drawn."""
    facts = [plan.job.checkpoints.read(f"{plan.job.name}-{number}").facts for number in range(len(plan.job.partitions))]
    return sum(each["drawn"] for each in facts) / plan.totals.rows


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--max-len", "max_lens", multiple=True, type=int, default=(2048, 4096, 8192, 32768))
@click.option("--log-normal", "drawn", type=int, help="Documents of a log-normal set, too.")
def main(files: tuple[Path, ...], max_lens: tuple[int, ...], drawn: int | None) -> None:
    sets = {path.stem: np.load(path).astype(np.int32) for path in files}
    if drawn:
        sets[f"log-normal {drawn:,}"] = log_normal(drawn)
    header = [
        *("documents", "max_len", "bound", "optimal", "auto", "in ten", "drawn", "mixed: optimal", "auto", "shuffled"),
        *("work: optimal", "auto", "seconds: optimal", "auto"),
    ]
    widths = [22, 7, 7, 7, 7, 7, 6, 14, 6, 9, 13, 6, 16, 6]
    print("  ".join(name.rjust(width) for name, width in zip(header, widths, strict=True)))
    for name, lengths in sets.items():
        for max_len in max_lens:
            cells = line(name, lengths, max_len)
            print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)


if __name__ == "__main__":
    main()
