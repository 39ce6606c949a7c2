"""Tables and plots for the terminal, made from numbers: every function returns text, none prints.

- `text`: columns, bars and numbers
- `datasets`: `render_stats` and `render_packed_stats`
- `packing`: `render_manifest_summary`, `render_tokenized`, `render_export` and `render_row`
- `comparison`: `render_comparison`
"""

from packer.report.comparison import render_comparison
from packer.report.datasets import (
    render_distribution,
    render_epoch,
    render_packed_stats,
    render_padding,
    render_stats,
)
from packer.report.packing import render_export, render_manifest_summary, render_row, render_tokenized
from packer.report.text import (
    can_draw_blocks,
    count_of,
    duration,
    number,
    percent,
    render_bars,
    render_table,
)

__all__ = [
    "can_draw_blocks",
    "count_of",
    "duration",
    "number",
    "percent",
    "render_bars",
    "render_comparison",
    "render_distribution",
    "render_epoch",
    "render_export",
    "render_manifest_summary",
    "render_packed_stats",
    "render_padding",
    "render_row",
    "render_stats",
    "render_table",
    "render_tokenized",
]
