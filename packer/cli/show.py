"""`packer show`: print a row of a packed dataset."""

from __future__ import annotations

from pathlib import Path

import click

from packer.cli.command import command
from packer.cli.declared_options import UserPath, options
from packer.errors import PackerError
from packer.options import PackOptions


@command(context_settings={"ignore_unknown_options": True})  # -1 is a row, not an option
@click.argument("packed", type=UserPath())
@click.argument("row", type=int)
@options(PackOptions, "tokenizer", help="Show text instead of token ids.")
def show(packed: Path, row: int, tokenizer: str | None) -> None:
    """Show one ROW of a PACKED dataset, segment by segment, with its kept columns."""
    from packer.loader import load
    from packer.report import render_row
    from packer.text import open_decoder

    dataset = load(packed)
    if not -len(dataset) <= row < len(dataset):
        raise PackerError(f"{packed} has no row {row}: there are {len(dataset):,}, from 0 to {len(dataset) - 1:,}")
    decode = open_decoder(tokenizer) if tokenizer is not None else None
    made_with = dataset.manifest.options
    click.echo(
        render_row(
            dataset[row],
            decode=decode,
            kept=made_with.kept,
            kept_tokens=made_with.keep_tokens,
            group_by=made_with.group_by,
        )
    )
