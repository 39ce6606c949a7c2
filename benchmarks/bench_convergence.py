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

    python benchmarks/bench_convergence.py --repack --epochs 3 --rows 1 --seeds 8 --texts CHATS.jsonl --between 358 666

With `--repack`, other ways are compared over several epochs. With the same seed, they have the same first weights:

    packed                    the rows of one packing, shuffled anew in each epoch
    packed, new rows          another packing in each epoch after the first, so documents meet others in their steps
    packed, other order       the rows of `packed`, shuffled by another seed: what chance alone changes
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
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
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
from convergence_results import WAYS, WAYS_REPACKED, Run, draw, largest_difference, print_repacked, summary

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
    packed_again: tuple[packer.PackedDataset, ...]
    """Other packings of the same documents, for epochs 1, 2, ..."""

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


def read_documents(path: Path, count: int | None = None) -> list[Document]:
    """Draw records of JSON lines, compressed or not, as bytes with an end token; the same ones each time."""
    lines = pa.input_stream(str(path), compression="detect").read().splitlines()
    chosen = np.random.default_rng(0).permutation(len(lines))[:count]
    return [np.append(np.frombuffer(text_of(json.loads(lines[at])), np.uint8), END).astype(np.int32) for at in chosen]


def text_of(record: dict[str, Any]) -> bytes:
    """Return the text of a record."""
    if "messages" in record:
        return "".join(f"{message['role']}: {message['content']}\n" for message in record["messages"]).encode()
    return record["text"].encode() if "text" in record else f"{record['prompt']}\n{record['completion']}".encode()


