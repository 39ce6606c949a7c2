"""Pack a tokenized dataset once, offline, into fixed-length rows with explicit document boundaries.

    packer.pack("dataset", max_len=4096)         tokenized dataset -> dataset-packed-4096/; returns the manifest
    packer.pack("chats.jsonl", max_len=4096, tokenizer="Qwen/Qwen3-0.6B")        the same from text
    packer.load("dataset-packed-4096")           rows by number, memory-mapped
    packer.batches(dataset, rows=4)              batches for varlen attention: no document sees another
    packer.BatchSampler(dataset, ...)            the same over ranks and workers, with a state
    packer.collate, packer.flatten               for a DataLoader: rows, or raw examples, to a batch
    packer.verify("dataset-packed-4096", ...)    what is wrong with it: nothing
    packer.export("dataset-packed-4096", to=...) Parquet with the columns of another trainer
    packer.attention.use(model)                  torch's own varlen attention for a Hugging Face model

The way of the data, and where each stretch of it lives:

    sources/     files and Hugging Face datasets -> documents
    text/        texts and chats -> tokens and labels
    plan/        documents -> segments, histogram; patterns -> which segment goes to which row
    algorithms/  histogram -> patterns, and lower bounds
    gather/      tokens -> rows, at memcpy speed
    shards/      the bytes on disk
    pipeline/    all of these in order
    loader/      rows -> training
    exporting/   rows -> the files of other trainers
    attention/   the training step: varlen attention, and a probe for leaks

Importing this package imports nothing; loading a packed dataset imports numpy and pyarrow alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packer.errors import PackerError, SourceError, python_names
from packer.progress import Progress, silent

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

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
    from packer.shards.manifest import Manifest

__version__ = "0.1.0"

__all__ = [
    "BatchSampler",
    "Export",
    "Imbalance",
    "Manifest",
    "MaskedLM",
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
    """Import a public name when it is first asked for: `packer --help` needs none of them."""
    if name == "attention":
        return import_module("packer.attention")
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def pack(
    source: str | Path | Dataset | DatasetDict | Sequence[tuple[str | Path | Dataset | DatasetDict, float]],
    output: str | Path | None = None,
    *,
    max_len: int,
    algorithm: str = "auto",
    max_segments: int | None = None,
    gap: float | None = None,
    time_limit: float | None = None,
    long: Literal["split", "truncate", "drop", "error"] = "split",
    overlap: int = 0,
    split_at: Literal["tokens", "turns"] = "tokens",
    truncate_side: Literal["left", "right"] = "right",
    align: int = 1,
    untrained: Literal["keep", "drop", "error"] = "keep",
    seed: int = 0,
    pad_id: int | None = None,
    labels: bool = True,
    position_ids: bool = False,
    shard_size: int | str = "512MB",
    split: str | None = None,
    input_column: str = "input_ids",
    labels_column: str = "labels",
    keep: Sequence[str] = (),
    keep_tokens: Sequence[str] = (),
    tokenizer: str | None = None,
    text_column: str | None = None,
    train_on: Literal["all", "completion", "assistant"] | None = None,
    chat_template: str | None = None,
    eos: bool = True,
    group_by: str | None = None,
    group_mode: Literal["together", "apart"] = "together",
    pairs: bool = False,
    mix_unit: Literal["tokens", "epochs"] = "tokens",
    mix_tokens: int | None = None,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Manifest:
    """Pack a dataset; return the manifest. The same call resumes what was interrupted.

    Args:
        source: a file, folder, glob or Hub id, or a `datasets.Dataset` (a DatasetDict needs `split`); or a mixture of
            them, a list of pairs with weights: [("web", 0.7), ("code", 0.3)]. Where some of these have labels, every
            token of the others is trained.
        output: folder to write; by default the source's name with "-packed-MAX_LEN".
        max_len: tokens of a row.
        algorithm: how documents share rows; `packer pack --help` lists the names.
        max_segments: the most documents in a row; None for no limit.
        gap: rows above the lower bound, as a share of it, at which `optimal` stops.
        time_limit: seconds after which `optimal` stops with the best so far; the rows then depend on the machine.
        long: what happens to documents longer than max_len.
        overlap: tokens of the piece before that each piece of a split document begins with; they are not trained twice.
        split_at: where documents are split: anywhere, or between turns only, by the column "turn_starts" or, of chats
            with a tokenizer, where the template's renderings of the messages end.
        truncate_side: the side of a truncated document that goes.
        align: every segment is padded to a multiple of it, which divides max_len.
        untrained: what happens to segments of which nothing is trained.
        seed: another seed is another packing of as many rows.
        pad_id: token id of the padding; by default the tokenizer's, or end of sequence (also where `packer tokenize`
            wrote the source); 0 where there is none.
        labels: write the `labels` column; without it only `packer.load` is safe to train from.
        position_ids: write the `position_ids` column, for trainers that read the shards themselves.
        shard_size: bytes of a shard at most, or a size like "512MB".
        split: of a DatasetDict, a Hub dataset, or a folder of files like `train-0.parquet`.
        input_column: name of the column of tokens.
        labels_column: name of the column of labels, if there is one.
        keep: columns of the source that are kept, a value for each segment.
        keep_tokens: columns of lists that are kept, a value for each token.
        tokenizer: of a source of text: a folder, a tokenizer.json or a Hub id. In a mixture each source is read by its
            own columns, and one that has tokens is taken as it is.
        text_column: the column of text or messages, or two, joined by a comma: of the prompt and of the completion,
            which follow each other with nothing in between.
            Of a mixture: for the sources that have it.
        train_on: by default the assistant's turns of chats, completions of prompts, all of a text; messages with a
            `weight` of 0 or `train` false are context only. Of a mixture: for the sources that it fits.
        chat_template: a Jinja template in place of the tokenizer's own.
        eos: end texts and completions with the end-of-sequence token.
        group_by: column whose equal values make documents a group; null is no group.
        group_mode: rows of one group alone, or none with two documents of a group.
        pairs: rows of the source are preference pairs (`chosen_input_ids`, `rejected_input_ids`), never separated; the
            kept column `role` says which is which.
        mix_unit: what the weights of a mixture are: "tokens" for shares of its tokens, "epochs" for how often a source
            is seen (0.5 is a sample of half its tokens, 2 is everything twice).
        mix_tokens: tokens of the mixture; by default as many as there are without repeating a source.
        workers: shards written at a time; by default the cores this process may use. Does not change the bytes.
        sync: fsync every file and folder.
        overwrite: replace what is at `output`, at one stroke when the new dataset is whole.
        progress: called with (stage, done, total).

    Raises:
        PackerError: whatever the user can mend, in one line: the value, the limit and the remedy.
    """
    from packer.options import PackOptions, parse_size
    from packer.pipeline import pack as run
    from packer.pipeline.read_documents import split_weights

    with python_names():
        sources, weights = split_weights(source)
        options = PackOptions(
            max_len=max_len,
            algorithm=algorithm,
            max_segments=max_segments,
            gap=gap,
            time_limit=time_limit,
            long=long,
            overlap=overlap,
            split_at=split_at,
            truncate_side=truncate_side,
            align=align,
            untrained=untrained,
            seed=seed,
            pad_id=pad_id,
            labels=labels,
            position_ids=position_ids,
            shard_size=parse_size(shard_size) if isinstance(shard_size, str) else shard_size,
            split=split,
            input_column=input_column,
            labels_column=labels_column,
            keep=tuple(keep),
            keep_tokens=tuple(keep_tokens),
            tokenizer=tokenizer,
            text_column=text_column,
            train_on=train_on,
            chat_template=chat_template,
            eos=eos,
            group_by=group_by,
            group_mode=group_mode,
            pairs=pairs,
            weights=weights,
            mix_unit=mix_unit,
            mix_tokens=mix_tokens,
        )
        return run(
            sources, output, options=options, workers=workers, sync=sync, overwrite=overwrite, progress=progress
        ).manifest


def verify(
    packed: str | Path,
    source: str | Path | Dataset | DatasetDict | Sequence[str | Path | Dataset | DatasetDict] | None = None,
    *,
    tokenizer: str | None = None,
    progress: Progress = silent,
) -> Iterator[str]:
    """Yield what is wrong with a packed dataset, a sentence each; see `packer.pipeline.verify`."""
    from packer.pipeline import verify as run

    with python_names():
        yield from run(packed, source, tokenizer=tokenizer, progress=progress)


def export(
    packed: str | Path,
    output: str | Path | None = None,
    *,
    to: Literal["megatron", "maxtext", "torchtitan", "torchtune", "parquet"],
    compression: Literal["zstd", "snappy", "none"] = "zstd",
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Export:
    """Write a packed dataset as Parquet with the columns of another trainer; see `packer.exporting.export`."""
    from packer.exporting import export as run

    record, _ = run(
        packed, output, to=to, compression=compression, workers=workers, sync=sync, overwrite=overwrite,
        progress=progress,
    )  # fmt: skip
    return record
