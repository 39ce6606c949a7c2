"""The segments in one row of a packed dataset: as a table, as text, and as JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from packer.cli.report_files import Decode
from packer.figures.plain_text import count_of, render_table

_SHOWN_TOKENS = 8
"""Tokens of a segment that the table shows."""

_WIDEST = 40
"""Largest number of characters of a kept value in the table."""

_COLORS = ("cyan", "yellow", "green", "magenta", "blue")
"""Colors of segments, in turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSegment:
    """One segment of a row, or the padding at its end."""

    number: int
    """Position in the row, from 0."""

    extent: int
    """Tokens that it takes in the row, padding by `--align` included."""

    document: int
    """Index of the document; -1 for padding."""

    origin: tuple[int, int] | None
    """(source, copy) in a mixture, otherwise None."""

    start: int
    """Offset of the segment in its document."""

    input_ids: NDArray[np.int32]
    """(tokens,) token ids; empty for padding."""

    labels: NDArray[np.int32] | None
    """(tokens,) labels; None if the dataset has none."""

    kept: dict[str, Any]
    """Kept values of the segment, by column."""

    kept_tokens: dict[str, NDArray[Any]]
    """(tokens,) kept values of its tokens, by column."""

    @property
    def is_padding(self) -> bool:
        """Whether this is the padding at the end of a row."""
        return self.document < 0

    @property
    def name(self) -> str:
        """Name of the document; in a mixture, with its source and copy."""
        origin = "" if self.origin is None else " of source {}, copy {}".format(*self.origin)
        return "padding" if self.is_padding else f"{self.document:,}{origin}"

    @property
    def trained(self) -> str:
        """Number of trained tokens, "?" if the dataset has no labels."""
        return "?" if self.labels is None else f"{(self.labels >= 0).sum():,}"


def segments_of(
    row: Mapping[str, Any], *, kept: Sequence[str] = (), kept_tokens: Sequence[str] = ()
) -> list[RowSegment]:
    """Return the segments of a row of a `PackedDataset`, with kept columns of a value per segment and per token."""
    found, place = [], 0
    lengths = row.get("seq_tokens", row["seq_lengths"])
    has_origin = "source_ids" in row and "copy" in row
    for number, (extent, length, document) in enumerate(zip(row["seq_lengths"], lengths, row["doc_ids"], strict=True)):
        tokens = slice(place, place + (length if document >= 0 else 0))
        found.append(
            RowSegment(
                number=number,
                extent=int(extent),
                document=int(document),
                origin=(int(row["source_ids"][number]), int(row["copy"][number])) if has_origin else None,
                start=int(row["doc_starts"][number]),
                input_ids=row["input_ids"][tokens],
                labels=row["labels"][tokens] if "labels" in row else None,
                kept={name: None if row[name][number] is np.ma.masked else row[name][number] for name in kept},
                kept_tokens={name: row[name][tokens] for name in kept_tokens},
            )
        )
        place += extent
    return found


def render_row(
    segments: Sequence[RowSegment], *, decode: Decode | None = None, group_by: str | None = None, color: bool = False
) -> str:
    """Return a table with one line per segment: its length, document, trained tokens, kept columns and first tokens.

    Tokens are shown as text if they can be decoded. `group_by` is the kept column by which documents were grouped.
    """
    kept, kept_tokens = list(segments[0].kept), list(segments[0].kept_tokens)
    named = [f"{name} (group)" if name == group_by else name for name in kept]
    table = [["", "tokens", "document", "from", "trained", *named, "begins", *kept_tokens]]
    for segment in segments:
        if segment.is_padding:
            cells = [f"{segment.extent:,}", "padding", "", "0", *[""] * (len(kept) + 1 + len(kept_tokens))]
        else:
            cells = [
                f"{len(segment.input_ids):,}",
                segment.name,
                f"{segment.start:,}",
                segment.trained,
                *map(_cell, segment.kept.values()),
                _first_tokens(segment.input_ids, decode),
                *(" ".join(map(_cell, values[:_SHOWN_TOKENS])) for values in segment.kept_tokens.values()),
            ]
        table.append([f"  {segment.number}", *cells])
    head, *lines = render_table(table, align="<>>>>" + "<" * (len(kept) + 1 + len(kept_tokens))).split("\n")
    if color:
        lines = [_styled(segment, line) for segment, line in zip(segments, lines, strict=True)]
    return "\n".join([head, *lines])


