"""The palette of plots: a light and a dark color for each role."""

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
