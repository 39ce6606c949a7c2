"""`packer append`: add documents to a packed dataset."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import click

from packer.cli.command import command
from packer.cli.declared_options import UserPath, options, values_of
from packer.cli.progress_bars import Stopwatch, progress_bars
from packer.options import PackOptions
from packer.options.command_options import EngineOptions, JsonOption, OutputOptions, SummaryOption
from packer.stores import AnyPath


@command(resumes=True, short_help="Add documents to a packed dataset, in new shards.")
@click.argument("packed", type=UserPath())
@click.argument("dataset", nargs=-1, required=True)
@options(PackOptions, "tokenizer", help="Tokenizer of text, if its name in the manifest is not enough.")
@options(OutputOptions, "workers", "sync")
@options(OutputOptions, "overwrite", help="Discard the unfinished append of other documents.")
@options(EngineOptions)
@options(SummaryOption)
@options(JsonOption)
def append(
    packed: AnyPath, dataset: tuple[str, ...], tokenizer: str | None, verbose: bool, as_json: bool, **values: Any
) -> None:
    """Append the documents of DATASET to a PACKED dataset, in new shards.

    They are packed with the options of PACKED, and their numbers continue those of its documents. Existing shards do
    not change. Several paths are read as one dataset. Until the command ends, readers see the old dataset. An
    interrupted command continues where it stopped when it is run again.
    """
    from packer.pipeline import appending
    from packer.ranks import rank_of
    from packer.report.run_summary import render_append_summary

    engine_options = EngineOptions(**values_of(EngineOptions, values))
    place = rank_of(engine_options.rank, engine_options.ranks)
    with progress_bars(silently=place is not None and place.rank > 0) as progress:
        watch = Stopwatch()
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints what happens to nodes; stdout is for the result
            result = appending.append(
                packed,
                list(dataset),
                tokenizer=tokenizer,
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
        click.echo(f"{result.output} has these documents as its last generation: nothing to do")
    else:
        click.echo(render_append_summary(result.manifest, result.appended, output=str(packed), **took, verbose=verbose))
