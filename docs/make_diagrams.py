"""Diagrams of docs/explanation: `python docs/make_diagrams.py` writes them to docs/pictures/.

They are SVG with the colors of packer's plots, light and dark. `tests/test_diagrams.py` checks that they are current.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from packer.report.charts import FONT, Plot, element, label, style_sheet

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 688
"""Width inside the margins of a picture, in pixels."""

LIGHT = ("sky", "empty", "grid", "paper")
"""Colors that dark text is written on."""


def box(x: float, y: float, width: float, height: float, color: str, text: str = "", size: int = 12) -> str:
    """Draw a rectangle with a text in its middle."""
    shape = element("rect", x=x, y=y, width=width, height=height, rx=2, fill=color)
    return shape + words(text, x + width / 2, y + height / 2 + 4, "ink" if color in LIGHT else "paper", size=size)


def words(text: str, x: float, y: float, color: str = "ink", *, anchor: str = "middle", size: int = 12) -> str:
    """Write a line of text; nothing for an empty one."""
    return label(text, x, y, color, text_anchor=anchor, font_size=size) if text else ""


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Draw an arrow to the right or down."""
    line = element("line", x1=x, y1=y, x2=to_x, y2=to_y, stroke_width=1.5, stroke="muted")
    back = ((-7, -4), (-7, 4)) if to_y == y else ((-4, -7), (4, -7))
    points = " ".join(f"{to_x + dx},{to_y + dy}" for dx, dy in ((0, 0), *back))
    return line + element("polygon", points=points, fill="muted")


def row_of(
    y: float, lengths: Sequence[int], names: Sequence[str], colors: Sequence[str], *, x: float, unit: float
) -> str:
    """Draw segments side by side, `unit` pixels for each token."""
    ends = [0, *accumulate(lengths)]
    parts = zip(pairwise(ends), names, colors, strict=True)
    return "".join(
        box(x + first * unit, y, (last - first) * unit - 1, 22, color, name) for (first, last), name, color in parts
    )


def padded_and_packed() -> Plot:
    """Compare six documents padded to one length with the same documents in two rows."""
    lengths, names, unit = (9, 3, 6, 2, 1, 3), "ABCDEF", 40
    parts = [words("padded: one document per row, 24 of 72 places used", 0, 12, anchor="start")]
    for number, (length, name) in enumerate(zip(lengths, names, strict=True)):
        color = "sky" if number % 2 else "blue"
        parts.append(row_of(22 + 26 * number, (length, 12 - length), (name, ""), (color, "empty"), x=0, unit=unit))
    parts.append(words("packed: the same documents in two rows, all 24 places used", 0, 206, anchor="start"))
    parts.append(row_of(216, (9, 3), "AB", ("blue", "sky"), x=0, unit=unit))
    parts.append(row_of(242, (6, 2, 1, 3), "CDEF", ("blue", "sky", "blue", "sky"), x=0, unit=unit))
    return Plot(title="Padding, and what packing makes of it", height=270, body="".join(parts))


def boundaries() -> Plot:
    """Show what a row stores: tokens, labels, positions and segments."""
    tokens = ("the", "fox", "runs", "eos", "a", "dog", "eos", "pad", "pad")
    segments = (4, 3, 2)
    colors = [color for color, count in zip(("blue", "sky", "empty"), segments, strict=True) for _ in range(count)]
    positions = [place for count in segments for place in range(count)]
    labels = ["-100" if place == 0 or token == "pad" else token for token, place in zip(tokens, positions, strict=True)]
    parts = []
    for line, (name, values) in enumerate(
        (("input_ids", tokens), ("labels", labels), ("position_ids", [str(place) for place in positions]))
    ):
        parts.append(words(name, 84, 16 + 30 * line, "muted", anchor="end"))
        for at, value in enumerate(values):
            color = "empty" if value == "-100" else colors[at]
            parts.append(box(96 + 64 * at, 30 * line, 62, 24, color, value))
    y = 30 * 3
    for name, values in (("seq_lengths", segments), ("doc_ids", (17, 4, -1))):
        parts.append(words(name, 84, y + 16, "muted", anchor="end"))
        parts.append(row_of(y + 1, segments, [str(value) for value in values], ("blue", "sky", "empty"), x=96, unit=64))
        y += 30
    return Plot(title="A row of 9 tokens with two documents", height=y, body="".join(parts))


