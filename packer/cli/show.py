"""`packer show`: one row, segment by segment."""

from __future__ import annotations

from pathlib import Path

import click

from packer.cli.shared import UserPath, one_line_errors
from packer.errors import PackerError


@click.command(context_settings={"ignore_unknown_options": True})  # -1 is a row, not an option
@click.argument("packed", type=UserPath())
@click.argument("row", type=int)
@click.option("--tokenizer", metavar="PATH_OR_ID", help="Show text instead of token ids.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def show(packed: Path, row: int, tokenizer: str | None, debug: bool) -> None:
    """Show one ROW of a PACKED dataset, segment by segment, with the columns that were kept."""
    with one_line_errors(debug=debug):
        from packer.loader import load
        from packer.options import PackOptions
        from packer.report import render_row
        from packer.text import open_decoder

        dataset = load(packed)
        if not -len(dataset) <= row < len(dataset):
            raise PackerError(f"{packed} has no row {row}: there are {len(dataset):,}, from 0 to {len(dataset) - 1:,}")
        decode = open_decoder(tokenizer) if tokenizer is not None else None
        options = PackOptions.from_dict(dataset.manifest.options)
        click.echo(
            render_row(
                dataset[row],
                decode=decode,
                kept=options.kept,
                kept_tokens=options.keep_tokens,
                group_by=options.group_by,
            )
        )
