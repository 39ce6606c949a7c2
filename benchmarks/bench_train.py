"""Real tokens per second of a training step: padded, grouped by length, flattened, wrapped and packed.

    python benchmarks/bench_train.py --lengths lengths.npy                  # a GPU: 1B weights, bfloat16, max_len 4096
    python benchmarks/bench_train.py --lengths lengths.npy --curve curve.csv
    CUDA_VISIBLE_DEVICES= python benchmarks/bench_train.py                  # a CPU: a tiny model, to see that it runs

Documents have the lengths of a .npy file (or log-normal ones), cut at max_len, and random tokens of a Zipf
distribution. All ways train one Llama with random weights, in batches that need the same memory at worst: `--rows`
documents up to max_len long, or as many rows. An optimizer step takes about as many documents in every way.

    padded                       documents as they come, padded to the batch's longest; attention is causal, no mask
    grouped by length            the same, of documents that are close in length within 50 batches
    DataCollatorWithFlattening   documents as they come, flattened by transformers
    wrapped                      all documents in one, cut into full rows, without boundaries: documents see each other
    packed                       packed rows in a DataLoader with packer.collate
    padding-free bound           batches of rows * max_len real tokens with boundaries, made beforehand, on the device

Flattened and packed batches run on packer.attention (torch's varlen kernel on a GPU), the others on SDPA. Data are
loaded in this process; "loading" is the share of a step in which it waits for batches and sends them off, which
workers would hide. Rounds are taken in turn, A B C A B C, after one that is thrown away; ratios are taken round by
round. On a CPU, where small batches stay in its caches, they may pass the bound of full ones. The curve is of further
runs, each from the same weights: random tokens teach their frequencies and no more.
"""

from __future__ import annotations

import csv
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch

import packer

sys.path.insert(0, str(Path(__file__).parent))
from bench_pack import installed
from train_ways import NO_LOSS, Batch, Way, make_documents, make_ways, move, pack, read_lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A round of one way."""

    tokens_per_second: float
    loading: float
    """Share of the time."""

    gigabytes: float
    """Peak of what torch allocated on a GPU; 0 on a CPU, where it is not measured."""

    slots: float
    """Tokens of a batch that the model computes, padding included."""


def make_model(device: torch.device, vocabulary: int, max_len: int) -> Any:
    """A Llama of 1.1 billion weights in bfloat16 on a GPU, of 0.3 million in float32 on a CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = (2048, 8192, 16, 32) if device.type == "cuda" else (64, 256, 2, 4)
    shape = dict(zip(names, sizes, strict=True))
    torch.manual_seed(0)
    heads = shape["num_attention_heads"] // 4
    config = LlamaConfig(
        vocab_size=vocabulary, num_key_value_heads=heads, max_position_embeddings=max_len, pad_token_id=0, **shape
    )
    return LlamaForCausalLM(config).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32).train()


