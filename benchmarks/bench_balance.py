"""How long ranks wait for each other, each training on one row at a time: time of the slowest rank over the mean.

    python benchmarks/bench_balance.py LENGTHS.npy ... [--max-len 32768] [--ranks 8] [--accumulation 1] [--log-normal]

For every set of document lengths and every row length, documents are drawn from the set with replacement until they
fill `--rows` rows. Columns: rows made by next-fit in the order of arrival, as schedulers inside trainers make them; the
rows of `packer pack`, shuffled by `packer.BatchSampler` without `balance`, and balanced over 1 and 8 steps; and rows in
the order of the folder, packed without and with `--balance-ranks` of as many ranks. Work is that of a 7B model, forward
(`packer.report.measures`). Only the sampler is timed: the last column has the CPU milliseconds that it takes for a
step, with 8 steps balanced.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import packer
from packer.column_names import PADDING
from packer.pipeline.collect_figures import TrainingJob, keys_of_matrices, waiting_of
from packer.report.measures import RowProfile, RowSums


def documents(lengths: NDArray[np.int32], tokens: int) -> NDArray[np.int32]:
    """Draw lengths with replacement until they have so many tokens."""
    drawn = np.random.default_rng(0).choice(lengths, int(1.1 * tokens / lengths.mean()) + 1)
    return drawn[: int(np.searchsorted(np.cumsum(drawn, dtype=np.int64), tokens)) + 1]


def packed(folder: Path, lengths: NDArray[np.int32], max_len: int, name: str, **options: Any) -> packer.PackedDataset:
    """Pack documents of these lengths, without tokens."""
    pq.write_table(pa.table({"length": lengths}), folder / "lengths.parquet")
    options |= {"lengths_column": "length", "overwrite": True, "progress": False}
    manifest = packer.pack(folder / "lengths.parquet", folder / name, max_len=max_len, **options)
    return packer.load(manifest.path)


def profile_of(dataset: packer.PackedDataset) -> RowProfile:
    """Numbers of each row."""
    sums = RowSums(dataset.max_len, keeps_rows=True)
    for offsets, seq_lengths, doc_ids in dataset.segments():
        real = doc_ids != PADDING
        sums.add(seq_lengths[real], np.append(0, np.cumsum(real))[offsets])
    profile = sums.finish().profile
    assert profile is not None
    return profile


def in_order(rows: RowProfile, ranks: int) -> float:
    """Time of the slowest rank over the mean, for rows in the order on disk."""
    work = keys_of_matrices("7B") * rows.tokens + (rows.squares + rows.tokens) / 2
    turns = work[: len(work) // ranks * ranks].reshape(-1, ranks)
    return float(turns.max(axis=1).sum() / turns.mean(axis=1).sum())


def milliseconds(dataset: packer.PackedDataset, ranks: int, accumulation: int) -> float:
    """Time of one rank's sampler for an optimizer step."""
    sampler = packer.BatchSampler(dataset, global_batch=ranks * accumulation, rows=1, world_size=ranks, balance=8)
    first = time.process_time()
    steps = sum(1 for _ in sampler) // accumulation
    return 1000 * (time.process_time() - first) / steps


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--max-len", "max_lens", multiple=True, type=int, default=(8192, 32768, 131072))
@click.option("--ranks", "rank_counts", multiple=True, type=int, default=(8, 64))
@click.option("--accumulation", "accumulations", multiple=True, type=int, default=(1, 4))
@click.option("--rows", type=int, default=8192, help="Rows that each set fills.")
@click.option(
    "--log-normal", is_flag=True, help="A log-normal set, too: median 1,800 tokens, sigma 1.6, up to 200,000."
)
def main(
    files: tuple[Path, ...], max_lens: tuple[int, ...], rows: int, log_normal: bool, **counts: tuple[int, ...]
) -> None:
    sets = {path.stem: np.load(path).astype(np.int32) for path in files}
    if log_normal:
        drawn = np.random.default_rng(0).lognormal(7.5, 1.6, 400_000)
        sets["log-normal"] = np.minimum(drawn + 1, 200_000).astype(np.int32)
    header = ["documents", "max_len", "ranks", "rows/step", "next-fit", "random", "1 step", "8 steps"]
    header += ["in order", "balanced", "ms"]
    widths = [13, 8, 6, 10, 9, 7, 7, 8, 9, 9, 6]
    print("".join(name.rjust(width) for name, width in zip(header, widths, strict=True)))
    for name, lengths in sets.items():
        for max_len in max_lens:
            with tempfile.TemporaryDirectory() as folder:
                drawn = documents(lengths[lengths > 0], rows * max_len)
                pack = partial(packed, Path(folder), drawn, max_len)
                arrived = profile_of(pack("arrived", algorithm="sequential"))
                dataset = pack("plain")
                profile = profile_of(dataset)
                ordered = {ranks: profile_of(pack("ordered", balance_ranks=ranks)) for ranks in counts["rank_counts"]}
                for ranks, accumulation in product(counts["rank_counts"], counts["accumulations"]):
                    waiting = waiting_of(profile, TrainingJob(ranks=ranks, accumulation=accumulation, model="7B"))
                    ratios = [in_order(arrived, ranks), *(1 / (1 - share) for share in waiting.shares.values())]
                    ratios += [in_order(profile, ranks), in_order(ordered[ranks], ranks)]
                    cells = [name, f"{max_len:,}", str(ranks), str(accumulation), *(f"{ratio:.3f}" for ratio in ratios)]
                    cells.append(f"{milliseconds(dataset, ranks, accumulation):.2f}")
                    print("".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)


if __name__ == "__main__":
    main()
