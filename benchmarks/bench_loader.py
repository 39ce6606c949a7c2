"""Tokens per second of one process from packed rows to a batch of tensors, against DataCollatorWithFlattening.

    python benchmarks/bench_loader.py --runs 5
    python benchmarks/bench_loader.py --lengths lengths.npy --max-len 2048 --rows 8

The corpus is made: random tokens in documents of log-normal lengths (or the lengths of --lengths, repeated), with
labels; it is packed once. packer reads the shards in shuffled order, `rows` rows a batch, in every format; for encoders
it is packed again, in rows of 512 with at most 3 segments, and as many tokens are in a batch. The peer
reads the same documents, saved by datasets.save_to_disk, through a shuffling DataLoader with transformers'
DataCollatorWithFlattening and as many documents a batch as those rows hold on average: the same T, the same keys. Both
run in this process without workers, on files in the page cache. Rounds are taken in turn, A B C A B C, after one that
is thrown away; a round of the peer is --peer-batches batches, of packer an epoch. Ratios are taken round by round.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import click
import torch

import packer
from packer.loader.batch_formats import FORMATS

sys.path.insert(0, str(Path(__file__).parent))
from bench_pack import installed
from corpora import make_corpus

VOCABULARY = 150_000  # of make_corpus


def tokens_per_second(batches: Iterable[dict[str, torch.Tensor]], limit: int | None = None) -> float:
    """Wall time of batches in the keys of Hugging Face models, one after the other."""
    tokens = 0
    begun = time.perf_counter()
    for number, batch in enumerate(batches, 1):
        tokens += batch["input_ids"].shape[1]
        if number == limit:
            break
    return tokens / (time.perf_counter() - begun)


def packed_epoch(packed: packer.PackedDataset, *, rows: int, format: str, epoch: int, masks: bool = False) -> float:
    """Wall time of an epoch in one format, in real tokens per second."""
    mlm = packer.MaskedLM(mask_id=3, vocab_size=VOCABULARY, special_ids=[0, 1, 2]) if masks else None
    begun = time.perf_counter()
    for _ in packer.batches(packed, rows=rows, seed=0, epoch=epoch, format=format, mlm=mlm):
        pass
    return packed.manifest.totals.tokens_packed / (time.perf_counter() - begun)


@click.command()
@click.option("--gigabytes", default=0.4, show_default=True, help="Size of the corpus: input_ids and labels.")
@click.option("--max-len", default=4096, show_default=True)
@click.option("--rows", default=4, show_default=True, help="Rows of a batch.")
@click.option("--lengths", type=click.Path(path_type=Path, exists=True), help="Document lengths, a .npy file.")
@click.option("--runs", default=5, show_default=True, help="Rounds that count.")
@click.option("--peer-batches", default=100, show_default=True, help="Batches of the peer in a round.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(
    gigabytes: float, max_len: int, rows: int, lengths: Path | None, runs: int, peer_batches: int, folder: Path | None
) -> None:
    import datasets
    import transformers

    with tempfile.TemporaryDirectory(prefix="bench-loader-", dir=folder) as name:
        work = Path(name)
        make_corpus(work / "corpus", int(gigabytes * 1e9 / 8), max_len, lengths_file=lengths)
        manifest = packer.pack(work / "corpus", work / "packed", max_len=max_len, sync=False)
        packed = packer.load(work / "packed")
        documents = packer.packed_schedule(packed, batch_size=1).packing_factor * rows

        source = datasets.load_from_disk(str(work / "corpus"))
        collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
        peer = torch.utils.data.DataLoader(source, batch_size=round(documents), shuffle=True, collate_fn=collator)
        raw = torch.utils.data.DataLoader(
            source.with_format("numpy"), batch_size=round(documents), shuffle=True, collate_fn=packer.flatten
        )
        sampler = packer.BatchSampler(packed, global_batch=rows)
        loader = torch.utils.data.DataLoader(packed, batch_sampler=sampler, collate_fn=packer.collate)

        ways: dict[str, Callable[[int], float]] = {
            "DataCollatorWithFlattening": lambda turn: tokens_per_second(peer, peer_batches),
            "packer.flatten, same DataLoader": lambda turn: tokens_per_second(raw, peer_batches),
            "packer.batches": lambda turn: tokens_per_second(packer.batches(packed, rows=rows, epoch=turn)),
            "packer.collate, DataLoader": lambda turn: tokens_per_second(loader),
        }
        packer.pack(work / "corpus", work / "short", max_len=512, max_segments=3, sync=False)
        short, short_rows = packer.load(work / "short"), rows * max_len // 512
        for format, masks in product(("hf", "encoder"), (False, True)):
            name = f"{format}, {'tokens masked' if masks else 'no masks'}"
            ways[f"rows of 512, {name}"] = lambda turn, format=format, masks=masks: packed_epoch(
                short, rows=short_rows, format=format, epoch=turn, masks=masks
            )
        for format in FORMATS:
            if format not in ("hf", "encoder"):
                ways[f"packer.batches, {format}"] = lambda turn, format=format: packed_epoch(
                    packed, rows=rows, format=format, epoch=turn
                )
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(runs + 1):
            for name, way in ways.items():
                speed = way(turn)
                if turn:
                    found[name].append(speed)

        versions = " ".join(f"{name} {installed(name)}" for name in ("numpy", "pyarrow", "torch", "transformers"))
        print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
              f"Python {platform.python_version()}, {versions}")  # fmt: skip
        print(f"{manifest.totals.tokens_packed:,} tokens, {manifest.rows:,} rows of {max_len}, {rows} rows or "
              f"{documents:.0f} documents a batch, one process, median of {runs} rounds\n")  # fmt: skip
        print(f"{'':40} {'M tokens/s':>11} {'least':>7} {'most':>7} {'x peer':>7}")
        for name, speeds in found.items():
            ratios = [own / other for own, other in zip(speeds, found["DataCollatorWithFlattening"], strict=True)]
            million = [speed / 1e6 for speed in speeds]
            print(f"{name:40} {statistics.median(million):11.1f} {min(million):7.1f} {max(million):7.1f} "
                  f"{statistics.median(ratios):7.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
