"""The command show, which prints a row of a packed dataset, or a document."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import click

from packer.cli.command import UserPath, command
from packer.cli.printing import echo, echo_json, echo_styled, styled
from packer.cli.shared_options import AsJson, PackedSources
from packer.options import Option, ReadOptions
from packer.options.option import GENERAL
from packer.progress_bars import progress_bars

Document = Annotated[
    str | None,
    Option("Show the segments of this document instead of a row.", GENERAL, metavar="ID"),
]


@command(
    ReadOptions,
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

    Rows count from 0, which is shown by default; -1 is the last one. The tokens of an index are read from its --source.
    """
    from packer.pipeline import row_contents

    if row is not None and document is not None:
        raise click.UsageError("Give a ROW or a --document, not both.")
    with progress_bars():  # also shows warnings
        found = row_contents.show(
            packed, row, document=document, tokenizer=tokenizer, source=list(sources) or None, full=full
        )
    # See no-color.org and force-color.org.
    color = not os.environ.get("NO_COLOR") and (bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty())
    if as_json:
        echo_json(found.to_dict())
    elif color:
        echo_styled(found.text(styled))
    else:
        echo(found.text())
