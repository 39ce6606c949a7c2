"""`packer materialize`: write the rows of an index with their tokens."""

from __future__ import annotations

import click

from packer.cli.command import AsJson, PackedSources, UserPath, Verbose, command, options
from packer.cli.writing_commands import print_result, run_job
from packer.options.command_options import EngineOptions, OutputOptions
from packer.stores import AnyPath


@command(resumes=True)
@click.argument("index", type=UserPath())
@options(OutputOptions, "output", default=..., default_words=None, help="Folder to write, here or in object storage.")
@options(OutputOptions, without=("output",))
@options(EngineOptions)
def materialize(
    index: AnyPath, *, sources: PackedSources, verbose: Verbose = False, as_json: AsJson = False, **values: object
) -> None:
    """Write the rows of an INDEX with their tokens.

    INDEX is the output of `packer pack --index-only`. The result is the same as packing without --index-only, and
    appending the same documents. An interrupted command continues where it stopped when it is run again.
    """
    from packer.cli.run_summary import render_manifest_summary
    from packer.pipeline import materializing

    result, took = run_job(materializing.materialize, index, list(sources), values=values)
    if result.finished_elsewhere:  # the rank that finished it prints the summary
        return
    print_result(
        result,
        result.manifest.to_dict(),
        took,
        lambda: render_manifest_summary(result.manifest, rows=None, output=str(result.output), **took, verbose=verbose),
        complete=f"is complete, with the rows of this index: nothing to do ({result.checked})",
        as_json=as_json,
    )
