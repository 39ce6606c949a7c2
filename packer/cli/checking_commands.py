"""The commands that check: verify, of a packed dataset, and check, of the attention of a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import click

from packer.cli.command import UserPath, command
from packer.cli.one_line_errors import NOT_RIGHT
from packer.cli.printing import echo, echo_json
from packer.cli.shared_options import AsJson, PackedSources
from packer.options import Option, ReadOptions, RunOptions, values_of
from packer.options.option import GENERAL
from packer.progress_bars import progress_bars
from packer.report.plain_text import render_table
from packer.stores import AnyPath

if TYPE_CHECKING:
    from packer.attention.isolation import Verdict
    from packer.attention.load_model import SmallModel


@command(
    ReadOptions,
    RunOptions,
    changes={
        "tokenizer": {"help": "Tokenizer of a --source of text, if its name in the manifest is not enough."},
        "workers": {"help": "Number of shards that are checked at a time."},
        "engine": {"help": "What checks the shards: threads of this machine, or a Ray cluster with the same storage."},
    },
    short_help="Check a packed dataset, also against its source.",
)
@click.argument("packed", type=UserPath())
def verify(
    packed: AnyPath, tokenizer: str | None, sources: PackedSources = (), as_json: AsJson = False, **values: object
) -> None:
    """Check the hashes, structure and figures of a PACKED dataset and, with --source, every token of the source.

    The exit code is 3 if anything is wrong.
    """
    from packer.output.job import Job
    from packer.pipeline.verifying import verify as verify_rows
    from packer.shards.file_names import holdout_of
    from packer.shards.manifest import is_packed
    from packer.shards.reader import read_manifest

    source = sources[0] if len(sources) == 1 else list(sources) or None
    with progress_bars() as progress:
        job = Job(progress=progress, **values_of(Job, values))
        faults = [*verify_rows(packed, source, tokenizer=tokenizer, job=job)]
        manifest = None if faults else read_manifest(packed)
    other, side = None, ""
    if manifest is not None and manifest.options.holdout is not None:
        side = "holdout_of" if manifest.options.is_holdout else "holdout"
        other = holdout_of(packed, is_holdout=manifest.options.is_holdout)
    if as_json:
        named = {} if other is None else {side: str(other)}
        echo_json({"packed": str(packed), "source": source, "faults": faults, **named})
    for fault in [] if as_json else faults:
        echo(f"packer: {packed}: {fault}", err=True)
    if faults:
        sys.exit(NOT_RIGHT)
    if manifest is not None and not as_json:
        scope = "hashes and structure" if source is None else "hashes, structure and every token of the source"
        tokens = manifest.totals.tokens_packed
        echo(f"{packed} is verified: {scope} ({manifest.rows:,} rows, {tokens:,} tokens)")
        if other is not None:
            words = "These documents are held out of" if side == "holdout_of" else "Documents that are held out are in"
            echo(f"{words} {other}{'' if is_packed(other) else ', which is not there'}")


Attention = Annotated[
    str | None,
    Option("Attention implementation that must be safe for the command to succeed.", GENERAL, default_words="any"),
]
PositionOffset = Annotated[
    int, Option("Position of the first token of a document, as in packer.batches: 2 for RoBERTa.", GENERAL)
]


@command(short_help="Show which attention implementations are safe for a model.")
@click.argument("model")
def check(model: str, attn: Attention = None, position_offset: PositionOffset = 0, as_json: AsJson = False) -> None:
    """Show which attention implementations keep packed documents of MODEL apart.

    MODEL is a folder with a config.json, such a file, or a Hub id. A small model of this kind with random weights is
    trained on a packed batch. When one document changes, no other may change, and logits, loss and gradients must match
    those of the documents alone. The exit code is 3 if no implementation is safe.
    """
    from transformers.utils import logging

    from packer.attention.isolation import installed_implementations, probe
    from packer.attention.load_model import load_small_model

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # the verdicts include what its warnings say
    opened = load_small_model(model)
    names = installed_implementations()
    asked_for = [*names, *([attn] if attn and attn not in names else [])]
    verdicts = probe(opened.model, asked_for, position_offset=position_offset, also_in_float32=True)
    content = {
        "model": model,
        "architecture": type(opened.model).__name__,
        "layers": opened.layers,
        "all_layers": opened.all_layers,
        "dtype": str(opened.model.dtype).removeprefix("torch."),
        "device": opened.model.device.type,
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    if as_json:
        echo_json(content)
    else:
        echo("\n".join(render_verdicts(opened, verdicts)))
    asked = [verdict for verdict in verdicts if attn in (None, verdict.implementation)]
    if not any(verdict.safe for verdict in asked):
        sys.exit(NOT_RIGHT)


def render_verdicts(probed: SmallModel, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a table of the verdicts, at least one, with a reason and a remedy for each that is not safe."""
    model = probed.model
    dtype = str(model.dtype).removeprefix("torch.")
    dtype += "" if dtype == "float32" else " and float32"
    layers = f"{probed.layers} of {probed.all_layers} layers, random weights"
    yield f"{type(model).__name__}: {layers}, {dtype} on {model.device.type}"
    table = [["attention", "verdict", "others moved", "logits", "loss", "gradients"]]
    for verdict in verdicts:
        measures = (verdict.moved, verdict.logits, verdict.loss, verdict.gradients)
        table.append([verdict.implementation, verdict.answer, *map(_measure, measures)])
    yield render_table(table, align="<<>>>>")
    yield "(others moved: when one document changes; the rest: packed against alone; all relative)"
    if thresholds := verdicts[0].thresholds:
        named = ", ".join(f"{name} {value:,}" for name, value in thresholds.items())
        yield f"(shown for batches of up to {min(thresholds.values()):,} tokens, not beyond {named})"
    yield f"(trees: {_trees(verdicts)})"
    for verdict in verdicts:
        if not verdict.safe:
            yield f"{verdict.implementation} {verdict.answer}: {verdict.reason}; {verdict.remedy}"


def _trees(verdicts: Sequence[Verdict]) -> str:
    """Return which implementations are safe for trees, or why none is."""
    safe = [verdict.implementation for verdict in verdicts if verdict.trees == "safe"]
    if "packer_varlen" in safe:
        return "safe with packer.attention.use(model)"
    reasons = {verdict.implementation: verdict.trees_reason for verdict in verdicts}
    why = reasons.get("packer_varlen") or next(iter(reasons.values()))
    return f"safe with a mask only, by {' or '.join(safe)}; {why}" if safe else f"not supported; {why}"


def _measure(value: float | None) -> str:
    """Format a relative difference: None -> -, 0.0 -> 0, 0.0123 -> 1.2e-02."""
    if value is None:
        return "-"
    return f"{value:.1e}" if value else "0"
