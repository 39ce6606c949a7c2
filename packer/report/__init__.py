"""Reports: tables, bars and summaries as text for the terminal, and pages of HTML; nothing here prints.

- `plain_text`: columns, bars and formatted numbers
- `dataset_report`: `render_stats` and `render_packed_stats`
- `row_length_table`: `render_row_lengths`
- `run_summary`: `render_manifest_summary`, `render_tokenized` and `render_export`
- `row_table`: `segments_of` a row, `render_row`, `render_text` and `row_to_json`
- `comparison_tables`: `render_comparison`
- `html`: the report as a page, and its plots as files
- `verdict_table`: `render_verdicts`

Importing this package imports none of them.
"""

from typing import TYPE_CHECKING

from packer.names_on_use import names_on_use

if TYPE_CHECKING:
    from packer.report.comparison_tables import render_comparison
    from packer.report.dataset_report import render_packed_stats, render_stats
    from packer.report.plain_text import can_draw_blocks
    from packer.report.row_length_table import render_row_lengths
    from packer.report.row_table import render_row, render_text, row_to_json, segments_of
    from packer.report.run_summary import render_export, render_manifest_summary, render_tokenized

__all__ = [
    "can_draw_blocks",
    "render_comparison",
    "render_export",
    "render_manifest_summary",
    "render_packed_stats",
    "render_row",
    "render_row_lengths",
    "render_stats",
    "render_text",
    "render_tokenized",
    "row_to_json",
    "segments_of",
]

__getattr__ = names_on_use(
    __name__,
    {
        "comparison_tables": ("render_comparison",),
        "dataset_report": (
            "render_packed_stats",
            "render_stats",
        ),
        "plain_text": ("can_draw_blocks",),
        "row_length_table": ("render_row_lengths",),
        "row_table": (
            "render_row",
            "render_text",
            "row_to_json",
            "segments_of",
        ),
        "run_summary": (
            "render_export",
            "render_manifest_summary",
            "render_tokenized",
        ),
    },
)
