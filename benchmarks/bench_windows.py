"""Held-out loss of a small model by `balance=W`, which changes the rows that share a step.

    python benchmarks/bench_windows.py TEXTS.jsonl ... --output benchmarks/results/bench_windows.json
    python benchmarks/bench_windows.py TEXTS.jsonl --documents 200 --held-out 20 --seeds 2    # seconds, to see it run

Documents are the records of JSON lines (prompt and completion, messages, or text) as bytes. Some are packed, anew for
each seed, and others are held out. With one seed, all windows have the same rows, model, optimizer, learning rates and
number of steps; they differ in the order of the rows alone. The last line has rows in the order of the folder, packed
with `--balance-ranks` of a quarter of the rows of a step. Columns: the held-out loss, mean over seeds; its difference
from plain order with the same seed, in percent, and the standard error of the mean; and the time that attention takes
on the slowest rank over the mean, with one row of a step on each rank, or one of a group in the last line.

balance=1 is left out: the rows of a step are those of plain order, and so is the loss, but for rounding.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

import packer

sys.path.insert(0, str(Path(__file__).parent))
from bench_convergence import BALANCE, IN_ORDER, Corpus, make_corpus, pool, read_documents, small_llama, train


def slowest_over_mean(corpus: Corpus, ranks: int, **options: Any) -> float:
    """Time of attention of the slowest rank over the mean, where each rank has one row at a time."""
    return packer.BatchSampler(corpus.packed, global_batch=ranks, rows=1, world_size=ranks, **options).imbalance()


def print_table(losses: dict[str, list[float]], waiting: list[float]) -> None:
    """Print a line for each way; the first is plain order."""
    plain = np.array(next(iter(losses.values())))
    print(f"{'':13} {'held-out loss':>14} {'minus plain':>12} {'standard error':>15} {'slowest/mean':>13}")
    for (way, values), slowest in zip(losses.items(), waiting, strict=True):
        differences = 100 * (np.array(values) / plain - 1)
        error = differences.std(ddof=1) / np.sqrt(len(values))
        cells = f"{np.mean(values):14.4f} {differences.mean():11.2f}% {error:14.2f}% {slowest:13.3f}"
        print(f"{way:13} {cells}", flush=True)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--documents", "training", default=560, show_default=True, help="Documents to train on.")
@click.option("--held-out", default=128, show_default=True, help="Documents to measure by.")
@click.option("--max-len", default=1024, show_default=True, help="Bytes of a row.")
@click.option("--rows", default=8, show_default=True, help="Rows of an optimizer step.")
@click.option("--window", "windows", multiple=True, type=int, default=(4, 8, 16), show_default=True)
@click.option("--seeds", default=8, show_default=True)
@click.option("--width", default=64, show_default=True, help="Hidden size of the model.")
@click.option("--learning-rate", default=2e-3, show_default=True)
@click.option("--processes", default=1, show_default=True, help="Runs at a time, a thread each.")
@click.option("--output", type=click.Path(path_type=Path), help="File for the losses of every run, as JSON.")
def main(files: tuple[Path, ...], training: int, held_out: int, max_len: int, rows: int, windows: tuple[int, ...],
         seeds: int, width: int, learning_rate: float, processes: int, output: Path | None) -> None:  # fmt: skip
    found, windows = [], (None, *windows)
    options = {"epochs": 1, "learning_rate": learning_rate, "evaluations": 1, "width": width}
    for path in files:
        drawn = read_documents(path, training + held_out)
        packed, held = drawn[held_out:], [each[:max_len] for each in drawn[:held_out]]
        with tempfile.TemporaryDirectory(prefix="bench-windows-") as name, pool(processes) as workers:
            plain, ordered = (
                [
                    make_corpus(Path(name) / f"{ranks}-{seed}", packed, held, max_len=max_len, rows=rows, seed=seed,
                                balance_ranks=ranks)
                    for seed in range(seeds)
                ]
                for ranks in (None, rows // 4)
            )  # fmt: skip
            corpora = {**dict.fromkeys((f"{BALANCE}{window}" for window in windows), plain), IN_ORDER: ordered}
            running = {
                way: [workers.submit(train, corpus, way, seed=seed, **options) for seed, corpus in enumerate(of_way)]
                for way, of_way in corpora.items()
            }
            losses = {way: [future.result().held_out[-1][1] for future in of_way] for way, of_way in running.items()}
            waiting = [slowest_over_mean(plain[0], rows, balance=window) for window in windows]
            waiting.append(slowest_over_mean(ordered[0], rows // 4, seed=None))
        shape = f"{len(plain[0].packed):,} rows of {max_len:,}, {-(-len(plain[0].packed) // rows)} steps of {rows} rows"
        weights = small_llama(0, width).num_parameters()
        print(f"\n{path.name}: {training:,} documents, {shape}, {seeds} seeds, {weights:,} weights")
        print_table(losses, waiting)
        found.append({"file": path.name, "documents": training, "shape": shape, "losses_by_seed": losses})
        if output:
            output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
