"""`packer show`: print a row of a packed dataset."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from packer.cli.command import AsJson, PackedSources, UserPath, command
from packer.errors import PackerError
from packer.options import Option, PackOptions
from packer.options.option import GENERAL

if TYPE_CHECKING:
    from packer.cli.row_table import RowSegment
    from packer.loader.dataset import PackedDataset


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
    from packer.cli import row_table
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
    found = _rows(dataset, packed, row) if row is not None else _rows_of_document(dataset, packed, str(document))
    color, texts = _wants_color(), []
    for number, segments in found.items():
        if full:
            text = row_table.render_text(segments, decode=decode, color=color)
        else:
            group_by = dataset.manifest.options.group_by
            text = row_table.render_row(segments, decode=decode, group_by=group_by, color=color)
        texts.append(text if row is not None else f"row {number:,}\n{text}")
    if as_json:
        rows = [
            {"row": number, "segments": row_table.row_to_json(each, decode=decode)} for number, each in found.items()
        ]
        click.echo(json.dumps({"packed": str(packed), "rows": rows}, indent=1))
    else:
        click.echo("\n".join(texts), color=color)


def _wants_color() -> bool:
    """Return whether stdout is a terminal, unless NO_COLOR or FORCE_COLOR is set (no-color.org, force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _rows(dataset: PackedDataset, packed: Path, row: int) -> dict[int, list[RowSegment]]:
    """The segments of a row, by its number."""
    if not -len(dataset) <= row < len(dataset):
        raise PackerError(f"{packed} has no row {row}: there are {len(dataset):,}, from 0 to {len(dataset) - 1:,}")
    return {row % len(dataset): _segments(dataset, row)}


def _rows_of_document(dataset: PackedDataset, packed: Path, document: str) -> dict[int, list[RowSegment]]:
    """The segments of a document, by the rows that hold them."""
    mixture = dataset.manifest.source.mixture
    source_id, colon, doc_id = document.rpartition(":")
    if bool(colon) != bool(mixture) or not doc_id.isdecimal() or (colon and not source_id.isdecimal()):
        expected = f"SOURCE:ID, with SOURCE from 0 to {len(mixture) - 1}" if mixture else "the number of a document"
        raise PackerError(f"--document is {document!r}: give {expected}")
    chosen = (int(doc_id), int(source_id) if colon else None)
    rows = dataset.find(*chosen)
    if not rows:
        raise PackerError(f"{packed} holds no document {document}: it is empty, dropped, or not in the source")
    found = {}
    for row in rows:
        segments = _segments(dataset, row)
        found[row] = [each for each in segments if (each.document, each.origin and each.origin[0]) == chosen]
    return found


def _segments(dataset: PackedDataset, row: int) -> list[RowSegment]:
    from packer.cli.row_table import segments_of

    made_with = dataset.manifest.options
    return segments_of(dataset[row], kept=made_with.kept, kept_tokens=made_with.keep_tokens)
