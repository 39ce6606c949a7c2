"""`packer append`: add documents to a packed dataset."""

from __future__ import annotations

import click

from packer.cli.command import AsJson, UserPath, Verbose, command, options
from packer.cli.writing_commands import print_result, run_job
from packer.options import PackOptions
from packer.options.command_options import EngineOptions, OutputOptions
from packer.stores import AnyPath


@command(resumes=True, short_help="Add documents to a packed dataset, in new shards.")
@click.argument("packed", type=UserPath())
@click.argument("dataset", nargs=-1, required=True)
@options(PackOptions, "tokenizer", help="Tokenizer of text, if its name in the manifest is not enough.")
@options(OutputOptions, "workers", "sync")
@options(OutputOptions, "overwrite", help="Discard the unfinished append of other documents.")
@options(EngineOptions)
def append(
    packed: AnyPath,
    dataset: tuple[str, ...],
    tokenizer: str | None,
    verbose: Verbose = False,
    as_json: AsJson = False,
    **values: object,
) -> None:
    """Append the documents of DATASET to a PACKED dataset, in new shards.

    They are packed with the options of PACKED, and their numbers continue those of its documents. Existing shards do
    not change. Several paths are read as one dataset. Until the command ends, readers see the old dataset. An
    interrupted command continues where it stopped when it is run again.
    """
    from packer.cli.run_summary import render_append_summary
    from packer.pipeline import appending

    result, took = run_job(appending.append, packed, list(dataset), values=values, tokenizer=tokenizer)
    if result.finished_elsewhere:  # the rank that finished it prints the summary
        return
    print_result(
        result,
        result.manifest.to_dict(),
        took,
        lambda: render_append_summary(result.manifest, result.appended, output=str(packed), **took, verbose=verbose),
        complete="has these documents as its last generation: nothing to do",
        as_json=as_json,
    )
