"""`packer materialize`: write the rows of an index with their tokens."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import MISSING
from typing import Any

import click

from packer.cli.command import command
from packer.cli.declared_options import UserPath, options, values_of
from packer.cli.progress_bars import Stopwatch, progress_bars
from packer.options.command_options import EngineOptions, JsonOption, OutputOptions, SourceOption, SummaryOption
from packer.stores import AnyPath


@command(resumes=True)
@click.argument("index", type=UserPath())
@options(SourceOption, default=MISSING)
@options(
    OutputOptions, "output", default=MISSING, default_words=None, help="Folder to write, here or in object storage."
)
@options(OutputOptions, without=("output",))
@options(EngineOptions)
@options(SummaryOption)
@options(JsonOption)
def materialize(index: AnyPath, sources: tuple[str, ...], verbose: bool, as_json: bool, **values: Any) -> None:
    """Write the rows of an INDEX with their tokens.

    INDEX is the output of `packer pack --index-only`. The result is the same as packing without --index-only, and
    appending the same documents. An interrupted command continues where it stopped when it is run again.
    """
    from packer.pipeline import materializing
    from packer.ranks import rank_of
    from packer.report.run_summary import render_manifest_summary

    engine_options = EngineOptions(**values_of(EngineOptions, values))
    place = rank_of(engine_options.rank, engine_options.ranks)
    with progress_bars(silently=place is not None and place.rank > 0) as progress:
        watch = Stopwatch()
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints what happens to nodes; stdout is for the result
            result = materializing.materialize(
                index,
                list(sources),
                engine_options=engine_options,
                progress=progress,
                **values_of(OutputOptions, values),
            )
        took = watch.read()
    if result.finished_elsewhere:  # the rank that finished it prints the summary
        return
    if as_json:
        content = {"output": str(result.output), "found_complete": result.found_complete, **took}
        click.echo(json.dumps({**content, **result.manifest.to_dict()}, indent=1))
    elif result.found_complete:
        click.echo(f"{result.output} is complete, with the rows of this index: nothing to do ({result.checked})")
    else:
        summary = render_manifest_summary(
            result.manifest, rows=None, output=str(result.output), **took, verbose=verbose
        )
        click.echo(summary)
