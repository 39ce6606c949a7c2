"""`packer materialize`: write the rows of an index with their tokens."""

from __future__ import annotations

from functools import partial

import click

from packer.cli.command import AsJson, PackedSources, UserPath, Verbose, command
from packer.cli.writing_commands import write_output
from packer.options import RunOptions
from packer.stores import AnyPath


@command(
    RunOptions,
    changes={"output": {"default": ..., "default_words": None, "help": "Folder to write, here or in object storage."}},
    resumes=True,
)
@click.argument("index", type=UserPath())
def materialize(
    index: AnyPath, *, sources: PackedSources, verbose: Verbose = False, as_json: AsJson = False, **values: object
) -> None:
    """Write the rows of an INDEX with their tokens.

    INDEX is the output of `packer pack --index-only`. The result is the same as packing without --index-only, and
    appending the same documents. An interrupted command continues where it stopped when it is run again.
    """
    from packer.cli.run_summary import pack_summary
    from packer.pipeline import materializing

    write_output(
        materializing.materialize,
        index,
        list(sources),
        values=values,
        summary=partial(pack_summary, verbose=verbose),
        complete="is complete, with the rows of this index",
        as_json=as_json,
    )
