"""What the isolation probe found, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packer.report.text import render_table

if TYPE_CHECKING:
    from packer.attention.isolation import Verdict
    from packer.attention.opening import OpenedModel


def render_verdicts(opened: OpenedModel, verdicts: Sequence[Verdict]) -> str:
    """Show what the probe found of each implementation, and what to do about those that are not safe."""
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
    thresholds = verdicts[0].thresholds
    if thresholds:
        named = ", ".join(f"{name} {value:,}" for name, value in thresholds.items())
        legend += f"\n(shown for batches of up to {min(thresholds.values()):,} tokens, not beyond {named})"
    return "\n".join([f"{type(model).__name__}: {what}", render_table([header, *rows], align="<<>>>>"), legend, *bad])
