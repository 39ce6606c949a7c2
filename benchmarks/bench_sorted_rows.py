"""Whether it matters that rows are mixed like the corpus: a small model trained on sorted and on mixed rows.

    python benchmarks/bench_sorted_rows.py --seeds 8                                   # some minutes on a CPU
    python benchmarks/bench_sorted_rows.py --documents 100 --held-out 20 --seeds 1     # seconds, to see that it runs

The documents, the model and the loss are those of bench_convergence.py. The documents are packed by `bfd`, which fills
a row with documents of about one length, and by `auto`, which draws rows that are as mixed as the corpus; both in as
many rows. A step takes few rows, so with sorted rows it sees only a few lengths. The order of rows is shuffled.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent))
from bench_convergence import draw_documents, make_corpus, pool, train
from bench_pack import installed

from packer.pipeline.collect_figures import packed_figures

ALGORITHMS = {"sorted": "bfd", "mixed": "auto"}


@click.command()
@click.option("--documents", default=8000, show_default=True, help="Documents to train on.")
@click.option("--held-out", default=256, show_default=True, help="Documents to measure by.")
@click.option("--max-len", default=2048, show_default=True, help="Bytes of a row.")
@click.option("--rows", default=2, show_default=True, help="Packed rows of an optimizer step.")
@click.option("--epochs", default=1, show_default=True)
@click.option("--seeds", default=8, show_default=True)
@click.option("--learning-rate", default=2e-3, show_default=True)
@click.option("--processes", default=os.cpu_count(), help="Runs at a time, a thread each [default: a core each].")
def main(
    documents: int,
    held_out: int,
    max_len: int,
    rows: int,
    epochs: int,
    seeds: int,
    learning_rate: float,
    processes: int,
) -> None:
    drawn = draw_documents(documents, held_out, max_len)
    last: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    spread: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    with tempfile.TemporaryDirectory(prefix="bench-sorted-rows-") as folder, pool(processes) as workers:
        corpora = {
            (name, seed): make_corpus(
                Path(folder) / f"{name}-{seed}", *drawn, max_len=max_len, rows=rows, seed=seed, algorithm=algorithm
            )
            for name, algorithm in ALGORITHMS.items()
            for seed in range(seeds)
        }
        versions = {name: installed(name) for name in ("numpy", "torch", "transformers")}
        print(f"Python {platform.python_version()}, " + ", ".join(map(" ".join, versions.items())))
        print(
            f"{len(drawn[0]):,} documents, {sum(map(len, drawn[0])):,} bytes; {rows} rows of {max_len} a step; "
            f"{epochs} epochs, {seeds} seeds, learning rate {learning_rate}"
        )
        for name in ALGORITHMS:
            mixing = packed_figures(Path(folder) / f"{name}-0" / "packed").row_figures
            packed = corpora[name, 0].packed
            print(f"{name}: {len(packed):,} rows, share of the variance within rows {mixing.within_row_share:.2f}")
        running = [
            (name, workers.submit(train, corpora[name, seed], "packed", seed=seed, epochs=epochs,
                                  learning_rate=learning_rate, evaluations=1))
            for seed in range(seeds)
            for name in ALGORITHMS
        ]  # fmt: skip
        for name, future in running:
            run = future.result()
            last[name].append(run.held_out[-1][1])
            losses = [loss for _, loss in run.losses[len(run.losses) // 2 :]]
            spread[name].append(statistics.stdev(losses))
            found = f"held out {last[name][-1]:.4f}, steps {spread[name][-1]:.4f}"
            print(f"  seed {run.seed}, {name:6} {found}", flush=True)
    print(f"\n{'':8} {'held-out loss':>14} {'deviation of a step':>20}")
    for name in ALGORITHMS:
        print(f"{name:8} {statistics.mean(last[name]):14.4f} {statistics.mean(spread[name]):20.4f}")
    differences = [mixed - ordered for mixed, ordered in zip(last["mixed"], last["sorted"], strict=True)]
    deviation = f", standard deviation {statistics.stdev(differences):.4f}" if seeds > 1 else ""
    print(f"\nmixed minus sorted, seed by seed: mean {statistics.mean(differences):+.4f}{deviation}, "
          f"{sum(each < 0 for each in differences)} of {seeds} below 0")  # fmt: skip


if __name__ == "__main__":
    main()
