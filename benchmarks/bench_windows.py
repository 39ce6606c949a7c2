"""Held-out loss of a small model by `balance=W`, which changes the rows that share a step.

    python benchmarks/bench_windows.py TEXTS.jsonl ... --output benchmarks/results/bench_windows.json
    python benchmarks/bench_windows.py TEXTS.jsonl --documents 200 --held-out 20 --seeds 2    # seconds, to see it run

Documents are the records of JSON lines (prompt and completion, messages, or text) as bytes. Some are packed, anew for
each seed, and others are held out. With one seed, all windows have the same rows, model, optimizer, learning rates and
number of steps; they differ in the order of the rows alone. Columns: the held-out loss, mean over seeds; its difference
from plain order with the same seed, in percent, and the standard error of the mean; and the time that attention takes
on the slowest rank over the mean, with one row of a step on each rank.

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
import pyarrow as pa

import packer

sys.path.insert(0, str(Path(__file__).parent))
from bench_convergence import BALANCE, END, Corpus, Document, make_corpus, pool, small_llama, train


def documents(path: Path, count: int) -> list[Document]:
    """Draw records of JSON lines, compressed or not, as bytes with an end token; the same ones each time."""
    lines = pa.input_stream(str(path), compression="detect").read().splitlines()
    chosen = np.random.default_rng(0).permutation(len(lines))[:count]
    return [np.append(np.frombuffer(text_of(json.loads(lines[at])), np.uint8), END).astype(np.int32) for at in chosen]


def text_of(record: dict[str, Any]) -> bytes:
    """Return the text of a record."""
    if "messages" in record:
        return "".join(f"{message['role']}: {message['content']}\n" for message in record["messages"]).encode()
    return record["text"].encode() if "text" in record else f"{record['prompt']}\n{record['completion']}".encode()


def slowest_over_mean(corpus: Corpus, window: int | None) -> float:
    """Time of attention of the slowest rank over the mean, where each rank has one row of a step."""
    ranks = corpus.rows
    sampler = packer.BatchSampler(corpus.packed, global_batch=ranks, rows=1, world_size=ranks, balance=window)
    return sampler.imbalance()


def print_table(losses: dict[str, list[float]], waiting: dict[str, float]) -> None:
    """Print a line for each window; the first is plain order."""
    plain = np.array(next(iter(losses.values())))
    print(f"{'':12} {'held-out loss':>14} {'minus plain':>12} {'standard error':>15} {'slowest/mean':>13}")
    for way, values in losses.items():
        differences = 100 * (np.array(values) / plain - 1)
        error = differences.std(ddof=1) / np.sqrt(len(values))
        cells = f"{np.mean(values):14.4f} {differences.mean():11.2f}% {error:14.2f}% {waiting[way]:13.3f}"
        print(f"{way:12} {cells}", flush=True)


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
    found = {}
    ways = {f"{BALANCE}{window}": window for window in (None, *windows)}
    options = {"epochs": 1, "learning_rate": learning_rate, "evaluations": 1, "width": width}
    for path in files:
        drawn = documents(path, training + held_out)
        packed, held = drawn[held_out:], [each[:max_len] for each in drawn[:held_out]]
        with tempfile.TemporaryDirectory(prefix="bench-windows-") as name, pool(processes) as workers:
            corpora = [
                make_corpus(Path(name) / str(seed), packed, held, max_len=max_len, rows=rows, seed=seed)
                for seed in range(seeds)
            ]
            running = {
                way: [workers.submit(train, corpus, way, seed=seed, **options) for seed, corpus in enumerate(corpora)]
                for way in ways
            }
            runs = {way: [future.result() for future in futures] for way, futures in running.items()}
            waiting = {way: slowest_over_mean(corpora[0], window) for way, window in ways.items()}
        losses = {way: [run.held_out[-1][1] for run in of_way] for way, of_way in runs.items()}
        shape = f"{len(corpora[0].packed):,} rows of {max_len:,}, {len(next(iter(runs.values()))[0].losses)} steps"
        weights = small_llama(0, width).num_parameters()
        print(f"\n{path.name}: {training:,} documents, {shape} of {rows} rows, {seeds} seeds, {weights:,} weights")
        print_table(losses, waiting)
        found[path.name] = {"documents": training, "shape": shape, "losses_by_seed": losses}
        if output:
            output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