def attention() -> Plot:
    """Compare the keys that tokens attend to, with and without boundaries."""
    segments, cell = (4, 3, 5), 15
    number_of = [number for number, count in enumerate(segments) for _ in range(count)]
    parts = []
    for panel, (title, keeps) in enumerate((("causal over the whole row: leaks", False), ("within documents", True))):
        left = 20 + panel * 450
        parts.append(words(title, left + 6 * cell, 12))
        for query, own in enumerate(number_of):
            for key, other in enumerate(number_of):
                inside = own == other
                color = "empty" if key > query or (keeps and not inside) else "blue" if inside else "orange"
                x, y, size = left + key * cell, 24 + query * cell, cell - 1
                parts.append(element("rect", x=x, y=y, width=size, height=size, fill=color))
        parts.append(words("keys", left + 6 * cell, 24 + 12 * cell + 14, "muted", size=11))
    parts.append(words("A row of three documents.", 230, 90, "muted", anchor="start", size=11))
    parts.append(words("Each line is a token; colored squares", 230, 106, "muted", anchor="start", size=11))
    parts.append(words("are the keys that it attends to.", 230, 122, "muted", anchor="start", size=11))
    parts.append(words("Orange: keys in other documents.", 230, 138, "muted", anchor="start", size=11))
    return Plot(title="What a token attends to", height=24 + 12 * cell + 20, body="".join(parts))


def stages() -> Plot:
    """Show the stages from the source to shards."""
    titles = {52: "source", 200: "partitions", 348: "drawn rows", 496: "solved", 636: "shards"}
    parts = [words(title, x, 12, "muted") for x, title in titles.items()]
    colors = ("blue", "orange", "green")
    for number in range(9):
        parts.append(box(12, 26 + 20 * number, 80, 18, "sky" if number % 2 else "empty", f"block {number}", size=11))
    dealt = ((4, 0, 7), (2, 8, 5), (6, 1, 3))
    for number, blocks in enumerate(dealt):
        y = 26 + 62 * number
        parts.append(box(160, y, 80, 54, colors[number], ", ".join(map(str, blocks))))
        parts.append(arrow(244, y + 27, 304, y + 27))
        for line in range(4):
            parts.append(box(308, y + 14 * line, 80, 12, colors[number]))
        parts.append(words("the rest", 422, y + 40, "muted", size=11))
        parts.append(arrow(392, y + 48, 452, y + 48))
        parts.append(box(456, y + 42, 80, 12, colors[number]))
        parts.append(arrow(540, y + 27, 592, y + 27))
        parts.append(box(596, y, 80, 54, colors[number], f"shard {number}"))
    parts.append(arrow(96, 115, 156, 115))
    return Plot(title="From the source to shards", height=212, body="".join(parts))


def drawing() -> Plot:
    """Show how a row is drawn and closed."""
    order = {"A": 5, "B": 3, "C": 4, "D": 7, "E": 6, "F": 3, "G": 1}
    lines = (
        ("documents in random order, with their lengths", "ABCDEFG"),
        ("A, B and C fit. D does not: 4 tokens are left.", "ABC"),
        ("F and G, which come later, fill these 4 exactly. The row is full; D begins the next one.", "ABCFG"),
    )
    parts = []
    for number, (text, names) in enumerate(lines):
        y = 56 * number
        parts.append(words(text, 0, y + 12, "muted", anchor="start"))
        colors = ["green" if number and name in "FG" else "sky" if name in "BDF" else "blue" for name in names]
        lengths = [order[name] for name in names]
        shown = [f"{name} {order[name]}" for name in names]
        parts.append(row_of(y + 20, lengths, shown, colors, x=0, unit=40 if number else 23.5))
        if number:
            frame = {"x": 0.5, "y": y + 18.5, "width": 16 * 40, "height": 25, "fill": "none", "stroke": "muted"}
            parts.append(element("rect", **frame))
    return Plot(title="Drawing a row of 16 tokens", height=56 * 3, body="".join(parts))


