"""Plots as SVG: numbers and labels in, text out. Nothing is imported but the standard library.

Horizontal positions are percentages and text has a fixed size, so that a plot fits a phone as well as a page. Colors
are attributes, which hold without any style sheet, and classes, which `style_sheet` gives a dark variant.

- `svg_elements`: elements with escaped attributes and text; their colors and style sheet; `Plot`
- `charts`: bars, lines and histograms
- `row_plot`: packed rows
"""

from packer.plots.charts import Bar, bar_plot, histogram_plot, line_plot
from packer.plots.row_plot import DrawnRow, row_plot
from packer.plots.svg_elements import Plot, shortened, style_sheet

__all__ = [
    "Bar",
    "DrawnRow",
    "Plot",
    "bar_plot",
    "histogram_plot",
    "line_plot",
    "row_plot",
    "shortened",
    "style_sheet",
]
