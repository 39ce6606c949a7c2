"""Headings under which `--help` and docs/reference/commands/ list options."""

REQUIRED = "Required"
READING = "Reading"
TEXT = "Text and chats"
ROWS = "Rows"
LONG = "Long documents"
MIXTURES = "Mixtures and groups"
OUTPUT = "Output"
RANKS = "Several processes"
GENERAL = "General"

HEADINGS = (REQUIRED, READING, TEXT, ROWS, LONG, MIXTURES, OUTPUT, RANKS, GENERAL)
"""All of them, in the order of the help."""