def optimizer_step(model: Any, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> float:
    """One step over these batches, its loss the mean over all their tokens."""
    items = packer.num_items_in_batch(batches)
    total = torch.zeros((), device=model.device)
    for batch in batches:
        loss = model(**batch, num_items_in_batch=items).loss
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total.item()  # waits for the device


def measure(model: Any, optimizer: torch.optim.Optimizer, way: Way, batches: Iterator[Batch], steps: int) -> Measured:
    """Time some optimizer steps."""
    cuda = model.device.type == "cuda"
    attend(model, way)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    real, slots, loading = 0, 0, 0.0
    begun = time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        step = list(islice(batches, way.per_step))
        moved = [move(batch, model.device) for batch in step]
        loading += time.perf_counter() - asked
        optimizer_step(model, optimizer, moved)
        real += sum(int((batch["labels"] != NO_LOSS).sum()) + first_tokens(batch) for batch in step)
        slots += sum(batch["input_ids"].numel() for batch in step)
    seconds = time.perf_counter() - begun
    return Measured(
        tokens_per_second=real / seconds,
        loading=loading / seconds,
        gigabytes=torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0,
        slots=slots / steps / way.per_step,
    )


def first_tokens(batch: Batch) -> int:
    """Tokens that are real though they have no label: the first of every document, or of a row."""
    return len(batch["cu_seq_lens_q"]) - 1 if "cu_seq_lens_q" in batch else len(batch["input_ids"])


def attend(model: Any, way: Way) -> None:
    if way.segments:
        packer.attention.use(model)
    else:
        model.set_attn_implementation("sdpa")


def make_optimizer(model: Any, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=model.device.type == "cuda")


def write_curve(path: Path, ways: dict[str, Way], documents: int, tokens: int, make: Callable[[], Any]) -> None:
    """Train every way on as many tokens as these documents have, from the same weights."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["way", "step", "documents", "loss"])
        for name, way in ways.items():
            if name == "padding-free bound":
                continue
            model = make()
            attend(model, way)
            optimizer, batches, seen, step = make_optimizer(model, 1e-3), way.batches(), 0, 0
            while seen < tokens:
                batch = list(islice(batches, way.per_step))
                seen += sum(int((one["labels"] != NO_LOSS).sum()) + first_tokens(one) for one in batch)
                step += 1
                loss = optimizer_step(model, optimizer, [move(one, model.device) for one in batch])
                writer.writerow([name, step, round(seen / tokens * documents), f"{loss:.5f}"])


def measure_all(model: Any, ways: dict[str, Way], *, steps: int, runs: int) -> dict[str, list[Measured]]:
    """All ways in turn, after a round that is thrown away."""
    optimizer = make_optimizer(model, 1e-4)
    streams = {name: way.batches() for name, way in ways.items()}
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for turn in range(runs + 1):
        for name, way in ways.items():
            measured = measure(model, optimizer, way, streams[name], steps)
            if turn:
                found[name].append(measured)
    return found


def report(ways: dict[str, Way], found: dict[str, list[Measured]]) -> None:
    """Print the table."""
    print(f"{'':26} {'batches':>8} {'tokens':>8} {'real':>9} {'x':>7} {'% of':>7} {'load-':>6} {'peak':>6}")
    print(f"{'':26} {'a step':>8} {'a batch':>8} {'tokens/s':>9} {'padded':>7} {'bound':>7} {'ing %':>6} {'GB':>6}")
    for name, rounds in found.items():
        speeds = [one.tokens_per_second for one in rounds]
        padded, bound = (
            statistics.median(own / other.tokens_per_second for own, other in zip(speeds, found[peer], strict=True))
            for peer in ("padded", "padding-free bound")
        )
        loading, gigabytes, slots = (
            statistics.median(getattr(one, figure) for one in rounds) for figure in ("loading", "gigabytes", "slots")
        )
        print(f"{name:26} {ways[name].per_step:8} {slots:8,.0f} {statistics.median(speeds):9,.0f} {padded:7.2f} "
              f"{100 * bound:7.1f} {100 * loading:6.1f} {f'{gigabytes:.1f}' if gigabytes else '-':>6}")  # fmt: skip


@click.command()
@click.option("--lengths", type=click.Path(path_type=Path, exists=True), help="Document lengths, a .npy file.")
@click.option("--documents", type=int, help="How many of them [default: 20,000; on a CPU 400].")
@click.option("--max-len", type=int, help="Tokens of a row [default: 4096; on a CPU 512].")
@click.option("--rows", type=int, help="Packed rows of a batch [default: 4; on a CPU 2].")
@click.option("--batch", "size", type=int, help="Documents of a batch of the other ways [default: as many].")
@click.option("--threads", default=1, show_default=True, help="Of torch on a CPU; for a tiny model, one is fastest.")
@click.option("--steps", default=5, show_default=True, help="Optimizer steps of a round.")
@click.option("--runs", default=5, show_default=True, help="Rounds that count.")
@click.option("--curve", type=click.Path(path_type=Path), help="Write the loss over documents seen, a .csv file.")
def main(
    lengths: Path | None,
    documents: int | None,
    max_len: int | None,
    rows: int | None,
    size: int | None,
    threads: int,
    steps: int,
    runs: int,
    curve: Path | None,
) -> None:
    if not installed("transformers"):
        raise SystemExit("transformers is not installed: the model is one of its own, so nothing can be measured")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tiny = device.type == "cpu"
    torch.set_num_threads(threads)
    max_len, rows = max_len or (512 if tiny else 4096), rows or (2 if tiny else 4)
    vocabulary = 1000 if tiny else 32_000
    drawn = read_lengths(lengths, documents or (400 if tiny else 20_000), max_len)
    texts = make_documents(drawn, vocabulary)
    make = partial(make_model, device, vocabulary, max_len)
    with tempfile.TemporaryDirectory(prefix="bench-train-") as folder:
        packed = pack(texts, Path(folder), max_len)
        ways = make_ways(texts, packed, rows=rows, size=size or rows, device=device)
        model = make()
        versions = ", ".join(f"{name} {installed(name)}" for name in ("numpy", "pyarrow", "torch", "transformers"))
        where = (
            torch.cuda.get_device_name() if not tiny else f"no GPU: a tiny model on {torch.get_num_threads()} threads"
        )
        print(f"{where}, Python {platform.python_version()}, {versions}")
        print(f"{len(texts):,} documents of {drawn.mean():.0f} tokens on average, {drawn.max():,} at most; "
              f"{model.num_parameters():,} weights, {model.dtype}")  # fmt: skip
        print(f"{len(packed):,} rows of {max_len}; {rows} rows or {size or rows} documents a batch; "
              f"median of {runs} rounds of {steps} optimizer steps\n", flush=True)  # fmt: skip
        report(ways, measure_all(model, ways, steps=steps, runs=runs))
        del model
        if curve:
            write_curve(curve, ways, len(texts), int(drawn.sum()), make)


if __name__ == "__main__":
    main()
