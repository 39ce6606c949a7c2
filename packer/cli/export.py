"""`packer export`: write a packed dataset as files for another trainer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from packer.cli.command import command
from packer.cli.declared_options import UserPath, options
from packer.cli.progress_bars import progress_bars
from packer.options.command_options import ExportOptions, JsonOption, OutputOptions


@command(short_help="Write a packed dataset with the columns of another trainer.")
@click.argument("packed", type=UserPath())
@options(ExportOptions)
@options(OutputOptions, "output", default_words="PACKED-TO")
@options(OutputOptions, without=("output",))
@options(JsonOption)
def export(packed: Path, as_json: bool, **values: Any) -> None:
    """Write a PACKED dataset as Parquet, with the columns that a trainer reads.

    \b
    megatron     input_ids, loss_mask, seq_start_id: packed sequences of
                 Megatron-Bridge and NeMo
    maxtext      inputs, targets, and the _position and _segmentation of both
    torchtitan   input, positions, labels (shifted)
    torchtune    tokens, labels, input_pos, seq_lens
    parquet      all columns as they are

    Every shard becomes one file. An interrupted export never looks complete.
    """  # noqa: D301  (an escaped b tells click to keep the lines)
    from packer import exporting

    with progress_bars() as progress:
        begun = time.perf_counter()
        result = exporting.export(packed, progress=progress, **values)
        seconds = time.perf_counter() - begun
    record = result.export.to_dict()
    if as_json:
        content = {"output": str(result.output), "found_complete": result.found_complete, "seconds": seconds}
        click.echo(json.dumps({**content, **record}, indent=1))
    elif result.found_complete:
        made = "exported in the same way from the same rows"
        click.echo(f"{result.output} is complete, {made}: nothing to do (its files have the recorded sizes)")
    else:
        from packer.report.run_summary import render_export

        click.echo(render_export(record, output=str(result.output), seconds=seconds))
