"""Packed rows as bars of segments: one path for each color, whatever the number of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from packer.plots.svg_elements import SERIES, Plot, element, fill, label, legend, shortened, stroke

STEP = 22
"""Distance of rows in pixels."""

BAR = 16
"""Height of a row in pixels."""

_TRAINED = 5
"""Height of the strip that marks trained tokens, in pixels."""

_LABELS = 0.11
"""Share of the width left of the rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnRow:
    """A row to draw."""

    name: str
    """Label on the left, a few characters."""

    extents: Sequence[int]
    """Places of each segment in the row, without a padding tail."""

    rest: int = 0
    """Places of further segments, which are drawn as one."""

    sources: Sequence[int] | None = None
    """Source of each segment, which gives its color; None for one color."""

    trained: Sequence[tuple[int, int]] = ()
    """Ranges (first, end) of trained tokens."""


def row_plot(
    title: str,
    rows: Sequence[DrawnRow],
    *,
    max_len: int,
    sources: Sequence[str] = (),
    shows_trained: bool = False,
    name: str = "",
) -> Plot:
    """Draw rows below each other; segments have alternating shades, and what is left of a row is padding.

    Args:
        title: what the plot shows.
        rows: the rows, at least one.
        max_len: tokens per row.
        sources: names of the sources of a mixture, for the legend.
        shows_trained: whether trained tokens are known, for the legend.
        name: name of the plot in a page.
    """
    shapes: dict[str, list[str]] = {}
    borders: list[str] = []
    for index, row in enumerate(rows):
        y = index * STEP
        ends = list(accumulate(row.extents))
        for number, (extent, end) in enumerate(zip(row.extents, ends, strict=True)):
            shade = "sky" if number % 2 else "blue"
            color = shade if row.sources is None else SERIES[2:][row.sources[number] % len(SERIES[2:])]
            shapes.setdefault(color, []).append(_box(end - extent, y, extent, BAR))
        if row.rest:
            shapes.setdefault("gray", []).append(_box(ends[-1], y, row.rest, BAR))
        for first, end in row.trained:
            shapes.setdefault("orange", []).append(_box(first, y + BAR - _TRAINED, end - first, _TRAINED))
        borders += [f"M{end} {y}v{BAR}" for end in ends if end < max_len]
    known = {"documents, in turn": "blue"} if not sources else {}
    known |= {shortened(source): SERIES[2:][number % len(SERIES[2:])] for number, source in enumerate(sources[:4])}
    known |= {"trained tokens": "orange"} if shows_trained else {}
    entries, top = legend(known | {"padding": "empty"})
    height = STEP * len(rows)
    order = sorted(shapes, key=lambda color: color == "orange")  # trained strips lie on top
    paths = [element("path", {"d": "".join(shapes[color])} | fill(color)) for color in order]
    lines = {"d": "".join(borders), "fill": "none", "vector-effect": "non-scaling-stroke", "stroke-width": 1}
    tracks = element("path", {"d": "".join(_box(0, i * STEP, max_len, BAR) for i in range(len(rows)))} | fill("empty"))
    # Paths have no percentages: the area is drawn in tokens and stretched to the width.
    stretched: dict[str, object] = {
        "viewBox": f"0 0 {max_len} {height}",
        "preserveAspectRatio": "none",
        "class": "rows",
    }
    stretched |= {"x": f"{100 * _LABELS:g}%", "y": top, "width": f"{100 - 100 * _LABELS:g}%", "height": height}
    area = element("svg", stretched, tracks, *paths, element("path", lines | stroke("paper")))
    small = {"font-size": 10}
    names = [label(row.name, x=0, y=top + i * STEP + 12, color="muted", attributes=small) for i, row in enumerate(rows)]
    return Plot(title=title, name=name, height=top + height, body=entries + "".join(names) + area)


def _box(x: int, y: int, width: int, height: int) -> str:
    return f"M{x} {y}h{width}v{height}h-{width}z"
