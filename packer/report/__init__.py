"""Reports: tables, bars and summaries as text for the terminal, and pages of HTML; nothing here prints.

- `plain_text`: columns, bars and formatted numbers
- `dataset_report`: `render_stats` and `render_packed_stats`
- `row_length_table`: `render_row_lengths`
- `run_summary`: `render_manifest_summary`, `render_tokenized` and `render_export`
- `row_table`: `segments_of` a row, `render_row`, `render_text` and `row_to_json`
- `comparison_tables`: `render_comparison`
- `html`: the report as a page, and its plots as files
- `verdict_table`: `render_verdicts`
"""
