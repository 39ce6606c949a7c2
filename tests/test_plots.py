"""Plots: shapes are where the numbers say, text is escaped, and a file stands alone."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.plots import Bar, DrawnRow, bar_plot, histogram_plot, line_plot, row_plot
from packer.plots.charts import HEIGHT, axis_top
from packer.plots.row_plot import BAR, STEP
from packer.plots.svg_elements import PALETTE, Plot, shortened, style_sheet
from packer.report.plain_text import percent

BOX = re.compile(r"M(\d+) (\d+)h(\d+)v(\d+)h-\d+z")
MARKUP = "<b>\"&'"


def parsed(plot: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(plot.inline())


def boxes(plot: Plot, color: str) -> list[tuple[int, int, int, int]]:
    """(x, y, width, height) of the boxes in the path of a color."""
    paths = [path.get("d") for path in parsed(plot).iter("path") if path.get("class") == f"f-{color}"]
    assert len(paths) <= 1, "one path a color"
    return [tuple(map(int, box)) for path in paths for box in BOX.findall(path)]


def share(value: str) -> float:
    assert value.endswith("%")
    return float(value[:-1]) / 100


rows = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=5)


@given(rows, st.integers(0, 9))
def test_segments_are_boxes_as_wide_as_their_extents(rows: list[list[int]], padding: int) -> None:
    max_len = max(map(sum, rows)) + padding
    plot = row_plot("Rows", [DrawnRow(name="", extents=row) for row in rows], max_len=max_len)
    drawn = sorted((y // STEP, x, width) for x, y, width, _ in boxes(plot, "blue") + boxes(plot, "sky"))
    expected = [(index, sum(row[:place]), extent) for index, row in enumerate(rows) for place, extent in enumerate(row)]
    assert drawn == expected
    assert boxes(plot, "empty") == [(0, index * STEP, max_len, BAR) for index in range(len(rows))]


def test_sources_have_colors_of_their_own_and_trained_tokens_a_strip() -> None:
    row = DrawnRow(name="7", extents=[4, 2, 1], rest=3, sources=[0, 1, 0], trained=[(1, 3), (5, 6)])
    plot = row_plot("Rows", [row], max_len=12, sources=["web", "code"], shows_trained=True)
    assert [(x, width) for x, _, width, _ in boxes(plot, "green")] == [(0, 4), (6, 1)]
    assert [(x, width) for x, _, width, _ in boxes(plot, "purple")] == [(4, 2)]
    assert [(x, width) for x, _, width, _ in boxes(plot, "gray")] == [(7, 3)]
    assert [(x, width) for x, _, width, _ in boxes(plot, "orange")] == [(1, 2), (5, 1)]
    words = [text.text for text in parsed(plot).iter("text")]
    assert words == ["web", "code", "trained tokens", "padding", "7"]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=6))
def test_bars_are_as_long_as_their_values(values: list[float]) -> None:
    plot = bar_plot("Bars", [Bar(name="", value=value, text="", color="blue") for value in values])
    widths = [share(bar.get("width")) for bar in parsed(plot).iter("rect") if bar.get("class") == "f-blue"]
    longest = max(values) or 1.0
    for width, value in zip(widths, values, strict=True):
        assert width == pytest.approx(max(value / longest, 0.0015 * (value > 0)), abs=6e-5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_points_of_a_line_are_at_the_height_of_their_values(values: list[float]) -> None:
    ticks = list(map(str, range(len(values))))
    plot = line_plot("Line", {"one": ("green", values)}, ticks, shown=percent)
    points = [float(point.get("cy")) for point in parsed(plot).iter("circle")]
    top = axis_top(max(values))
    assert points == pytest.approx([HEIGHT * (1 - value / top) for value in values], abs=0.01)
    assert len([line for line in parsed(plot).iter("line") if line.get("class") == "s-green"]) == len(values) - 1


@given(st.floats(1e-9, 1e9))
def test_an_axis_ends_above_the_largest_value_and_not_far(largest: float) -> None:
    assert largest <= axis_top(largest) * (1 + 1e-9)
    assert axis_top(largest) <= 2 * largest


def test_an_axis_of_nothing_ends_at_one() -> None:
    assert axis_top(0) == 1


def test_every_bin_that_is_not_empty_is_drawn_within_the_plot() -> None:
    shares = [0.5, 0.0, 1e-9, 0.5]
    plot = histogram_plot(
        "Bins", list("abcd"), {"rows": ("blue", shares)}, ticks=["0", "", "2", "", "4"], shown=percent, marks={"m": 2.0}
    )
    drawn = [bar for bar in parsed(plot).iter("rect") if bar.get("y") != "2"]
    assert [float(bar.get("height")) for bar in drawn] == [HEIGHT, 1, HEIGHT]
    places = [(share(bar.get("x")), share(bar.get("width"))) for bar in drawn]
    assert all(x >= 0.12 and x + width <= 1 for x, width in places)
    assert [title.text for title in parsed(plot).iter("title")][1] == f"c: {percent(1e-9)} of rows"
    assert [text.text for text in parsed(plot).iter("text")][-4:] == ["0", "2", "4", "m"]


def test_whatever_stands_in_names_is_escaped() -> None:
    bar = Bar(name=MARKUP, value=1, text=MARKUP, color="blue")
    for plot in (
        bar_plot(MARKUP, [bar], name=MARKUP),
        line_plot(MARKUP, {MARKUP: ("blue", [1])}, [MARKUP], shown=percent),
        histogram_plot(MARKUP, [MARKUP], {MARKUP: ("blue", [1.0])}, ticks=[MARKUP, MARKUP], shown=percent),
        row_plot(MARKUP, [DrawnRow(name=MARKUP, extents=[1])], max_len=1, sources=[MARKUP]),
    ):
        assert parsed(plot).get("aria-label") == MARKUP
        assert MARKUP in [text.text for text in parsed(plot).iter("text")]
        ElementTree.fromstring(plot.file())


def test_every_color_has_a_dark_variant_and_is_seen_without_style() -> None:
    light, dark = style_sheet().split("@media screen and (prefers-color-scheme:dark)")
    for name, (on_light, on_dark) in PALETTE.items():
        assert f".f-{name}{{fill:{on_light}}}" in light
        assert f".f-{name}{{fill:{on_dark}}}" in dark


def test_long_names_are_shortened_to_their_end() -> None:
    assert shortened("a" * 26) == "a" * 26
    assert shortened("x" * 90 + "-00001-of-00002.parquet") == "...-00001-of-00002.parquet"
