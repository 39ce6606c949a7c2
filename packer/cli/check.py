"""`packer check`: which attention keeps the documents of a packed row apart."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from packer.cli.shared import one_line_errors


@click.command()
@click.argument("model")
@click.option("--attn", metavar="NAME", help="Exit with 1 unless this attention implementation is safe.")
@click.option(
    "--position-offset",
    type=click.IntRange(min=0),
    default=0,
    help="Position of every document's first token, as in packer.batches: 2 for RoBERTa.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def check(model: str, attn: str | None, position_offset: int, as_json: bool, debug: bool) -> None:
    """Tell which attention implementations keep packed documents of MODEL apart.

    MODEL is a folder with a config.json, such a file, or a Hub id. A small model of its kind with random weights is
    trained on one packed batch: when one document changes no other may move, and logits, loss and gradients must be
    those of the documents alone. Exits with 1 when no implementation is safe.
    """
    with one_line_errors(debug=debug):
        from packer.attention.implementations import installed_implementations
        from packer.attention.isolation import probe
        from packer.attention.load_model import load_small_model
        from packer.report.verdict_table import render_verdicts

        _quiet()
        opened = load_small_model(model)
        names = installed_implementations()
        asked_for = [*names, *([attn] if attn and attn not in names else [])]
        verdicts = probe(opened.model, asked_for, position_offset=position_offset)
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
        sys.exit(1)


def _quiet() -> None:
    """Keep transformers' warnings off the terminal: what they say of an implementation is in the verdicts."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
