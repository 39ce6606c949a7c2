"""Charts as SVG elements of a page: histograms, and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, count

from packer.plain_text import share

FONT = "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"

PALETTE = {
    "ink": ("#1f2933", "#e6e9ee"),
    "muted": ("#5d6673", "#a3adba"),
    "grid": ("#dfe3e8", "#343c47"),
    "paper": ("#ffffff", "#14181d"),
    "empty": ("#dde2e7", "#2b333d"),
    "blue": ("#2563a8", "#6ea8e8"),
    "sky": ("#8bb4dc", "#3d6a9c"),
    "orange": ("#c2590c", "#f0a060"),
    "green": ("#1a7f5a", "#58c49a"),
    "purple": ("#7548b5", "#b597ee"),
    "rose": ("#b0305c", "#ee8bab"),
    "gray": ("#7d8590", "#8d96a1"),
}
"""Color of each role on a light and on a dark page."""

HEIGHT = 180  # height of the area of a plot, in pixels
_LEFT = 0.12  # share of the width to the left of the first bin
_MOST_TICKS = 7

Series = Mapping[str, tuple[str, Sequence[float]]]
"""(color, shares) by name; the color is a key of the palette."""


# ---- elements ----


def element(tag: str, *children: str, **attributes: object) -> str:
    """Return an element with escaped attributes. children: elements that are already escaped.

    Underscores become hyphens: `text_anchor` is text-anchor; `class_` is class. If `fill` or `stroke` is a color of the
    palette, the element also gets the class f-NAME or s-NAME, which `style_sheet` colors.
    """
    named = []
    for name, value in attributes.items():
        if name in ("fill", "stroke") and value in PALETTE:
            named.append(f'class="{name[0]}-{value}"')
            # Without a style sheet, text has the color of the surrounding text, as in a dark notebook.
            value = "currentColor" if name == "fill" and value in ("ink", "muted") else PALETTE[str(value)][0]
        named.append(f'{name.rstrip("_").replace("_", "-")}="{escape(_short(value))}"')
    opening = " ".join([tag, *named])
    return f"<{opening}>{''.join(children)}</{tag}>" if children else f"<{opening}/>"


def label(text: str, x: object, y: object, color: str = "muted", **attributes: object) -> str:
    """Return a line of text."""
    return element("text", escape(text), x=x, y=y, fill=color, **attributes)


def percentage(share: float) -> str:
    """Format a share of the width as a position: 0.25 -> 25%."""
    return f"{_short(100 * share)}%"


def _short(value: object) -> str:
    """Format a value. Floats have at most two decimals, which keeps files small: 1.50 -> 1.5."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def style_sheet() -> str:
    """Return the CSS of all colors: the dark colors on dark screens, the light colors on paper."""
    light, dark = "", ""
    for name, (on_light, on_dark) in PALETTE.items():
        light += f".f-{name}{{fill:{on_light}}}.s-{name}{{stroke:{on_light}}}"
        dark += f".f-{name}{{fill:{on_dark}}}.s-{name}{{stroke:{on_dark}}}"
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """The elements of a plot of any width and of a fixed height in pixels."""

    title: str
    """Description of the plot, for readers who cannot see it."""

    height: int
    body: str

    def inline(self, name: str) -> str:
        """Return an SVG element of full width for a page. name: value of its attribute `data-plot`."""
        attributes = {"role": "img", "aria-label": self.title, "data-plot": name, "width": "100%"}
        font = {"font_family": FONT, "font_size": 12}
        return element("svg", self.body, class_="plot", height=self.height, **attributes, **font)


# ---- charts ----


