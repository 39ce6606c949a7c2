"""SVG elements as text, their colors, and plots made of them, in a page, in a file or in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

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

SERIES = ("blue", "orange", "green", "purple", "rose", "gray")
"""Colors of series, in order; further series repeat them."""


def fill(color: str) -> dict[str, str]:
    """Return the attributes of an element that is filled with a color of the palette."""
    # Without a style sheet, text has the color of the text around the plot, as in a notebook with a dark theme.
    return {"class": f"f-{color}", "fill": "currentColor" if color in ("ink", "muted") else PALETTE[color][0]}


def stroke(color: str) -> dict[str, str]:
    """Return the attributes of an element that is drawn with a color of the palette."""
    return {"class": f"s-{color}", "stroke": PALETTE[color][0]}


def style_sheet() -> str:
    """Return the CSS of all colors, with the dark ones on dark screens; paper is light."""
    dark = "".join(_rules(name, colors[1]) for name, colors in PALETTE.items())
    light = "".join(_rules(name, colors[0]) for name, colors in PALETTE.items())
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _rules(name: str, color: str) -> str:
    return f".f-{name}{{fill:{color}}}.s-{name}{{stroke:{color}}}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A plot of any width and a fixed height."""

    title: str
    """What the plot shows, for readers who do not see it."""

    height: int
    """Height in pixels."""

    body: str
    """The elements."""

    def inline(self, name: str = "") -> str:
        """Return the SVG element for a page, as wide as what it stands in; `name` is its attribute `data-plot`."""
        attributes = {"class": "plot", "width": "100%", "height": self.height, "role": "img", "aria-label": self.title}
        if name:
            attributes["data-plot"] = name
        return element("svg", attributes | {"font-family": FONT, "font-size": 12}, self.body)

    def file(self, *, width: int = 720, margin: int = 16) -> str:
        """Return the content of an SVG file, `width` pixels wide, with its title above the plot."""
        inner = width - 2 * margin
        top = margin + 24
        attributes = {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": top + self.height + margin}
        style = "<style>" + style_sheet() + "</style>"
        paper = element("rect", {"width": "100%", "height": "100%"} | fill("paper"))
        heading = label(self.title, x=margin, y=margin + 8, attributes={"font-size": 14, "font-weight": "bold"})
        plot = element("svg", {"x": margin, "y": top, "width": inner, "height": self.height}, self.body)
        body = style + paper + heading + plot
        return element("svg", attributes | {"font-family": FONT, "font-size": 12}, body) + "\n"


def element(tag: str, attributes: Mapping[str, object], *children: str) -> str:
    """Return an element with escaped attributes; children are elements already."""
    named = "".join(f' {name}="{escape(_short(value))}"' for name, value in attributes.items())
    return f"<{tag}{named}>{''.join(children)}</{tag}>" if children else f"<{tag}{named}/>"


def label(
    text: str, *, x: object, y: object, color: str = "ink", attributes: Mapping[str, object] | None = None
) -> str:
    """Return a line of text."""
    return element("text", {"x": x, "y": y} | fill(color) | dict(attributes or {}), escape(text))


def tooltip(text: str) -> str:
    """Return the title of an element, which browsers show next to the pointer."""
    return element("title", {}, escape(text))


def percentage(share: float) -> str:
    """Format a share of the width as a position: 0.25 -> 25%."""
    return f"{_short(100 * share)}%"


def shortened(name: str, most: int = 26) -> str:
    """Return a name that fits half a phone, keeping its end if it is too long: "...2024-shard.parquet"."""
    return name if len(name) <= most else "..." + name[3 - most :]


def legend(entries: Mapping[str, str]) -> tuple[str, int]:
    """Return (elements, height in pixels) of a legend with two entries a line, names by color."""
    parts = []
    for index, (name, color) in enumerate(entries.items()):
        x, y = 0.5 * (index % 2), 18 * (index // 2)
        parts.append(element("rect", {"x": percentage(x), "y": y + 2, "width": 10, "height": 10} | fill(color)))
        shifted = element("svg", {"x": 16, "overflow": "visible"}, label(name, x=percentage(x), y=y + 11))
        parts.append(shifted)
    return "".join(parts), 18 * (-(-len(entries) // 2)) + 6


def _short(value: object) -> str:
    """Format a value; floats with two decimals at most, so that files are small: 1.50 -> 1.5."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def notebook_facts(title: str, facts: Sequence[tuple[str, str]], plot: Plot | None = None) -> str:
    """Return HTML with a title, a table of facts (name, value) and a plot; everything but the plot is escaped."""
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts)
    table = f"<table>{lines}</table>"
    return f"<div><strong>{escape(title)}</strong>{table}{'' if plot is None else plot.inline()}</div>"
