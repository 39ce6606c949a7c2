"""Options that only commands have. Manifests do not record them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packer.exporting.targets import STEPS, TARGETS, as_target, as_trainer
from packer.options.option import GENERAL, OUTPUT, READING, Compression, option
from packer.options.pack_options import INT32


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOptions:
    """Declarations of the options. Each is a parameter of the functions of the commands that have it."""

    for_trainer: str | None = option(
        None,
        "Trainer of the rows: refuse options whose rows it cannot read, and print the lines of its configuration.",
        OUTPUT,
        choices=tuple(STEPS),
        convert=as_trainer,
        flags=("--for",),
        metavar="TRAINER",
        commands=("pack",),
    )
    to: str = option(
        ...,
        "Trainer that reads the files (see the list above); parquet keeps all columns unchanged.",
        OUTPUT,
        choices=tuple(TARGETS),
        convert=as_target,
        metavar="TRAINER",
        commands=("export",),
    )
    compression: Compression = option("zstd", "Compression of the Parquet pages.", OUTPUT, commands=("export",))
    eos_id: int | None = option(
        None,
        "Token that ends documents, for trainers that use it to find documents or padding.",
        OUTPUT,
        default_words="last token of the first document",
        most=INT32,
        commands=("export",),
    )
    batch_size: int = option(
        64, "Documents per optimizer step in training without packing.", GENERAL, least=1, commands=("stats",)
    )
    data_parallel: int | None = option(
        None,
        "Number of data-parallel ranks: show how long they wait for each other if each rank trains one row at a time.",
        GENERAL,
        least=1,
        commands=("stats",),
    )
    accumulation: int | None = option(
        None, "Rows per rank in an optimizer step.", GENERAL, least=1, default_words="1", commands=("stats",)
    )
    model: str | None = option(
        None,
        "Model to train: its number of weights, as in 70B, or its config (a folder, a config.json or a Hub id).",
        GENERAL,
        default_words="7B",
        commands=("stats",),
    )
    report: Path | None = option(
        None,
        "HTML file to write: a report with plots, which needs no network access.",
        OUTPUT,
        metavar="FILE.html",
        commands=("stats",),
    )
    attn: str | None = option(
        None,
        "Attention implementation that must be safe for the command to succeed.",
        GENERAL,
        default_words="any",
        commands=("check",),
    )
    position_offset: int = option(
        0,
        "Position of the first token of a document, as in packer.batches: 2 for RoBERTa.",
        GENERAL,
        commands=("check",),
    )
    document: str | None = option(
        None, "Show the segments of this document instead of a row.", GENERAL, metavar="ID", commands=("show",)
    )
    step: int | None = option(
        None, "Show the rows of this optimizer step on all ranks; the first is 1.", GENERAL, least=1, commands=("show",)
    )
    global_batch: str | None = option(
        None,
        "Rows per optimizer step, or a JSON file of the sampler's state, which has its other settings, too.",
        GENERAL,
        metavar="N_OR_STATE",
        commands=("show",),
    )
    seed: int = option(0, "Seed of the sampler.", GENERAL, most=2**64 - 1, commands=("show",))
    epoch: int | None = option(
        None, "Epoch in which --step is counted.", GENERAL, default_words="all epochs from 0 on", commands=("show",)
    )
    full: bool = option(False, "Show all tokens, with trained ones marked.", GENERAL, commands=("show",))
    sources: tuple[str, ...] = option(
        (),
        "Dataset that was packed. Repeat it, in order, for all paths of a source.",
        READING,
        flags=("--source",),
        metavar="DATASET",
        commands=("verify", "show"),
    )
    as_json: bool = option(
        False,
        "Print JSON instead of text.",
        GENERAL,
        flags=("--json",),
        commands=("pack", "stats", "tokenize", "verify", "show", "export", "check"),
    )
