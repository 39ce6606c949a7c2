"""Loss of a small model on the same documents: padded, flattened, packed, and packed without boundaries.

    python benchmarks/bench_convergence.py --output benchmarks/results      # some minutes on a CPU
    python benchmarks/bench_convergence.py --documents 100 --held-out 20 --seeds 1    # seconds, to see that it runs

The documents are the functions of the Python standard library that fit a row, as bytes, each once, with an end token.
A few are held out; their loss, each alone, is what all ways are measured by. Every way has the same model, optimizer,
schedule of the learning rate and passes over the documents:

    padded                    as many documents a step as `--rows` packed rows hold on average, padded to the longest
    flattened                 the same documents in the same steps, by packer.flatten
    packed                    packed rows in packer.batches, as many documents a step on average: matched
    packed, fewer steps       as many rows a step as there were documents
    packed, no boundaries     the rows of `packed`, read as if each were one document

Padded and flattened are trained on identical steps, so their losses are compared step by step, and a second time in
float64, where sums round to 1e-16 (Llama's norms still compute in float32). The others are compared by the mean over
seeds, which change the weights, the order of documents and their packing.
"""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

import packer
from packer.cli.writing_commands import standard_library_texts

sys.path.insert(0, str(Path(__file__).parent))
from bench_pack import installed
from convergence_results import WAYS, Run, draw, largest_difference, summary

END, PADDING, VOCABULARY = 256, 257, 258  # after the 256 bytes
NO_LOSS = -100

BALANCE = "balance="
"""Begins the names of ways of `bench_windows.py`: packed rows in steps of `packer.BatchSampler(balance=...)`."""

IN_ORDER = "rows in order"
"""Another of its ways: packed rows in the order on disk."""

Document = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """What all ways train on, and are measured by."""

    training: list[Document]
    held_out: list[Document]
    packed: packer.PackedDataset
    rows: int
    """Packed rows of a step."""

    documents: int
    """Documents of a step: as many as these rows hold on average."""


def functions(max_len: int) -> list[Document]:
    """Functions of the standard library that fit a row with their end token, as bytes; copies are left out."""
    found: dict[bytes, None] = {}
    for text in standard_library_texts():
        lines = text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = "".join(lines[node.lineno - 1 : node.end_lineno]).encode()
                if len(source) < max_len:
                    found[source] = None
    return [np.append(np.frombuffer(source, np.uint8).astype(np.int32), np.int32(END)) for source in found]


def draw_documents(documents: int, held_out: int, max_len: int) -> tuple[list[Document], list[Document]]:
    """Draw documents to train on, and those that are held out: the same for all seeds."""
    everything = functions(max_len)
    chosen = np.random.default_rng(0).permutation(len(everything))[: documents + held_out]
    first, rest = ([everything[number] for number in part] for part in np.split(chosen, [held_out]))
    return rest, first