def render_text(segments: Sequence[RowSegment], *, decode: Decode | None = None, color: bool = False) -> str:
    """Return all tokens of segments, with trained ones distinguished from their context.

    Trained tokens are bold and context is dim; without color, trained tokens are between [[ and ]].
    """
    parts = []
    for segment in segments:
        if segment.is_padding:
            head = f"segment {segment.number}: padding, {count_of(segment.extent, 'token')}"
        else:
            last = segment.start + len(segment.input_ids)
            head = f"segment {segment.number}: document {segment.name}, tokens {segment.start:,} to {last - 1:,}, "
            head += f"{segment.trained} trained"
        parts.append(_styled(segment, head) if color else head)
        parts += [_marked(segment, decode, color=color)] * (not segment.is_padding)
    return "\n".join(parts)


def row_to_json(segments: Sequence[RowSegment], *, decode: Decode | None = None) -> list[dict[str, Any]]:
    """Return the segments as JSON values: all tokens, labels and kept columns, with the text if it can be decoded."""
    return [
        {
            "segment": segment.number,
            "extent": segment.extent,
            "doc_id": segment.document,
            "doc_start": segment.start,
            **({} if segment.origin is None else dict(zip(("source_id", "copy"), segment.origin, strict=True))),
            "input_ids": segment.input_ids.tolist(),
            **({} if segment.labels is None else {"labels": segment.labels.tolist()}),
            **({} if decode is None else {"text": decode(segment.input_ids)}),
            "kept": {name: _json_value(value) for name, value in segment.kept.items()},
            "kept_tokens": {
                name: [_json_value(value) for value in values] for name, values in segment.kept_tokens.items()
            },
        }
        for segment in segments
    ]


def _styled(segment: RowSegment, line: str) -> str:
    """Color the line of a segment; neighbors differ."""
    return click.style(line, dim=True) if segment.is_padding else click.style(line, fg=_COLORS[segment.number % 5])


def _marked(segment: RowSegment, decode: Decode | None, *, color: bool) -> str:
    """Return the tokens of a segment, run by run of trained and untrained ones."""
    texts = []
    for is_trained, ids in _runs(segment):
        text = " ".join(map(str, ids)) if decode is None else decode(ids)
        if color:
            text = click.style(text, bold=True) if is_trained else click.style(text, dim=True)
        elif is_trained and segment.labels is not None:
            text = f"[[{text}]]"
        texts.append(text)
    return (" " if decode is None else "").join(texts)


def _runs(segment: RowSegment) -> Iterator[tuple[bool, NDArray[np.int32]]]:
    """Yield (trained, token ids) of the longest runs of tokens that are all trained, or none of them."""
    trained = np.ones(len(segment.input_ids), np.bool_) if segment.labels is None else segment.labels >= 0
    edges = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(trained)]
    for first, last in pairwise(edges):
        if last > first:
            yield bool(trained[first]), segment.input_ids[first:last]


def _first_tokens(ids: NDArray[np.int32], decode: Decode | None) -> str:
    """Show the beginning of a segment, as text or as ids, in at most 60 characters."""
    text = " ".join(map(str, ids[:_SHOWN_TOKENS])) if decode is None else repr(decode(ids[:24]))[1:-1]
    return text[:60]


def _cell(value: object) -> str:
    """Format a value of a kept column on one line of limited length: 0.1234567 -> 0.12346."""
    if value is None:
        return "null"
    if isinstance(value, (float, np.floating)):
        return f"{value:.5g}"
    text = repr(value)[1:-1] if isinstance(value, str) else " ".join(str(value).split())
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _json_value(value: object) -> object:
    """A kept value that JSON can hold: a number, a truth value, a string, a list, an object or null, else a string.

    NaN, which is also a missing number, and infinity are null.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _json_value(each) for name, each in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
