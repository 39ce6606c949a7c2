"""Pack a tokenized dataset once, offline, into fixed-length rows with explicit document boundaries.

    packer.pack("dataset", max_len=4096)         pack a tokenized dataset; returns the manifest
    packer.pack("chats.jsonl", max_len=4096, tokenizer="Qwen/Qwen3-0.6B")        the same for text
    packer.load("dataset-packed-4096")           rows by number, memory-mapped
    packer.batches(dataset, rows=4)              batches for varlen attention: no document sees another
    packer.BatchSampler(dataset, ...)            the same for several ranks and workers, resumable
    packer.collate, packer.flatten               for a DataLoader: packed rows, or raw examples, to a batch
    packer.verify("dataset-packed-4096", ...)    a sentence for every fault
    packer.export("dataset-packed-4096", to=...) Parquet files with the columns of another trainer
    packer.attention.use(model)                  torch's own varlen attention for a Hugging Face model

The folders, in the order in which data passes them:

    options/     every option, declared once
    sources/     files and Hugging Face datasets -> documents
    text/        texts and chats -> tokens and labels
    plan/        documents -> segments and their histogram; patterns -> rows
    algorithms/  histogram -> patterns, and lower bounds
    gather/      kernels that copy tokens into rows
    shards/      the bytes on disk
    pipeline/    all of these in order
    loader/      rows -> training
    exporting/   rows -> the files of other trainers
    attention/   varlen attention, and a probe for leaks between documents

Importing this package imports no other; loading a packed dataset imports numpy and pyarrow only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from packer.errors import PackerError, SourceError, python_names
from packer.progress import Progress, silent

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from typing_extensions import Unpack

    from packer import attention
    from packer.exporting import Export
    from packer.loader import (
        BatchSampler,
        Imbalance,
        MaskedLM,
        PackedDataset,
        PackedSchedule,
        StaticShape,
        batches,
        causal_lm_loss,
        collate,
        flatten,
        load,
        masked_lm,
        masked_lm_loss,
        num_items_in_batch,
        packed_schedule,
        static_shape,
    )
    from packer.options import PackArguments, PackOptions
    from packer.options.choices import Compression, EngineName, ExportTarget
    from packer.shards.manifest import Manifest

__version__ = "0.1.0"

__all__ = [
    "BatchSampler",
    "Export",
    "Imbalance",
    "Manifest",
    "MaskedLM",
    "PackOptions",
    "PackedDataset",
    "PackedSchedule",
    "PackerError",
    "SourceError",
    "StaticShape",
    "attention",
    "batches",
    "causal_lm_loss",
    "collate",
    "export",
    "flatten",
    "load",
    "masked_lm",
    "masked_lm_loss",
    "num_items_in_batch",
    "pack",
    "packed_schedule",
    "static_shape",
    "verify",
]

_HOMES = {
    "BatchSampler": "packer.loader",
    "Export": "packer.exporting",
    "Imbalance": "packer.loader",
    "Manifest": "packer.shards.manifest",
    "MaskedLM": "packer.loader",
    "PackOptions": "packer.options",
    "PackedDataset": "packer.loader",
    "PackedSchedule": "packer.loader",
    "StaticShape": "packer.loader",
    "batches": "packer.loader",
    "causal_lm_loss": "packer.loader",
    "collate": "packer.loader",
    "flatten": "packer.loader",
    "load": "packer.loader",
    "masked_lm": "packer.loader",
    "masked_lm_loss": "packer.loader",
    "num_items_in_batch": "packer.loader",
    "packed_schedule": "packer.loader",
    "static_shape": "packer.loader",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `packer --help` stays fast."""
    if name == "attention":
        return import_module("packer.attention")
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def pack(
    source: str
    | Path
    | Dataset
    | DatasetDict
    | Sequence[str | Path]
    | Sequence[tuple[str | Path | Dataset | DatasetDict, float]],
    output: str | Path | None = None,
    *,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    engine: EngineName = "threads",
    ray_address: str | None = None,
    rank: int | None = None,
    ranks: int | str | None = None,
    rank_timeout: float = 30.0,
    progress: Progress = silent,
    **options: Unpack[PackArguments],
) -> Manifest:
    """Pack a dataset and return its manifest. The same call continues an interrupted one.

    Args:
        source: a file, folder, glob or Hub id, or a `datasets.Dataset` (a DatasetDict needs `split`). A list of files,
            folders and globs is one source, in this order. A mixture is a list of sources with weights: [("web", 0.7),
            ("code", 0.3)].
        output: folder to write; by default the name of the source with "-packed-MAX_LEN".
        workers: number of threads; by default the number of available cores. It does not change the bytes.
        sync: call fsync for every file and folder.
        overwrite: replace an existing output as soon as the new one is complete.
        engine: "threads", or "ray" for a Ray cluster with the same storage.
        ray_address: address of the cluster, or "auto" for the one that this machine belongs to; None starts one here.
        rank: number of this process, from 0, if several pack into the same folder. They need not be on one machine.
        ranks: number of these processes, or "env": both numbers as torchrun, Slurm or SkyPilot set them.
        rank_timeout: seconds without a sign of life after which other ranks take over.
        progress: callback, called as `progress(stage, done, total)`.
        options: `max_len`, the number of tokens in a row, and any other option of `packer pack`, under the same name.
            `help(packer.PackOptions)` and docs/reference/commands.md list them.

    Raises:
        PackerError: an error that the user can mend, in one line: the value, the limit and the remedy.
        TypeError: there is no option of that name, or `max_len` is missing.
    """
    from packer.options import options_of, pack_options
    from packer.options.command_options import EngineOptions
    from packer.pipeline import pack as run
    from packer.pipeline.read_documents import split_weights

    with python_names():
        sources, weights = split_weights(source)
        engine_options = EngineOptions(
            engine=engine,
            ray_address=ray_address,
            rank=rank,
            ranks=None if ranks is None else str(ranks),
            rank_timeout=rank_timeout,
        )
        others = ("output", "workers", "sync", "overwrite", *options_of(EngineOptions), "progress")
        made = pack_options(options, weights=weights, others=others)
        result = run(
            sources,
            output,
            options=made,
            workers=workers,
            sync=sync,
            overwrite=overwrite,
            engine_options=engine_options,
            progress=progress,
        )
        return result.manifest