def histogram_plot(
    title: str, bins: Sequence[str], series: Series, *, ticks: Sequence[str], marks: Mapping[str, float]
) -> Plot:
    """Draw the shares of each series in bins of equal width, side by side, with a scale in percent.

    bins: range of each bin in words. ticks: label of each edge; some are left out if not all fit. marks: positions of
    vertical lines by name, from 0 to the number of bins.
    """
    entries, top = legend({name: color for name, (color, _) in series.items()})
    scale, width = _scale(series), (1 - _LEFT) / len(bins)
    parts = []
    for y in (HEIGHT, HEIGHT / 2, 0):
        parts.append(element("line", x1=0, x2="100%", y1=y, y2=y, stroke="grid"))
        parts.append(label(f"{100 * (HEIGHT - y) / scale:.3g}%", 0, y - 4, font_size=11))
    for place, (name, (color, shares)) in enumerate(series.items()):
        for index, value in enumerate(shares):
            if value > 0:
                height = max(value * scale, 1.0)
                x = percentage(_LEFT + width * (index + 0.08 + 0.84 * place / len(series)))
                wide = percentage(0.84 * width / len(series))
                tooltip = element("title", escape(f"{bins[index]}: {share(value)} of {name}"))
                parts.append(element("rect", tooltip, x=x, width=wide, y=HEIGHT - height, height=height, fill=color))
    for index in range(0, len(ticks), -(-len(ticks) // _MOST_TICKS)):
        anchor = "end" if index == len(ticks) - 1 else "middle"
        parts.append(label(ticks[index], percentage(_LEFT + width * index), HEIGHT + 18, text_anchor=anchor))
    for said, where in marks.items():
        x, side = percentage(_LEFT + width * where), "end" if where > len(bins) / 2 else "start"
        parts.append(element("line", x1=x, x2=x, y1=-6, y2=HEIGHT, stroke_dasharray="3 3", stroke="ink"))
        parts.append(label(said, x, -9, "ink", text_anchor=side, font_size=11))
    area = element("svg", *parts, y=top + 24, height=HEIGHT + 24, overflow="visible")
    return Plot(title=title, height=top + HEIGHT + 48, body=entries + area)


def _scale(series: Series) -> float:
    """Return the height of a share of 1 in pixels. The axis ends at a round number: 0.15 if the maximum is 0.13."""
    largest = max(max(shares) for _, shares in series.values())
    if largest < 1e-9:
        return HEIGHT
    power = 1.0
    while power / 10 >= largest:
        power /= 10
    steps = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    return HEIGHT / next(power * step for step in steps if power * step >= largest)


def legend(entries: Mapping[str, str]) -> tuple[str, int]:
    """Return (elements, height in pixels) of a legend with three entries per line. entries: colors by name."""
    parts = []
    for index, (name, color) in enumerate(entries.items()):
        x, y = percentage((index % 3) / 3), 18 * (index // 3)
        parts.append(element("rect", x=x, y=y + 2, width=10, height=10, fill=color))
        parts.append(element("svg", label(name, x, y + 11, "ink"), x=16, overflow="visible"))
    return "".join(parts), 18 * (-(-len(entries) // 3)) + 6


# ---- rows ----


STEP = 22  # pixels from a row to the next
BAR = 16  # height of a row in pixels
_BRANCH = 2  # pixels by which a branch of a tree is lower than the node that it continues
_TRAINED = 5  # height in pixels of the strip that marks trained tokens
_LABELS = 0.11  # share of the width to the left of the rows


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRow:
    """A row, segment by segment. Sequences have one value per segment, without padding at the end."""

    row: int
    extents: tuple[int, ...]
    """Number of places that each segment takes in the row: its tokens, and padding by `--align`."""

    rest: int = 0
    """Number of places of further segments, drawn as one, if the row has too many segments to show."""

    lengths: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    """Number of each document."""

    starts: tuple[int, ...] = ()
    trained: tuple[int, ...] | None = None
    """Trained tokens of each segment; None if labels were not read."""

    trained_runs: tuple[tuple[int, int], ...] = ()
    """Ranges (first, end) of trained tokens, as offsets in the row. Short gaps may be included."""

    nodes: tuple[tuple[tuple[int, int], ...], ...] = ()
    """(tokens, depth) of each node of each segment. Empty for a segment without a tree, or if there are none."""

    texts: tuple[str, ...] | None = None
    """Beginning of each segment as text; None to show no text."""


def row_plot(rows: Sequence[ShownRow], *, max_len: int) -> Plot:
    """Draw rows below each other.

    Segments have alternating shades; the rest of a row is padding. Branches of trees are lower than the nodes that they
    continue.
    """
    shapes: dict[str, list[str]] = {}
    borders: list[str] = []
    for y, row in zip(count(0, STEP), rows):
        ends = list(accumulate(row.extents))
        shapes.setdefault("empty", []).append(_box(0, y, max_len, BAR))
        for number, (extent, end) in enumerate(zip(row.extents, ends, strict=True)):
            color = ("blue", "sky")[number % 2]
            place = end - extent
            for tokens, depth in row.nodes[number] if row.nodes and row.nodes[number] else [(extent, 0)]:
                lower = min(depth * _BRANCH, BAR - 2 * _TRAINED)
                shapes.setdefault(color, []).append(_box(place, y + lower, tokens, BAR - lower))
                place += tokens
        if row.rest:
            shapes.setdefault("gray", []).append(_box(ends[-1], y, row.rest, BAR))
        for first, end in row.trained_runs:
            shapes.setdefault("orange", []).append(_box(first, y + BAR - _TRAINED, end - first, _TRAINED))
        borders += [f"M{end} {y}v{BAR}" for end in ends if end < max_len]
    known = {"documents": "blue"}
    known |= {"trained tokens": "orange"} if any(row.trained is not None for row in rows) else {}
    entries, top = legend(known | {"padding": "empty"})
    height = len(rows) * STEP
    order = sorted(shapes, key=lambda color: color == "orange")  # strips of trained tokens are drawn last, on top
    area = element(
        "svg",
        *(element("path", d="".join(shapes[color]), fill=color) for color in order),
        element(
            "path", d="".join(borders), fill="none", vector_effect="non-scaling-stroke", stroke_width=1, stroke="paper"
        ),
        # Paths cannot use percentages: the area is drawn in tokens and stretched to the width.
        viewBox=f"0 0 {max_len} {height}",
        preserveAspectRatio="none",
        class_="rows",
        x=percentage(_LABELS),
        y=top,
        width=percentage(1 - _LABELS),
        height=height,
    )
    names = [label(f"{row.row:,}", 0, top + y * STEP + 12, font_size=10) for y, row in enumerate(rows)]
    return Plot(title="Rows", height=top + height, body=entries + "".join(names) + area)


def _box(x: int, y: int, width: int, height: int) -> str:
    return f"M{x} {y}h{width}v{height}h-{width}z"
