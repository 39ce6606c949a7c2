"""Plots as SVG: numbers and labels in, text out. Nothing is imported but the standard library.

Horizontal positions are percentages and text has a fixed size, so that a plot fits a phone as well as a page. Colors
are attributes, which hold without any style sheet, and classes, which `style_sheet` gives a dark variant.

- `svg_elements`: elements with escaped attributes and text; `Plot`, within a page or as a file
- `palette`: the colors and their style sheet
- `bar_plot`, `line_plot`, `histogram_plot`, `row_plot`: the kinds of plots
- `notebook_facts`: facts and a plot as notebooks show them
"""

from packer.plots.bar_plot import Bar, bar_plot
from packer.plots.histogram_plot import histogram_plot
from packer.plots.line_plot import Line, line_plot
from packer.plots.palette import style_sheet
from packer.plots.row_plot import DrawnRow, row_plot
from packer.plots.svg_elements import Plot, shortened

__all__ = [
    "Bar",
    "DrawnRow",
    "Line",
    "Plot",
    "bar_plot",
    "histogram_plot",
    "line_plot",
    "row_plot",
    "shortened",
    "style_sheet",
]
