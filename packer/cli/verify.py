"""`packer verify`: is a packed dataset what was packed?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from packer.cli.shared import UserPath, one_line_errors, progress_bars


@click.command()
@click.argument("packed", type=UserPath())
@click.option("--source", "sources", multiple=True, metavar="DATASET",
              help="Compare every token with what was packed; of a mixture, repeat it for each, in order.")  # fmt: skip
@click.option("--tokenizer", metavar="PATH_OR_ID", help="Where the tokenizer of a --source of text is.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def verify(packed: Path, sources: tuple[str, ...], tokenizer: str | None, as_json: bool, debug: bool) -> None:
    """Check the hashes, structure and figures of a PACKED dataset and, with --source, every token of the source."""
    with one_line_errors(debug=debug), progress_bars() as progress:
        from packer import pipeline
        from packer.shards import read_manifest

        source = sources[0] if len(sources) == 1 else list(sources) or None
        faults = list(pipeline.verify(packed, source, tokenizer=tokenizer, progress=progress))
        manifest = None if faults else read_manifest(packed)
    if as_json:
        click.echo(json.dumps({"packed": str(packed), "source": source, "faults": faults}, indent=1))
    for fault in [] if as_json else faults:
        click.echo(f"packer: {packed}: {fault}", err=True)
    if faults:
        sys.exit(1)
    if manifest is not None and not as_json:
        scope = "hashes and structure" if source is None else "hashes, structure and every token of the source"
        tokens = manifest.totals["tokens_packed"]
        click.echo(f"{packed} is right: {scope} ({manifest.packs:,} rows, {tokens:,} tokens)")
