"""`packer tokenize`: text to a tokenized dataset that is kept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from packer.cli.shared import UserPath, one_line_errors, progress_bars, text_options


@click.command()
@click.argument("dataset")
@click.option("-o", "--output", type=UserPath(), help="Folder to write [default: DATASET-tokenized].")
@text_options
@click.option("--keep", multiple=True, metavar="COLUMN",
              help="Keep this column of the source beside the tokens; repeat it for several.")  # fmt: skip
@click.option(
    "--split",
    metavar="NAME",
    help="Split of a DatasetDict, a Hub dataset, or a folder with files like train-0.parquet.",
)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Threads at work [default: the cores].")
@click.option("--no-sync", is_flag=True, help="Skip fsync: faster, not safe against a power failure.")
@click.option("--overwrite", is_flag=True, help="Replace the output, at one stroke when the new dataset is whole.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def tokenize(
    dataset: str,
    output: Path | None,
    workers: int | None,
    no_sync: bool,
    overwrite: bool,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Tokenize DATASET once and keep it, as datasets.save_to_disk would.

    DATASET is what `pack` takes with --tokenizer. `packer pack` makes the same rows of the output as of the text, and
    datasets.load_from_disk opens it. Killed at any instant, the same command goes on where it stopped.
    """
    with one_line_errors(debug=debug, resumes=True), progress_bars() as progress:
        from packer import pipeline
        from packer.options import PackOptions

        begun = time.perf_counter()
        result = pipeline.tokenize(
            dataset,
            output,
            options=PackOptions(max_len=1, **options),
            workers=workers,
            sync=not no_sync,
            overwrite=overwrite,
            progress=progress,
        )
        seconds = time.perf_counter() - begun
    if as_json:
        content = {"output": str(result.output), "found_complete": result.found_complete, "seconds": seconds}
        click.echo(json.dumps({**content, **result.report}, indent=1))
    elif result.found_complete:
        made = "tokenized in the same way from the same source"
        click.echo(f"{result.output} is complete, {made}: nothing to do ({result.checked})")
    else:
        from packer.report import render_tokenized

        click.echo(render_tokenized(result.report, output=str(result.output), seconds=seconds))
