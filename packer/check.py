"""The command `packer check`: its options, its table. It translates and calls; heavy imports wait until needed."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.attention.isolation import Verdict
    from packer.attention.opening import OpenedModel


@click.command()
@click.argument("model")
@click.option("--attn", metavar="NAME", help="Exit with 1 unless this attention implementation is safe.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def check(model: str, attn: str | None, as_json: bool, debug: bool) -> None:
    """Tell which attention implementations keep packed documents of MODEL apart.

    MODEL is a folder with a config.json, such a file, or a Hub id. A small model of its kind with random weights is
    trained on one packed batch: when one document changes no other may move, and logits, loss and gradients must be
    those of the documents alone. Exits with 1 when no implementation is safe.
    """
    from packer.cli import _one_line_errors  # which imports this module

    with _one_line_errors(debug=debug):
        from packer.attention.isolation import installed, probe
        from packer.attention.opening import open_model

        _quiet()
        opened = open_model(model)
        names = installed()
        verdicts = probe(opened.model, [*names, *([attn] if attn and attn not in names else [])])
    content = {
        "model": model,
        "architecture": type(opened.model).__name__,
        "layers": opened.layers,
        "all_layers": opened.all_layers,
        "dtype": str(opened.model.dtype).removeprefix("torch."),
        "device": opened.model.device.type,
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    click.echo(json.dumps(content, indent=1) if as_json else _render(opened, verdicts))
    asked = [verdict for verdict in verdicts if attn in (None, verdict.implementation)]
    if not any(verdict.safe for verdict in asked):
        sys.exit(1)


def _quiet() -> None:
    """Keep transformers' warnings off the terminal: what they say of an implementation is in the verdicts."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def _render(opened: OpenedModel, verdicts: Sequence[Verdict]) -> str:
    from packer.report import render_table

    model = opened.model
    dtype = str(model.dtype).removeprefix("torch.")
    what = f"{opened.layers} of {opened.all_layers} layers, random weights, {dtype} on {model.device.type}"
    measures = [(verdict.moved, verdict.logits, verdict.loss, verdict.gradients) for verdict in verdicts]
    rows = [
        [
            verdict.implementation,
            verdict.answer,
            *("-" if value is None else f"{value:.1e}" if value else "0" for value in values),
        ]
        for verdict, values in zip(verdicts, measures, strict=True)
    ]
    header = ["attention", "verdict", "others moved", "logits", "loss", "gradients"]
    bad = [
        f"{verdict.implementation} {verdict.answer}: {verdict.reason}; {verdict.remedy}"
        for verdict in verdicts
        if not verdict.safe
    ]
    legend = "(others moved: when one document changes; the rest: packed against alone; all relative)"
    return "\n".join([f"{type(model).__name__}: {what}", render_table([header, *rows], align="<<>>>>"), legend, *bad])
