"""`packer show`: the segments in a row of a packed dataset, or of a document, as a table, as text and as JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from packer.cli.command import UserPath, command
from packer.cli.report_files import Decode
from packer.cli.shared_options import AsJson, PackedSources
from packer.errors import PackerError
from packer.figures.plain_text import count_of, render_table
from packer.options import Option, PackOptions
from packer.options.option import GENERAL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from packer.loader.dataset import PackedDataset

_SHOWN_TOKENS = 8
"""Tokens of a segment that the table shows."""

_WIDEST = 40
"""Largest number of characters of a kept value in the table."""

_COLORS = ("cyan", "yellow", "green", "magenta", "blue")
"""Colors of segments, in turn."""

Document = Annotated[
    str | None,
    Option(
        "Show the segments of this document instead of a row; SOURCE:ID in a mixture, with sources from 0.",
        GENERAL,
        metavar="ID",
    ),
]


@command(
    PackOptions,
    changes={"tokenizer": {"help": "Show text instead of token ids."}},
    short_help="Show a row of a packed dataset, or a document.",
    context_settings={"ignore_unknown_options": True},  # -1 is a row, not an option
)
@click.argument("packed", type=UserPath())
@click.argument("row", type=int, required=False)
def show(
    packed: Path,
    row: int | None,
    tokenizer: str | None,
    document: Document = None,
    full: Annotated[bool, Option("Show all tokens, with trained ones marked.", GENERAL)] = False,
    sources: PackedSources = (),
    as_json: AsJson = False,
) -> None:
    """Show one ROW of a PACKED dataset, segment by segment, with its kept columns.

    Rows count from 0; -1 is the last one. The tokens of an index are read from its --source.
    """
    from packer.loader.dataset import load
    from packer.text import open_decoder

    if (row is None) == (document is None):
        raise click.UsageError("Give a ROW, or a --document.")
    dataset = load(packed, source=list(sources) or None)
    if dataset.manifest.options.lengths_column is not None:
        raise PackerError(
            f"{packed} was packed from lengths alone, so there are no tokens to show: packer.rows('{packed}') has "
            "the documents of each row"
        )
    if "input_ids" not in dataset.column_names:
        raise PackerError(
            f"{packed} is an index, whose rows have no tokens: name the dataset that was packed by --source"
        )
    decode = open_decoder(tokenizer) if tokenizer is not None else None
    if row is None:
        found = _rows_of_document(dataset, packed, str(document))
    elif -len(dataset) <= row < len(dataset):
        found = {row % len(dataset): segments_of(dataset, row)}
    else:
        raise PackerError(f"{packed} has no row {row}: there are {len(dataset):,}, from 0 to {len(dataset) - 1:,}")
    if as_json:
        rows = [{"row": number, "segments": _to_json(segments, decode)} for number, segments in found.items()]
        click.echo(json.dumps({"packed": str(packed), "rows": rows}, indent=1))
        return
    color = _wants_color()
    for number, segments in found.items():
        if full:
            text = _render_text(segments, decode, color=color)
        else:
            text = render_row(segments, decode, group_by=dataset.manifest.options.group_by, color=color)
        click.echo(text if row is not None else f"row {number:,}\n{text}", color=color)


def _wants_color() -> bool:
    """Return whether stdout is a terminal, unless NO_COLOR or FORCE_COLOR is set (no-color.org, force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _rows_of_document(dataset: PackedDataset, packed: Path, document: str) -> dict[int, list[RowSegment]]:
    """Return the segments of a document, by the rows that hold them."""
    mixture = dataset.manifest.source.mixture
    source_id, colon, doc_id = document.rpartition(":")
    if bool(colon) != bool(mixture) or not doc_id.isdecimal() or (colon and not source_id.isdecimal()):
        expected = f"SOURCE:ID, with SOURCE from 0 to {len(mixture) - 1}" if mixture else "the number of a document"
        raise PackerError(f"--document is {document!r}: give {expected}")
    chosen = (int(doc_id), int(source_id) if colon else None)
    rows = dataset.find(*chosen)
    if not rows:
        raise PackerError(f"{packed} holds no document {document}: it is empty, dropped, or not in the source")
    return {
        row: [each for each in segments_of(dataset, row) if (each.document, each.origin and each.origin[0]) == chosen]
        for row in rows
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSegment:
    """One segment of a row, or the padding at its end, which is document -1 without tokens."""

    number: int  # in the row, from 0
    extent: int  # tokens that it takes in the row, padding by `--align` included
    document: int
    origin: tuple[int, int] | None  # (source, copy) in a mixture
    start: int  # in its document
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32] | None
    kept: dict[str, Any]  # value of the segment by column
    kept_tokens: dict[str, NDArray[Any]]  # values of its tokens by column

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


def segments_of(dataset: PackedDataset, number: int) -> list[RowSegment]:
    """Return the segments of a row, with its kept columns."""
    from numpy.ma import masked

    row: Mapping[str, Any] = dataset[number]
    options, found, place = dataset.manifest.options, [], 0
    lengths = row.get("seq_tokens", row["seq_lengths"])
    has_origin = "source_ids" in row and "copy" in row
    for index, (extent, length, document) in enumerate(zip(row["seq_lengths"], lengths, row["doc_ids"], strict=True)):
        tokens = slice(place, place + (length if document >= 0 else 0))
        found.append(
            RowSegment(
                number=index,
                extent=int(extent),
                document=int(document),
                origin=(int(row["source_ids"][index]), int(row["copy"][index])) if has_origin else None,
                start=int(row["doc_starts"][index]),
                input_ids=row["input_ids"][tokens],
                labels=row["labels"][tokens] if "labels" in row else None,
                kept={name: None if row[name][index] is masked else row[name][index] for name in options.kept},
                kept_tokens={name: row[name][tokens] for name in options.keep_tokens},
            )
        )
        place += extent
    return found


def render_row(
    segments: Sequence[RowSegment], decode: Decode | None = None, *, group_by: str | None = None, color: bool = False
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


def _render_text(segments: Sequence[RowSegment], decode: Decode | None, *, color: bool) -> str:
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
        if not segment.is_padding:
            parts.append(_marked(segment, decode, color=color))
    return "\n".join(parts)


def _to_json(segments: Sequence[RowSegment], decode: Decode | None) -> list[dict[str, Any]]:
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
            "kept_tokens": {name: [*map(_json_value, values)] for name, values in segment.kept_tokens.items()},
        }
        for segment in segments
    ]


