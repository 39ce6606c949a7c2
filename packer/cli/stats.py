"""`packer stats`: padding now, and packed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from packer.cli.shared import (
    algorithm_options,
    batch_size_option,
    one_line_errors,
    pack_options,
    progress_bars,
    shared_options,
)


@click.command()
@click.argument("dataset")
@click.option("--max-len", type=click.IntRange(1), default=4096, show_default=True, metavar="N",
              help="Tokens of a row; a packed dataset has its own.")  # fmt: skip
@batch_size_option
@algorithm_options
@shared_options
def stats(
    dataset: str,
    max_len: int,
    batch_size: int,
    algorithm: str,
    gap: float | None,
    time_limit: float | None,
    max_segments: int | None,
    long_policy: str,
    split: str | None,
    input_column: str,
    labels_column: str,
    as_json: bool,
    debug: bool,
) -> None:
    """Show the padding ratio of DATASET now and what packing makes of it, or how full a packed dataset is."""
    with one_line_errors(debug=debug), progress_bars() as progress:
        from packer import pipeline, report
        from packer.shards.manifest import is_packed

        unicode = report.can_draw_blocks(sys.stdout.encoding)
        if is_packed(Path(dataset)):
            packed = pipeline.packed_statistics(dataset)
            content, text = packed.to_json(), report.render_packed_stats(packed, unicode=unicode)
        else:
            options = pack_options(
                max_len, max_segments, long_policy, split, input_column, labels_column,
                algorithm=algorithm, gap=gap, time_limit=time_limit,
            )  # fmt: skip
            found = pipeline.dataset_statistics(
                dataset, options=options, documents_per_step=batch_size, progress=progress
            )
            content, text = found.to_json(), report.render_stats(found, unicode=unicode)
    click.echo(json.dumps(content, indent=1) if as_json else text)
