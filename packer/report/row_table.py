"""Table of the segments in one row of a packed dataset."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from packer.report.plain_text import render_table

_SHOWN_TOKENS = 8
"""Tokens of a segment that are shown."""

_WIDEST = 40
"""Largest number of characters of a kept value."""


def render_row(
    row: Mapping[str, Any],
    *,
    decode: Callable[[Any], str] | None = None,
    kept: Sequence[str] = (),
    kept_tokens: Sequence[str] = (),
    group_by: str | None = None,
) -> str:
    """Return a table with one line per segment: its length, document, trained tokens, kept columns and first tokens.

    Args:
        row: row of a `PackedDataset`.
        decode: function from token ids to text; None to show the ids.
        kept: segment columns to show.
        kept_tokens: token columns to show, with the first values of each segment.
        group_by: name of the kept column by which documents were grouped, if any.
    """
    named = [f"{name} (group)" if name == group_by else name for name in kept]
    table = [["", "tokens", "document", "from", "trained", *named, "begins", *kept_tokens]]
    lengths = row.get("seq_tokens", row["seq_lengths"])
    place = 0
    for index, (extent, length, document) in enumerate(zip(row["seq_lengths"], lengths, row["doc_ids"], strict=True)):
        if document < 0:
            cells = [f"{extent:,}", "padding", "", "0", *[""] * (len(kept) + 1 + len(kept_tokens))]
        else:
            segment = slice(place, place + length)
            shown = slice(place, place + min(length, _SHOWN_TOKENS))
            cells = [
                f"{length:,}",
                _document(row, index),
                f"{row['doc_starts'][index]:,}",
                f"{(row['labels'][segment] >= 0).sum():,}" if "labels" in row else "?",
                *(_cell(row[name][index]) for name in kept),
                _first_tokens(row["input_ids"][segment], decode),
                *(" ".join(map(_cell, row[name][shown])) for name in kept_tokens),
            ]
        table.append([f"  {index}", *cells])
        place += extent
    return render_table(table, align="<>>>>" + "<" * (len(kept) + 1 + len(kept_tokens)))


def _document(row: Mapping[str, Any], index: int) -> str:
    """Name the document of a segment; in a mixture, with its source and repetition."""
    name = f"{row['doc_ids'][index]:,}"
    if "source_ids" in row and "copy" in row:
        name += f" of source {row['source_ids'][index]}, copy {row['copy'][index]}"
    return name


def _first_tokens(ids: Any, decode: Callable[[Any], str] | None) -> str:
    """Show the beginning of a segment, as text or as ids, in at most 60 characters."""
    text = " ".join(map(str, ids[:_SHOWN_TOKENS])) if decode is None else repr(decode(ids[:24]))[1:-1]
    return text[:60]


def _cell(value: Any) -> str:
    """Format a value of a kept column on one line of limited length: 0.1234567 -> 0.12346."""
    if value is None:
        return "null"
    if isinstance(value, (float, np.floating)):
        return f"{value:.5g}"
    text = repr(value)[1:-1] if isinstance(value, str) else " ".join(str(value).split())
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."