def _styled(segment: RowSegment, line: str) -> str:
    """Color the line of a segment; neighbors differ."""
    return click.style(line, dim=True) if segment.is_padding else click.style(line, fg=_COLORS[segment.number % 5])


def _marked(segment: RowSegment, decode: Decode | None, *, color: bool) -> str:
    """Return the tokens of a segment, run by run of trained and untrained ones."""
    ids = segment.input_ids
    trained = [True] * len(ids) if segment.labels is None else (segment.labels >= 0).tolist()
    texts, place = [], 0
    for is_trained, run in groupby(trained):
        first, place = place, place + len(list(run))
        text = " ".join(map(str, ids[first:place])) if decode is None else decode(ids[first:place])
        if color:
            text = click.style(text, bold=True) if is_trained else click.style(text, dim=True)
        elif is_trained and segment.labels is not None:
            text = f"[[{text}]]"
        texts.append(text)
    return (" " if decode is None else "").join(texts)


def _first_tokens(ids: NDArray[np.int32], decode: Decode | None) -> str:
    """Show the beginning of a segment, as text or as ids, in at most 60 characters."""
    text = " ".join(map(str, ids[:_SHOWN_TOKENS])) if decode is None else repr(decode(ids[:24]))[1:-1]
    return text[:60]


def _cell(value: object) -> str:
    """Format a value of a kept column on one line of limited length: 0.1234567 -> 0.12346."""
    if value is None:
        return "null"
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{value:.5g}"
    text = repr(value)[1:-1] if isinstance(value, str) else " ".join(str(value).split())
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _json_value(value: object) -> object:
    """A kept value that JSON can hold: a number, a truth value, a string, a list, an object or null, else a string.

    NaN, which is also a missing number, and infinity are null.
    """
    value = value.item() if hasattr(value, "item") else value  # of NumPy
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _json_value(each) for name, each in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