def solving() -> Plot:
    """Show a histogram, patterns and rows."""
    parts = [words("documents of each length", 28, 12, "muted", anchor="start"), words("patterns", 340, 12, "muted")]
    parts.append(words("rows", 590, 12, "muted"))
    for number, (length, count) in enumerate(((8, 2), (6, 1), (5, 2), (3, 3), (2, 1))):
        y = 30 + 26 * number
        parts.append(words(f"{length}", 20, y + 15, anchor="end"))
        parts.append(box(28, y, 44 * count, 20, "blue", f"{count}"))
    patterns = (((8, 3), 2), ((6, 5), 1), ((5, 3, 2), 1))
    y = 30
    for number, (pattern, count) in enumerate(patterns):
        parts.append(words(f"{count} x", 250, 66 + 34 * number, anchor="end"))
        colors = ("blue", "sky", "blue")[: len(pattern)]
        parts.append(row_of(51 + 34 * number, pattern, [str(length) for length in pattern], colors, x=258, unit=16))
        for _ in range(count):
            parts.append(row_of(y + 4, pattern, ["" for _ in pattern], colors, x=506, unit=16))
            y += 32
    parts.append(arrow(180, 98, 214, 98))
    parts.append(arrow(450, 98, 490, 98))
    return Plot(title="The solver sees a histogram only", height=166, body="".join(parts))


def gathering() -> Plot:
    """Show how tokens are copied from the mapped source into a row."""
    lengths, unit = (3, 6, 2, 5, 4, 1, 7), 24
    starts = [0, *accumulate(lengths)]
    taken = {3: "blue", 1: "orange", 5: "green"}
    colors = [taken.get(number, "empty") for number in range(len(lengths))]
    names = [f"{number}" for number in range(len(lengths))]
    parts = [words("the source, memory-mapped: documents one after the other", 0, 12, "muted", anchor="start")]
    parts.append(row_of(20, lengths, names, colors, x=0, unit=unit))
    left, place = 180, 0
    for number in taken:
        middle = (place + lengths[number] / 2) * unit + left
        parts.append(arrow((starts[number] + lengths[number] / 2) * unit, 44, middle, 106))
        place += lengths[number]
    parts.append(words("a row of 12 tokens", left - 12, 125, "muted", anchor="end"))
    found = [(lengths[number], f"{number}", color) for number, color in taken.items()]
    for y, column in ((110, 1), (140, 0)):
        values = [str(each[column]) for each in found]
        parts.append(row_of(y, [each[0] for each in found], values, [each[2] for each in found], x=left, unit=unit))
    parts.append(words("its seq_lengths", left - 12, 155, "muted", anchor="end"))
    return Plot(title="Gathering a row", height=164, body="".join(parts))


DIAGRAMS: dict[str, Callable[[], Plot]] = {
    "diagram-padded-and-packed": padded_and_packed,
    "diagram-boundaries": boundaries,
    "diagram-attention": attention,
    "diagram-stages": stages,
    "diagram-drawing": drawing,
    "diagram-solving": solving,
    "diagram-gathering": gathering,
}


def picture(plot: Plot) -> str:
    """Return the content of an SVG file with the title above the plot, WIDTH pixels wide within a margin of 16."""
    parts = [
        element("style", style_sheet()),
        element("rect", width="100%", height="100%", fill="paper"),
        label(plot.title, 16, 24, "ink", font_size=14, font_weight="bold"),
        element("svg", plot.body, x=16, y=40, width=WIDTH, height=plot.height),
    ]
    size = {"xmlns": "http://www.w3.org/2000/svg", "width": WIDTH + 32, "height": plot.height + 56}
    return element("svg", *parts, **size, font_family=FONT, font_size=12) + "\n"


def main() -> None:
    """Write all diagrams."""
    for name, draw in DIAGRAMS.items():
        (PICTURES / f"{name}.svg").write_text(picture(draw()))


if __name__ == "__main__":
    main()
