"""Charts: horizontal bars, lines over a few labelled positions, and histograms of several series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from packer.figures.svg_elements import (
    SERIES,
    Plot,
    element,
    fill,
    label,
    legend,
    percentage,
    shortened,
    stroke,
    tooltip,
)

_BAR_STEP = 38
"""Height of a label and its bar in pixels."""

HEIGHT = 180
"""Height of the area of a plot in pixels."""

_LEFT, _RIGHT = 0.12, 0.97  # shares of the width

_MOST_TICKS = 7

Series = Mapping[str, tuple[str, Sequence[float]]]
"""(color, shares) by name; the color is one of the palette."""


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


def bar_plot(title: str, bars: Sequence[Bar], *, largest: float = 0.0) -> Plot:
    """Draw bars; `largest` is the value that fills the width, if it is larger than all of the bars."""
    scale = max([largest, *(bar.value for bar in bars), *(bar.mark or 0.0 for bar in bars)]) or 1.0
    parts = []
    for index, bar in enumerate(bars):
        y = index * _BAR_STEP
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
    return Plot(title=title, height=_BAR_STEP * len(bars), body="".join(parts))


def line_plot(title: str, series: Series, ticks: Sequence[str], *, shown: Callable[[float], str]) -> Plot:
    """Draw shares, which `shown` formats, as lines over equally spaced positions, which have the labels `ticks`."""
    entries, top = legend({each: color for each, (color, _) in series.items()})
    largest = max(max(shares) for _, shares in series.values())
    parts = [grid(largest)]
    places = [_LEFT + (_RIGHT - _LEFT) * index / max(1, len(ticks) - 1) for index in range(len(ticks))]
    scale = HEIGHT / axis_top(largest)
    for each, (color, shares) in series.items():
        heights = [HEIGHT - share * scale for share in shares]
        for (x1, y1), (x2, y2) in pairwise(zip(places, heights, strict=True)):
            ends = {"x1": percentage(x1), "y1": y1, "x2": percentage(x2), "y2": y2}
            parts.append(element("line", ends | stroke(color) | {"stroke-width": 2}))
        for tick, x, y, share in zip(ticks, places, heights, shares, strict=True):
            said = tooltip(f"{each}, {tick}: {shown(share)}")
            parts.append(element("circle", {"cx": percentage(x), "cy": y, "r": 4} | fill(color), said))
    for tick, x in zip(ticks, places, strict=True):
        middle = {"text-anchor": "middle"}
        parts.append(label(tick, x=percentage(x), y=HEIGHT + 18, color="muted", attributes=middle))
    area = element("svg", {"y": top + 14, "height": HEIGHT + 24, "overflow": "visible"}, *parts)
    return Plot(title=title, height=top + 14 + HEIGHT + 24, body=entries + area)


def histogram_plot(
    title: str,
    bins: Sequence[str],
    series: Series,
    *,
    ticks: Sequence[str],
    shown: Callable[[float], str],
    marks: Mapping[str, float] | None = None,
) -> Plot:
    """Draw the shares of each series, which `shown` formats, in bins of equal width, side by side.

    `bins` has the range of each bin in words, `ticks` the label of each edge, of which as many are written as fit, and
    `marks` the positions of vertical lines, from 0 to the number of bins, by name.
    """
    entries, top = legend({each: color for each, (color, _) in series.items()})
    largest = max(max(shares) for _, shares in series.values())
    scale, width = HEIGHT / axis_top(largest), (1 - _LEFT) / len(bins)
    parts = [grid(largest)]
    for place, (each, (color, shares)) in enumerate(series.items()):
        for index, share in enumerate(shares):
            if share > 0:
                height = max(share * scale, 1.0)
                x = _LEFT + width * (index + 0.08 + 0.84 * place / len(series))
                box: dict[str, object] = {"x": percentage(x), "width": percentage(0.84 * width / len(series))}
                box |= {"y": HEIGHT - height, "height": height}
                parts.append(element("rect", box | fill(color), tooltip(f"{bins[index]}: {shown(share)} of {each}")))
    labelled = [index for index, tick in enumerate(ticks) if tick]
    for index in labelled[:: -(-len(labelled) // _MOST_TICKS)]:
        anchor = {"text-anchor": "end" if index == len(ticks) - 1 else "middle"}
        edge = percentage(_LEFT + width * index)
        parts.append(label(ticks[index], x=edge, y=HEIGHT + 18, color="muted", attributes=anchor))
    for said, where in (marks or {}).items():
        mark = percentage(_LEFT + width * where)
        across: dict[str, object] = {"x1": mark, "x2": mark, "y1": -6, "y2": HEIGHT, "stroke-dasharray": "3 3"}
        side = {"text-anchor": "end" if where > len(bins) / 2 else "start", "font-size": 11}
        parts += [element("line", across | stroke("ink")), label(said, x=mark, y=-9, attributes=side)]
    area = element("svg", {"y": top + 24, "height": HEIGHT + 24, "overflow": "visible"}, *parts)
    return Plot(title=title, height=top + 24 + HEIGHT + 24, body=entries + area)


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


STEP = 22
"""Distance of rows in pixels."""

BAR = 16
"""Height of a row in pixels."""

_TRAINED = 5
"""Height of the strip that marks trained tokens, in pixels."""

_LABELS = 0.11
"""Share of the width left of the rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRow:
    """A row, segment by segment. Sequences have one value per segment, without a padding tail."""

    row: int
    """Number of the row in the dataset."""

    chosen: str = "at random"
    """Why it is shown: drawn at random, or because it is one of the "least full" or has the "most segments"."""

    extents: tuple[int, ...]
    """Places that each segment takes in the row: its tokens, and padding by `--align`."""

    rest: int = 0
    """Places of further segments, if the row has too many to show them all; they are drawn as one."""

    lengths: tuple[int, ...] = ()
    """Tokens of each segment."""

    documents: tuple[int, ...] = ()
    """Index of each document in its source."""

    starts: tuple[int, ...] = ()
    """Offset of each segment in its document."""

    sources: tuple[int, ...] | None = None
    """Source of each document in a mixture, which gives its color; None if it is not known, or there is one source."""

    trained: tuple[int, ...] | None = None
    """Trained tokens of each segment; None if labels were not read."""

    trained_runs: tuple[tuple[int, int], ...] = ()
    """Ranges (first, end) of trained tokens, as offsets in the row; short gaps may be left out."""

    texts: tuple[str, ...] | None = None
    """Beginning of each segment as text; None to show no text."""


def row_plot(title: str, rows: Sequence[ShownRow], *, max_len: int, sources: Sequence[str] = ()) -> Plot:
    """Draw rows below each other; segments have alternating shades, and what is left of a row is padding.

    In a mixture, segments have the color of their source, and `sources` are the names for the legend.
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
        for first, end in row.trained_runs:
            shapes.setdefault("orange", []).append(_box(first, y + BAR - _TRAINED, end - first, _TRAINED))
        borders += [f"M{end} {y}v{BAR}" for end in ends if end < max_len]
    known = {"documents, in turn": "blue"} if not sources else {}
    known |= {shortened(source): SERIES[2:][number % len(SERIES[2:])] for number, source in enumerate(sources[:4])}
    known |= {"trained tokens": "orange"} if any(row.trained is not None for row in rows) else {}
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
    names = [
        label(str(row.row), x=0, y=top + i * STEP + 12, color="muted", attributes=small) for i, row in enumerate(rows)
    ]
    return Plot(title=title, height=top + height, body=entries + "".join(names) + area)


def _box(x: int, y: int, width: int, height: int) -> str:
    return f"M{x} {y}h{width}v{height}h-{width}z"
