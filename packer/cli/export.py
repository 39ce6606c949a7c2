"""`packer export`: a packed dataset in the files that another trainer reads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from packer.cli.shared import UserPath, one_line_errors, progress_bars

TARGET_NAMES = ("megatron", "maxtext", "torchtitan", "torchtune", "parquet")  # as in packer.exporting, which imports
COMPRESSIONS = ("zstd", "snappy", "none")  # numpy; a test compares them


@click.command()
@click.argument("packed", type=UserPath())
@click.option("--to", type=click.Choice(TARGET_NAMES), required=True, help="Whose columns; parquet: all, as they are.")
@click.option("-o", "--output", type=UserPath(), help="Folder to write [default: PACKED-TO].")
@click.option("--compression", type=click.Choice(COMPRESSIONS), default="zstd", show_default=True,
              help="Of the Parquet pages.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Files written at a time [default: the cores].")
@click.option("--no-sync", is_flag=True, help="Skip fsync: faster, not safe against a power failure.")
@click.option("--overwrite", is_flag=True, help="Replace an export that is there, when the new one is whole.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def export(
    packed: Path,
    to: str,
    output: Path | None,
    compression: str,
    workers: int | None,
    no_sync: bool,
    overwrite: bool,
    as_json: bool,
    debug: bool,
) -> None:
    """Write a PACKED dataset as Parquet, with the columns that a trainer reads.

    \b
    megatron     input_ids, loss_mask, seq_start_id: packed sequences of Megatron-Bridge and NeMo
    maxtext      inputs, targets, and the _position and _segmentation of both
    torchtitan   input, positions, labels (shifted)
    torchtune    tokens, labels, input_pos, seq_lens
    parquet      the columns as they are

    A shard becomes a file. Killed at any instant, the output is whole or not there.
    """  # noqa: D301  (an escaped b is how click is told to keep lines)
    with one_line_errors(debug=debug), progress_bars() as progress:
        from packer import exporting

        begun = time.perf_counter()
        record, out = exporting.export(
            packed,
            output,
            to=to,
            compression=compression,
            workers=workers,
            sync=not no_sync,
            overwrite=overwrite,
            progress=progress,
        )
        seconds = time.perf_counter() - begun
    if as_json:
        click.echo(json.dumps({"output": str(out), "seconds": seconds, **record.to_dict()}, indent=1))
    else:
        from packer.report import render_export

        click.echo(render_export(record.to_dict(), output=str(out), seconds=seconds))