def draw_documents(everything: list[Document], documents: int, held_out: int) -> tuple[list[Document], list[Document]]:
    """Draw documents to train on, and those that are held out: the same for all seeds."""
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
    packings: int = 1,
    **options: Any,
) -> Corpus:
    """Pack the documents that are trained on, anew for every seed, once or several times."""
    folder.mkdir()
    offsets = np.cumsum([0, *map(len, training)]).astype(np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(training)))})
    source = folder / "documents.arrow"
    with pa.OSFile(str(source), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    folders = [folder / f"packed-{number}" for number in range(packings)]
    for number, output in enumerate(folders):
        own = seed + 1000 * number
        packer.pack(source, output, max_len=max_len, seed=own, pad_id=PADDING, sync=False, **options)
    packed, *again = map(packer.load, folders)
    per_step = round(packer.packed_schedule(packed, batch_size=1).packing_factor * rows)
    return Corpus(training=training, held_out=held_out, packed=packed, packed_again=tuple(again), rows=rows,
                  documents=per_step)  # fmt: skip


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
        order = {IN_ORDER: None, "packed, other order": seed + 1000}.get(way, seed)
        yield from packer.batches(packed_for(corpus, way, epoch), rows=rows, seed=order, epoch=epoch)


def packed_for(corpus: Corpus, way: str, epoch: int) -> packer.PackedDataset:
    """Return the packed rows that a way reads in an epoch."""
    return corpus.packed_again[epoch - 1] if way == "packed, new rows" and epoch else corpus.packed


def number_of_steps(corpus: Corpus, way: str, epoch: int) -> int:
    """Optimizer steps of an epoch."""
    if way in ("padded", "flattened"):
        return -(-len(corpus.training) // corpus.documents)
    rows = corpus.documents if way == "packed, fewer steps" else corpus.rows
    return -(-len(packed_for(corpus, way, epoch)) // rows)


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
    total = sum(number_of_steps(corpus, way, epoch) for epoch in range(epochs))
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
@click.option("--texts", type=click.Path(exists=True, path_type=Path), help="JSON lines [default: Python functions].")
@click.option("--between", nargs=2, type=int, help="Shortest and longest document, in bytes [default: all].")
@click.option("--max-len", default=512, show_default=True, help="Bytes of a row.")
@click.option("--rows", default=6, show_default=True, help="Packed rows of an optimizer step.")
@click.option("--epochs", default=1, show_default=True)
@click.option("--repack", is_flag=True, help="Compare one packing with another packing in each epoch.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--width", default=96, show_default=True, help="Hidden size of the model.")
@click.option("--learning-rate", default=2e-3, show_default=True)
@click.option("--processes", default=os.cpu_count(), help="Runs at a time, a thread each [default: a core each].")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder for convergence.json and .svg, or repacked.json."
)
def main(
    documents: int,
    held_out: int,
    texts: Path | None,
    between: tuple[int, int] | None,
    max_len: int,
    rows: int,
    epochs: int,
    repack: bool,
    seeds: int,
    width: int,
    learning_rate: float,
    processes: int,
    output: Path | None,
) -> None:
    everything = read_documents(texts) if texts else functions(max_len)
    least, most = between or (1, max_len)
    drawn = draw_documents([each for each in everything if least <= len(each) <= most], documents, held_out)
    with tempfile.TemporaryDirectory(prefix="bench-convergence-") as name, pool(processes) as workers:
        folders = [Path(name) / str(seed) for seed in range(seeds)]
        packings = epochs if repack else 1
        corpora = [
            make_corpus(folder, *drawn, max_len=max_len, rows=rows, seed=seed, packings=packings)
            for seed, folder in enumerate(folders)
        ]
        versions = {name: installed(name) for name in ("numpy", "torch", "transformers")}
        setting = (
            f"{len(drawn[0]):,} documents, {sum(map(len, drawn[0])):,} bytes, {len(corpora[0].packed):,} rows of "
            f"{max_len}; {corpora[0].documents} documents or {rows} rows a step; {epochs} epochs, {seeds} seeds, "
            f"{small_llama(0, width).num_parameters():,} weights, learning rate {learning_rate}"
        )
        print(f"Python {platform.python_version()}, " + ", ".join(map(" ".join, versions.items())))
        print(setting, flush=True)
        options = {"epochs": epochs, "learning_rate": learning_rate, "width": width}
        if repack:
            found = compare_packings(workers, corpora, options)
        else:
            found = compare_ways(workers, corpora, options, output)
    if output:
        output.mkdir(parents=True, exist_ok=True)
        result = {"setting": setting, "versions": versions, **found}
        (output / ("repacked.json" if repack else "convergence.json")).write_text(json.dumps(result, indent=2) + "\n")


def run_all(workers: Executor, corpora: list[Corpus], ways: tuple[str, ...], options: dict[str, Any]) -> list[Run]:
    """Train every way with every seed."""
    running = [
        workers.submit(train, corpus, way, seed=seed, **options) for seed, corpus in enumerate(corpora) for way in ways
    ]
    runs = []
    for future in running:
        runs.append(future.result())
        print(f"  seed {runs[-1].seed}, {runs[-1].way:22} held out {runs[-1].held_out[-1][1]:.4f}", flush=True)
    return runs


def compare_packings(workers: Executor, corpora: list[Corpus], options: dict[str, Any]) -> dict[str, Any]:
    """Train on one packing and on several; print and return how losses differ."""
    train_on, first = corpora[0].training, corpora[0]
    counts = np.bincount(np.concatenate(train_on), minlength=VOCABULARY) + 1
    held_out = np.concatenate([document[1:] for document in first.held_out])  # the first token is never predicted
    by_frequency = -np.log(counts / counts.sum())[held_out].mean()
    again = [meetings(packed) for packed in (first.packed, *first.packed_again)]
    shared = len(again[0] & again[1]) / max(len(again[0]), 1) if len(again) > 1 else 1.0
    print(f"{shared:.1%} of the pairs of documents that share a row do so in the next packing, too; "
          f"frequencies of bytes alone: loss {by_frequency:.4f}", flush=True)  # fmt: skip
    runs = run_all(workers, corpora, WAYS_REPACKED, options | {"evaluations": options["epochs"]})
    return {"pairs_that_meet_again": shared, "loss_of_frequencies": by_frequency, **print_repacked(runs)}


def meetings(packed: packer.PackedDataset) -> set[tuple[int, int]]:
    """Return the pairs of documents that share a row."""
    found = set()
    for row in packed:
        found.update(combinations(sorted(number for number in row["doc_ids"] if number >= 0), 2))
    return found


def compare_ways(
    workers: Executor, corpora: list[Corpus], options: dict[str, Any], output: Path | None
) -> dict[str, Any]:
    """Train padded, flattened and packed; print and return how losses differ, and draw the curves."""
    exact = [
        workers.submit(train, corpora[0], way, seed=0, dtype=torch.float64, stop=50, **options) for way in WAYS[:2]
    ]
    runs = run_all(workers, corpora, WAYS, options)
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
        draw(output / "convergence.svg", runs)
    return found


if __name__ == "__main__":
    main()
