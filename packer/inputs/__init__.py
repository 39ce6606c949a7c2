"""Inputs: files and datasets in memory, which yield their documents as checked Arrow lists.

`documents.py` says what an input is, `formats.py` which files are read, and `format_reader.py` what the reader of a
format is. Lists in Arrow files and in tables are addressed in place (`mapped_files.py`, `token_tables.py`). All else is
decoded, and checked on the way (`list_checks.py`, `column_types.py`).
"""
