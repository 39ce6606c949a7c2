"""`packer check`: which attention implementations keep the documents of a packed row apart."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import click

from packer.cli.command import AsJson, command
from packer.cli.one_line_errors import NOT_RIGHT
from packer.options import Option
from packer.options.option import GENERAL

Attention = Annotated[
    str | None,
    Option(
        "Attention implementation that must be safe for the command to succeed.",
        GENERAL,
        metavar="NAME",
        default_words="any",
    ),
]
PositionOffset = Annotated[
    int,
    Option("Position of the first token of a document, as in packer.batches: 2 for RoBERTa.", GENERAL, metavar="N"),
]


@command(short_help="Show which attention implementations are safe for a model.")
@click.argument("model")
def check(model: str, attn: Attention = None, position_offset: PositionOffset = 0, as_json: AsJson = False) -> None:
    """Show which attention implementations keep packed documents of MODEL apart.

    MODEL is a folder with a config.json, such a file, or a Hub id. A small model of this kind with random weights is
    trained on a packed batch. When one document changes, no other may change, and logits, loss and gradients must match
    those of the documents alone. The exit code is 3 if no implementation is safe.
    """
    from packer.attention.implementations import installed_implementations
    from packer.attention.isolation import probe
    from packer.attention.load_model import load_small_model
    from packer.cli.run_summary import render_verdicts

    _silence_transformers()
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
    click.echo(json.dumps(content, indent=1) if as_json else render_verdicts(opened, verdicts))
    asked = [verdict for verdict in verdicts if attn in (None, verdict.implementation)]
    if not any(verdict.safe for verdict in asked):
        sys.exit(NOT_RIGHT)


def _silence_transformers() -> None:
    """Turn off the warnings of transformers about implementations: the verdicts include what they say."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
