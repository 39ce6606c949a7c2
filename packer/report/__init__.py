"""Reports: tables, bars and summaries as text for the terminal, and pages of HTML; nothing here prints.

- `plain_text`: columns, bars and formatted numbers
- `figure_tables`: `render_figures`, `render_row_lengths` and `render_comparison`
- `run_summary`: `render_manifest_summary`, `render_append_summary`, `render_tokenized`, `render_export`,
  `render_verdicts`
- `row_table`: `segments_of` a row, `render_row`, `render_text` and `row_to_json`
- `html`: the report as a page, and its plots as files
"""
