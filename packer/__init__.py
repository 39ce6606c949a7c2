"""Pack a tokenized dataset once, offline, into fixed-length rows with explicit document boundaries.

    packer.pack("dataset", max_len=4096)         pack a tokenized dataset; returns the manifest
    packer.pack("chats.jsonl", max_len=4096, tokenizer="Qwen/Qwen3-0.6B")        the same for text
    packer.load("dataset-packed-4096")           rows by number, memory-mapped
    packer.batches(dataset, rows=4)              batches for varlen attention: no document sees another
    packer.BatchSampler(dataset, ...)            the same for several ranks and workers, resumable
    packer.collate, packer.flatten               make a batch of packed rows, or of raw examples, for a DataLoader
    packer.rows("lengths-packed-4096")           documents of each row, for trainers that make their own examples
    packer.stats("dataset")                      padding before and after packing; report="page.html" writes a report
    packer.tokenize("chats.jsonl", ...)          tokens on disk, to pack several times
    packer.show("dataset-packed-4096")           the segments of a row, as text with a tokenizer
    packer.verify("dataset-packed-4096", ...)    a list of faults; the list is true if it is empty
    packer.export("dataset-packed-4096", to=...) Parquet files with the columns of another trainer
    packer.attention.use(model)                  torch's own varlen attention for a Hugging Face model
    packer.trainers.trl(packed, args)            arguments of SFTTrainer; `hf` for the Hugging Face Trainer
    packer.probe(step)                           which documents leak into others in a training step, with any trainer
    packer.check(model)                          the same for each attention implementation of a Hugging Face model

Importing `packer` imports no other package. Loading a packed dataset imports only numpy and pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# isort: off
# `X as X` tells type checkers that a name is public.
from packer.errors import PackerError as PackerError, SourceError as SourceError

if TYPE_CHECKING:
    from packer import attention as attention, trainers as trainers
    from packer.api import export as export, pack as pack, stats as stats, tokenize as tokenize
    from packer.exporting.write_export import Export as Export
    from packer.isolation.check_model import Verdict as Verdict, check as check
    from packer.isolation.probe_step import StepLeaks as StepLeaks, probe as probe
    from packer.loader.batch_formats import MaskedLM as MaskedLM, masked_lm as masked_lm
    from packer.loader.batch_sampler import BatchSampler as BatchSampler
    from packer.loader.dataset import PackedDataset as PackedDataset
    from packer.loader.load import DocumentRows as DocumentRows, load as load, rows as rows
    from packer.loader.row_tokens import StaticShape as StaticShape
    from packer.loader.training_loop import (
        PackedSchedule as PackedSchedule,
        batches as batches,
        causal_lm_loss as causal_lm_loss,
        collate as collate,
        flatten as flatten,
        masked_lm_loss as masked_lm_loss,
        num_items_in_batch as num_items_in_batch,
        packed_schedule as packed_schedule,
        static_shape as static_shape,
    )
    from packer.options import PackOptions as PackOptions
    from packer.pipeline.row_contents import RowContents as RowContents, show as show
    from packer.pipeline.tokenizing import TokenizeReport as TokenizeReport
    from packer.pipeline.verifying import Verification as Verification, verify as verify
    from packer.report.figures import Comparison as Comparison, Figures as Figures
    from packer.shards.manifest import Manifest as Manifest

__version__ = "0.1.0"

_HOMES = {
    "attention": (),
    "isolation.check_model": ("Verdict", "check"),
    "isolation.probe_step": ("StepLeaks", "probe"),
    "trainers": (),
    "exporting.write_export": ("Export",),
    "api": ("export", "pack", "stats", "tokenize"),
    "loader.training_loop": (
        "PackedSchedule",
        "batches",
        "causal_lm_loss",
        "collate",
        "flatten",
        "masked_lm_loss",
        "num_items_in_batch",
        "packed_schedule",
        "static_shape",
    ),
    "loader.batch_formats": ("MaskedLM", "masked_lm"),
    "loader.dataset": ("PackedDataset",),
    "loader.load": ("DocumentRows", "load", "rows"),
    "loader.batch_sampler": ("BatchSampler",),
    "loader.row_tokens": ("StaticShape",),
    "options": ("PackOptions",),
    "pipeline.row_contents": ("RowContents", "show"),
    "pipeline.tokenizing": ("TokenizeReport",),
    "pipeline.verifying": ("Verification", "verify"),
    "report.figures": ("Comparison", "Figures"),
    "shards.manifest": ("Manifest",),
}
"""Public names by the module that defines them. A module without names is itself public."""

__all__ = sorted([*(name for home, names in _HOMES.items() for name in names or [home]), "PackerError", "SourceError"])


def __getattr__(name: str) -> object:
    """Import a module when one of its names is first used, because most users need only part of the package."""
    for module, names in _HOMES.items():
        if name in names or (not names and name == module):
            home = import_module(f"{__name__}.{module}")
            globals()[name] = found = getattr(home, name) if names else home
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
