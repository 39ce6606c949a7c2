"""`packer append`: add documents to a packed dataset."""

from __future__ import annotations

from functools import partial

import click

from packer.cli.command import AsJson, UserPath, Verbose, command
from packer.cli.writing_commands import write_output
from packer.options import PackOptions, RunOptions
from packer.stores import AnyPath


@command(
    PackOptions,
    RunOptions,
    changes={
        "tokenizer": {"help": "Tokenizer of text, if its name in the manifest is not enough."},
        "overwrite": {"help": "Discard the unfinished append of other documents."},
    },
    resumes=True,
    short_help="Add documents to a packed dataset, in new shards.",
)
@click.argument("packed", type=UserPath())
@click.argument("dataset", nargs=-1, required=True)
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
    from packer.cli.run_summary import append_summary
    from packer.pipeline import appending

    write_output(
        appending.append,
        packed,
        list(dataset),
        tokenizer=tokenizer,
        values=values,
        summary=partial(append_summary, verbose=verbose),
        complete="has these documents as its last generation",
        as_json=as_json,
    )
