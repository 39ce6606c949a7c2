"""Tokens, rows and time of training on every answer of chats: as documents of their own, and as trees.

    python benchmarks/bench_trees.py chats.jsonl --tokenizer qwen3 --chats 400 --max-len 2048

Both are packed with `--train-on each-answer`, the latter with `--share-prefixes`. A small Llama of random weights, in
float32, computes loss and gradients of all rows of both, in turn: attention by SDPA for each segment, and by SDPA with
a dense mask for trees, which computes all pairs of tokens of a row (FlexAttention, on a GPU, leaves blocks out). The
losses per trained token are compared. Token ids are taken modulo 4,096, so that the vocabulary does not outweigh
attention.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click

import packer

VOCABULARY = 1 << 12


def lines_of(path: Path, count: int) -> list[bytes]:
    """Return the first lines of a file of JSON lines, which may be compressed by zstd."""
    import pyarrow as pa

    with pa.input_stream(str(path), compression="zstd" if path.suffix == ".zst" else None) as file:
        lines: list[bytes] = file.read().splitlines()
    return lines[:count]


def small_model(hidden: int, layers: int) -> Any:
    """Return a Llama of random weights whose attention is packer's."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=1 << 16,
    )
    return packer.attention.use(transformers.LlamaForCausalLM(config))


def train(model: Any, dataset: Any, format: str) -> tuple[float, float, int]:
    """Compute loss and gradients of every row; return processor seconds, the sum of losses and trained tokens."""
    seconds, total, trained = 0.0, 0.0, 0
    for batch in packer.batches(dataset, rows=1, seed=None, format=format):
        batch["input_ids"] %= VOCABULARY
        batch["labels"][batch["labels"] >= 0] %= VOCABULARY
        start = time.process_time()
        loss = model(**batch, num_items_in_batch=1).loss
        loss.backward()
        seconds += time.process_time() - start
        model.zero_grad()
        total += float(loss.detach())
        trained += int((batch["labels"] >= 0).sum())
    return seconds, total, trained


@click.command(help=__doc__)
@click.argument("chats_file", type=Path)
@click.option("--tokenizer", required=True)
@click.option("--chats", default=400, help="Number of chats.")
@click.option("--max-len", default=2048)
@click.option("--hidden", default=128)
@click.option("--layers", default=2)
@click.option("--runs", default=3)
def main(chats_file: Path, tokenizer: str, chats: int, max_len: int, hidden: int, layers: int, runs: int) -> None:
    """Pack both ways, and train on both."""
    lines = lines_of(chats_file, chats)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "chats.jsonl"
        source.write_bytes(b"\n".join(lines))
        ways = {"documents": ("hf", False), "trees": ("tree", True)}
        datasets: dict[str, Any] = {}
        for way, (_, shares) in ways.items():
            options: Any = {"max_len": max_len, "tokenizer": tokenizer, "train_on": "each-answer"}
            packer.pack(source, Path(folder) / way, share_prefixes=shares, **options)
            datasets[way] = packer.load(Path(folder) / way)
        model = small_model(hidden, layers)
        measured: dict[str, list[tuple[float, float, int]]] = {way: [] for way in ways}
        for _ in range(runs):
            for way, (format, _) in ways.items():
                measured[way].append(train(model, datasets[way], format))
        click.echo(f"{len(lines):,} chats, rows of {max_len:,} tokens, a Llama of {layers} layers of {hidden}")
        for way, dataset in datasets.items():
            seconds = statistics.median(run[0] for run in measured[way])
            _, loss, trained = measured[way][0]
            click.echo(
                json.dumps(
                    {
                        "way": way,
                        "tokens": dataset.manifest.totals.tokens_packed,
                        "rows": len(dataset),
                        "trained": trained,
                        "loss": round(loss / trained, 6),
                        "cpu_seconds": round(seconds, 2),
                    }
                )
            )


if __name__ == "__main__":
    main()
