"""Horizontal bars, each below its label and value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packer.plots.palette import fill
from packer.plots.svg_elements import Plot, element, label, percentage

_STEP = 38
"""Height of a label and its bar in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar."""

    name: str
    """Label on the left."""

    value: float
    """Length, 0 or more."""

    text: str
    """The value in words, on the right."""

    color: str
    """Color, one of the palette."""

    mark: float | None = None
    """A second value, marked by a line across the bar; None for none."""


def bar_plot(title: str, bars: Sequence[Bar], *, name: str = "", largest: float = 0.0) -> Plot:
    """Draw bars; `largest` is the value that fills the width, if it is larger than all of the bars."""
    scale = max([largest, *(bar.value for bar in bars), *(bar.mark or 0.0 for bar in bars)]) or 1.0
    parts = []
    for index, bar in enumerate(bars):
        y = index * _STEP
        parts.append(label(bar.name, x=0, y=y + 13))
        parts.append(label(bar.text, x="100%", y=y + 13, color="muted", attributes={"text-anchor": "end"}))
        track = {"y": y + 19, "height": 12, "width": "100%"}
        parts.append(element("rect", track | fill("empty")))
        # A bar of a single pixel is the least that can be seen.
        visible = percentage(max(bar.value / scale, 0.0015 * (bar.value > 0)))
        parts.append(element("rect", {"y": y + 19, "height": 12, "width": visible} | fill(bar.color)))
        if bar.mark is not None:
            x = percentage(bar.mark / scale)
            across = {"x": x, "y": y + 16, "height": 18, "width": 2, "transform": "translate(-1 0)"}
            parts.append(element("rect", across | fill("ink")))
    return Plot(title=title, name=name, height=_STEP * len(bars), body="".join(parts))