def verify(
    packed: str | Path,
    source: str | Path | Dataset | DatasetDict | Sequence[str | Path | Dataset | DatasetDict] | None = None,
    *,
    tokenizer: str | None = None,
    workers: int | None = None,
    engine: EngineName = "threads",
    ray_address: str | None = None,
    progress: Progress = silent,
) -> Iterator[str]:
    """Check a packed dataset and yield a sentence for every fault; nothing is yielded if it is verified.

    Without `source`, this checks hashes, structure and the totals of the manifest. With it, every token that should be
    in the rows is also compared with the source, together with its label and its place.

    Args:
        packed: folder of the packed dataset.
        source: source that was packed, or a list of all sources of a mixture, in order. Text is tokenized again.
        tokenizer: path or Hub id of the tokenizer, if its name in the manifest is not enough to find it.
        workers: number of shards that are checked at a time; by default the number of available cores.
        engine: "threads", or "ray" to have the shards checked by a Ray cluster with the same storage.
        ray_address: address of the cluster, or "auto" for the one that this machine belongs to; None starts one here.
        progress: callback, called as `progress(stage, done, total)`.

    Raises:
        PackerError: the packed dataset or the source cannot be read.
    """
    from packer.pipeline import verify as run

    with python_names():
        yield from run(
            packed,
            source,
            tokenizer=tokenizer,
            workers=workers,
            engine=engine,
            ray_address=ray_address,
            progress=progress,
        )


def export(
    packed: str | Path,
    output: str | Path | None = None,
    *,
    to: ExportTarget,
    compression: Compression = "zstd",
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Export:
    """Write a packed dataset as Parquet files with the columns of another trainer, one file for each shard.

    Args:
        packed: folder of the packed dataset.
        output: folder to write; by default the name of the packed dataset with "-TO".
        to: trainer whose columns are written.
        compression: compression of the Parquet files.
        workers: number of files written at a time; by default the number of available cores. It does not change the
            bytes.
        sync: call fsync for every file and folder.
        overwrite: replace an existing export as soon as the new one is complete.
        progress: callback, called as `progress("export", done, total)`, in tokens.

    Raises:
        PackerError: an error that the user can mend, in one line.
    """
    from packer.exporting import export as run

    record, _ = run(
        packed,
        output,
        to=to,
        compression=compression,
        workers=workers,
        sync=sync,
        overwrite=overwrite,
        progress=progress,
    )
    return record
