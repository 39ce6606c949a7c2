"""Lines over a few labelled positions, with a legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packer.plots.palette import fill, stroke
from packer.plots.svg_elements import Plot, element, label, legend, percentage, tooltip

HEIGHT = 180
"""Height of the area of a plot in pixels."""

_LEFT, _RIGHT = 0.12, 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line."""

    name: str
    """Name in the legend."""

    values: Sequence[float]
    """Share at each position, 0 or more."""

    color: str
    """Color, one of the palette."""


def line_plot(
    title: str, lines: Sequence[Line], ticks: Sequence[str], *, shown: Callable[[float], str], name: str = ""
) -> Plot:
    """Draw shares as lines over equally spaced positions, from 0 to the largest.

    Args:
        title: what the plot shows.
        lines: lines with one value for each position, at least one position.
        ticks: label of each position.
        shown: function that formats a share.
        name: name of the plot in a page.
    """
    entries, top = legend({line.name: line.color for line in lines})
    largest = max(max(line.values) for line in lines)
    parts = [grid(largest)]
    places = [_LEFT + (_RIGHT - _LEFT) * index / max(1, len(ticks) - 1) for index in range(len(ticks))]
    scale = HEIGHT / axis_top(largest)
    for line in lines:
        heights = [HEIGHT - value * scale for value in line.values]
        for (x1, y1), (x2, y2) in pairwise(zip(places, heights, strict=True)):
            ends = {"x1": percentage(x1), "y1": y1, "x2": percentage(x2), "y2": y2}
            parts.append(element("line", ends | stroke(line.color) | {"stroke-width": 2}))
        for tick, x, y, value in zip(ticks, places, heights, line.values, strict=True):
            said = tooltip(f"{line.name}, {tick}: {shown(value)}")
            parts.append(element("circle", {"cx": percentage(x), "cy": y, "r": 4} | fill(line.color), said))
    for tick, x in zip(ticks, places, strict=True):
        middle = {"text-anchor": "middle"}
        parts.append(label(tick, x=percentage(x), y=HEIGHT + 18, color="muted", attributes=middle))
    area = element("svg", {"y": top + 14, "height": HEIGHT + 24, "overflow": "visible"}, *parts)
    return Plot(title=title, name=name, height=top + 14 + HEIGHT + 24, body=entries + area)


def axis_top(largest: float) -> float:
    """Return a round number not below the largest value: 0.83 -> 1.0, 0.13 -> 0.15; 1 if all are almost 0."""
    if largest < 1e-9:
        return 1.0
    power = 10.0
    while power / 10 >= largest:
        power /= 10
    while power < largest:
        power *= 10
    return next(power * step for step in (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0) if power * step >= largest)


def grid(largest: float) -> str:
    """Return horizontal lines with their values in percent, from 0 to the top of the axis."""
    parts = []
    for step in (0, 0.5, 1):
        y = HEIGHT * (1 - step)
        parts.append(element("line", {"x1": 0, "x2": "100%", "y1": y, "y2": y} | stroke("grid")))
        parts.append(
            label(f"{100 * step * axis_top(largest):.3g}%", x=0, y=y - 4, color="muted", attributes={"font-size": 11})
        )
    return "".join(parts)
