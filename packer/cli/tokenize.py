"""`packer tokenize`: write a dataset of text as a tokenized one."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from packer.cli.command import command
from packer.cli.declared_options import options, values_of
from packer.cli.progress_bars import progress_bars
from packer.cli.source_options import source_of
from packer.facts import REJECTED
from packer.options import PackOptions
from packer.options.checks import TEXT_OPTIONS
from packer.options.command_options import JsonOption, OutputOptions


@command(resumes=True, short_help="Tokenize a dataset once, and keep the tokens.")
@click.argument("dataset", nargs=-1, required=True)
@options(PackOptions, "tokenizer", *TEXT_OPTIONS, "pairs", "keep", "split", "on_error")
@options(OutputOptions, "output", default_words="DATASET-tokenized")
@options(OutputOptions, without=("output",))
@options(JsonOption)
def tokenize(dataset: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """Tokenize DATASET once and store the tokens in the format of datasets.save_to_disk.

    DATASET is one path or several, as for `pack` with --tokenizer. Packing the output gives the same rows as packing
    the text. An interrupted command continues where it stopped when it is run again.
    """
    from packer.pipeline import tokenizing

    source = source_of(dataset)
    text_options = PackOptions(max_len=2, long="error", **values_of(PackOptions, values))  # rows that fit any text
    with progress_bars() as progress:
        begun = time.perf_counter()
        result = tokenizing.tokenize(
            source, options=text_options, progress=progress, **values_of(OutputOptions, values)
        )
        seconds = time.perf_counter() - begun
    if as_json:
        content = {"output": str(result.output), "found_complete": result.found_complete, "seconds": seconds}
        if result.report.documents_rejected is not None:
            content["rejected"] = str(result.output / REJECTED)
        click.echo(json.dumps({**content, **result.report.to_dict()}, indent=1))
    elif result.found_complete:
        made = "tokenized in the same way from the same source"
        click.echo(f"{result.output} is complete, {made}: nothing to do ({result.checked})")
    else:
        from packer.report.run_summary import render_tokenized

        click.echo(render_tokenized(result.report, output=str(result.output), seconds=seconds))
