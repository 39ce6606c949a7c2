"""Table of the verdicts of the isolation probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packer.report.plain_text import render_table

if TYPE_CHECKING:
    from packer.attention.implementations import Verdict
    from packer.attention.load_model import SmallModel


def render_verdicts(probed: SmallModel, verdicts: Sequence[Verdict]) -> str:
    """Return a table of the verdicts, at least one, with a reason and a remedy for each that is not safe."""
    model = probed.model
    dtype = str(model.dtype).removeprefix("torch.")
    dtype += "" if dtype == "float32" else " and float32"
    head = (
        f"{type(model).__name__}: {probed.layers} of {probed.all_layers} layers, random weights, {dtype} on "
        f"{model.device.type}"
    )
    table = [["attention", "verdict", "others moved", "logits", "loss", "gradients"]]
    for verdict in verdicts:
        measures = (verdict.moved, verdict.logits, verdict.loss, verdict.gradients)
        table.append([verdict.implementation, verdict.answer, *map(_measure, measures)])
    lines = [
        head,
        render_table(table, align="<<>>>>"),
        "(others moved: when one document changes; the rest: packed against alone; all relative)",
    ]
    thresholds = verdicts[0].thresholds
    if thresholds:
        named = ", ".join(f"{name} {value:,}" for name, value in thresholds.items())
        lines.append(f"(shown for batches of up to {min(thresholds.values()):,} tokens, not beyond {named})")
    for verdict in verdicts:
        if not verdict.safe:
            lines.append(f"{verdict.implementation} {verdict.answer}: {verdict.reason}; {verdict.remedy}")
    return "\n".join(lines)


def _measure(value: float | None) -> str:
    """Format a relative difference: None -> -, 0.0 -> 0, 0.0123 -> 1.2e-02."""
    if value is None:
        return "-"
    return f"{value:.1e}" if value else "0"
