"""`packer verify`: check a packed dataset."""

from __future__ import annotations

import json
import sys

import click

from packer.cli.command import AsJson, PackedSources, UserPath, command
from packer.cli.one_line_errors import NOT_RIGHT
from packer.cli.progress_bars import progress_bars
from packer.options import PackOptions, RunOptions, values_of
from packer.stores import AnyPath


@command(
    PackOptions,
    RunOptions,
    changes={
        "tokenizer": {"help": "Tokenizer of a --source of text, if its name in the manifest is not enough."},
        "workers": {"help": "Number of shards that are checked at a time."},
        "engine": {"help": "What checks the shards: threads of this machine, or a Ray cluster with the same storage."},
    },
    short_help="Check a packed dataset, also against its source.",
)
@click.argument("packed", type=UserPath())
def verify(
    packed: AnyPath, tokenizer: str | None, sources: PackedSources = (), as_json: AsJson = False, **values: object
) -> None:
    """Check the hashes, structure and figures of a PACKED dataset and, with --source, every token of the source.

    The exit code is 3 if anything is wrong.
    """
    from packer.pipeline.job import Job
    from packer.pipeline.verifying import verify as verify_rows
    from packer.shards.reader import read_manifest

    source = sources[0] if len(sources) == 1 else list(sources) or None
    with progress_bars() as progress:
        job = Job(progress=progress, **values_of(Job, values))
        faults = list(verify_rows(packed, source, tokenizer=tokenizer, job=job))
        manifest = None if faults else read_manifest(packed)
    if as_json:
        click.echo(json.dumps({"packed": str(packed), "source": source, "faults": faults}, indent=1))
    for fault in [] if as_json else faults:
        click.echo(f"packer: {packed}: {fault}", err=True)
    if faults:
        sys.exit(NOT_RIGHT)
    if manifest is not None and not as_json:
        scope = "hashes and structure" if source is None else "hashes, structure and every token of the source"
        tokens = manifest.totals.tokens_packed
        click.echo(f"{packed} is verified: {scope} ({manifest.rows:,} rows, {tokens:,} tokens)")