def make_corpus(
    folder: Path,
    training: list[Document],
    held_out: list[Document],
    *,
    max_len: int,
    rows: int,
    seed: int,
    **options: Any,
) -> Corpus:
    """Pack the documents that are trained on, anew for every seed."""
    folder.mkdir()
    offsets = np.cumsum([0, *map(len, training)]).astype(np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(training)))})
    source = folder / "documents.arrow"
    with pa.OSFile(str(source), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    packer.pack(source, folder / "packed", max_len=max_len, seed=seed, pad_id=PADDING, sync=False, **options)
    packed = packer.load(folder / "packed")
    per_step = round(packer.packed_schedule(packed, batch_size=1).packing_factor * rows)
    return Corpus(training=training, held_out=held_out, packed=packed, rows=rows, documents=per_step)


# ---- batches ----


def pad(documents: list[Document]) -> dict[str, Any]:
    """A row per document. With padding on the right no mask is needed: attention is causal."""
    longest = max(map(len, documents))
    input_ids = np.full((len(documents), longest), PADDING, np.int64)
    for row, document in zip(input_ids, documents, strict=True):
        row[: len(document)] = document
    return without_boundaries({"input_ids": torch.from_numpy(input_ids)})


def without_boundaries(batch: dict[str, Any]) -> dict[str, Any]:
    """Rows as if each were one document: positions do not restart, every token but padding and the first has a loss."""
    labels = batch["input_ids"].masked_fill(batch["input_ids"] == PADDING, NO_LOSS)
    labels[:, 0] = NO_LOSS  # it is never predicted, and must not be counted
    return {"input_ids": batch["input_ids"], "labels": labels, "use_cache": False}


def steps_of(corpus: Corpus, way: str, *, seed: int, epoch: int) -> Iterator[dict[str, Any]]:
    """Yield the batch of every optimizer step of an epoch."""
    if way in ("padded", "flattened"):
        order = np.random.default_rng([seed, epoch]).permutation(len(corpus.training))
        for first in range(0, len(order), corpus.documents):
            documents = [corpus.training[number] for number in order[first : first + corpus.documents]]
            yield pad(documents) if way == "padded" else packer.flatten([{"input_ids": each} for each in documents])
    elif way.startswith(BALANCE):
        window = way.removeprefix(BALANCE)
        balance = None if window == "None" else int(window)
        sampler = packer.BatchSampler(corpus.packed, global_batch=corpus.rows, seed=seed, balance=balance)
        sampler.set_epoch(epoch)
        yield from (packer.collate([corpus.packed[number] for number in numbers]) for numbers in sampler)
    elif way == "packed, no boundaries":
        rows = packer.batches(corpus.packed, rows=corpus.rows, seed=seed, epoch=epoch, format="hf_rows")
        yield from map(without_boundaries, rows)
    else:
        rows = corpus.documents if way == "packed, fewer steps" else corpus.rows
        yield from packer.batches(corpus.packed, rows=rows, seed=None if way == IN_ORDER else seed, epoch=epoch)


def number_of_steps(corpus: Corpus, way: str) -> int:
    """Optimizer steps of an epoch."""
    if way in ("padded", "flattened"):
        return -(-len(corpus.training) // corpus.documents)
    rows = corpus.documents if way == "packed, fewer steps" else corpus.rows
    return -(-len(corpus.packed) // rows)


# ---- training ----


def small_llama(seed: int, width: int = 96) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=2,
        num_attention_heads=width // 24,
        num_key_value_heads=width // 24,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config)


def held_out_loss(model: Any, documents: list[Document]) -> float:
    """Mean over the tokens of documents that are alone: padded, 32 at a time, those of like length together."""
    documents = sorted(documents, key=len)
    total, items = 0.0, sum(len(document) - 1 for document in documents)
    with torch.no_grad():
        for first in range(0, len(documents), 32):
            batch = pad(documents[first : first + 32])
            labels = batch.pop("labels")
            total += packer.causal_lm_loss(model(**batch).logits, labels, num_items=items).item()
    return total


def train(
    corpus: Corpus,
    way: str,
    *,
    seed: int,
    epochs: int,
    learning_rate: float,
    evaluations: int = 10,
    width: int = 96,
    dtype: torch.dtype = torch.float32,
    stop: int | None = None,
) -> Run:
    """Train for some epochs, or until a step, and keep the curves."""
    model = small_llama(seed, width).to(dtype)
    segments = way not in ("padded", "packed, no boundaries")
    if segments:
        packer.attention.use(model)
    total = number_of_steps(corpus, way) * epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=total, pct_start=0.1)
    batches = (batch for epoch in range(epochs) for batch in steps_of(corpus, way, seed=seed, epoch=epoch))
    run = Run(way=way, seed=seed)
    for step, batch in enumerate(batches, 1):
        items = packer.num_items_in_batch([batch])
        labels = batch.pop("labels")
        loss = packer.causal_lm_loss(model(**batch).logits, labels, num_items=items)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        seen = round(step / total * len(corpus.training) * epochs)
        run.losses.append((seen, loss.item()))
        if stop is None and (step * evaluations // total > (step - 1) * evaluations // total):
            if segments:
                model.set_attn_implementation("sdpa")  # documents alone, as for every other way
            run.held_out.append((seen, held_out_loss(model, corpus.held_out)))
            if segments:
                packer.attention.use(model)
        if step == stop:
            break
    return run


def pool(processes: int) -> ProcessPoolExecutor:
    """Processes with one thread each, which is fastest for a model this small."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,))


@click.command()
@click.option("--documents", default=4000, show_default=True, help="Documents to train on.")
@click.option("--held-out", default=256, show_default=True, help="Documents to measure by.")
@click.option("--max-len", default=512, show_default=True, help="Bytes of a row.")
@click.option("--rows", default=6, show_default=True, help="Packed rows of an optimizer step.")
@click.option("--epochs", default=1, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--learning-rate", default=2e-3, show_default=True)
@click.option("--processes", default=os.cpu_count(), help="Runs at a time, a thread each [default: a core each].")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for convergence.json and .svg.")
def main(
    documents: int,
    held_out: int,
    max_len: int,
    rows: int,
    epochs: int,
    seeds: int,
    learning_rate: float,
    processes: int,
    output: Path | None,
) -> None:
    drawn = draw_documents(documents, held_out, max_len)
    with tempfile.TemporaryDirectory(prefix="bench-convergence-") as name, pool(processes) as workers:
        folders = [Path(name) / str(seed) for seed in range(seeds)]
        corpora = [
            make_corpus(folder, *drawn, max_len=max_len, rows=rows, seed=seed) for seed, folder in enumerate(folders)
        ]
        versions = {name: installed(name) for name in ("numpy", "torch", "transformers")}
        setting = (
            f"{len(drawn[0]):,} documents, {sum(map(len, drawn[0])):,} bytes, {len(corpora[0].packed):,} rows of "
            f"{max_len}; {corpora[0].documents} documents or {rows} rows a step; {epochs} epochs, {seeds} seeds, "
            f"{small_llama(0).num_parameters():,} weights, learning rate {learning_rate}"
        )
        print(f"Python {platform.python_version()}, " + ", ".join(map(" ".join, versions.items())))
        print(setting, flush=True)
        options = {"epochs": epochs, "learning_rate": learning_rate}
        running = [
            workers.submit(train, corpus, way, seed=seed, **options)
            for seed, corpus in enumerate(corpora)
            for way in WAYS
        ]
        exact = [
            workers.submit(train, corpora[0], way, seed=0, dtype=torch.float64, stop=50, **options) for way in WAYS[:2]
        ]
        runs = []
        for future in running:
            runs.append(future.result())
            print(f"  seed {runs[-1].seed}, {runs[-1].way:22} held out {runs[-1].held_out[-1][1]:.4f}", flush=True)
        noise = {
            "float32": max(largest_difference(*runs[first : first + 2]) for first in range(0, len(runs), len(WAYS))),
            "float64, 50 steps": largest_difference(*[future.result() for future in exact]),
        }
    found = summary(runs, noise)
    print(f"\n{'':22} {'steps':>6} {'held-out loss':>14} {'minus padded':>13} {'least':>8} {'most':>8}")
    for way, values in found["ways"].items():
        by_seed = values["minus_padded_by_seed"]
        print(f"{way:22} {values['steps']:6} {values['held_out_loss']:14.4f} {values['minus_padded']:13.4f} "
              f"{min(by_seed):8.4f} {max(by_seed):8.4f}")  # fmt: skip
    print("\nThe loss of a step, padded and flattened, differs at most by "
          + ", ".join(f"{most:.1e} ({name})" for name, most in noise.items()))  # fmt: skip
    if output:
        output.mkdir(parents=True, exist_ok=True)
        result = {"setting": setting, "versions": versions, **found}
        (output / "convergence.json").write_text(json.dumps(result, indent=2) + "\n")
        draw(output / "convergence.svg", runs)


if __name__ == "__main__":
    main()
