"""`packer stats`: padding now, and packed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from packer.cli.reading import given_sources, group_options, seed_option, source_options
from packer.cli.shared import (
    algorithm_options,
    batch_size_option,
    one_line_errors,
    progress_bars,
    shared_options,
    text_options,
)
from packer.paths import expanded


@click.command()
@source_options
@click.option("--max-len", type=click.IntRange(1), default=4096, show_default=True, metavar="N",
              help="Tokens of a row; a packed dataset has its own.")  # fmt: skip
@batch_size_option
@algorithm_options
@text_options
@group_options
@seed_option
@shared_options
def stats(
    dataset: str | None,
    sources: tuple[str, ...],
    group_by: tuple[str, str] | None,
    batch_size: int,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Show the padding ratio of DATASET now and what packing makes of it, or how full a packed dataset is.

    The rows are as many as `pack` makes with the same options, also of a mixture, of groups and of pairs.
    """
    with one_line_errors(debug=debug), progress_bars() as progress:
        from packer import pipeline, report
        from packer.options import PackOptions
        from packer.shards.manifest import is_packed

        unicode = report.can_draw_blocks(sys.stdout.encoding)
        source, of_source = given_sources(dataset, sources, group_by)
        if dataset is not None and is_packed(Path(expanded(dataset))):
            packed = pipeline.packed_statistics(dataset)
            content, text = packed.to_json(), report.render_packed_stats(packed, unicode=unicode)
        else:
            found = pipeline.dataset_statistics(
                source,
                options=PackOptions(**of_source, **options),
                documents_per_step=batch_size,
                progress=progress,
            )
            content, text = found.to_json(), report.render_stats(found, unicode=unicode, mix_unit=options["mix_unit"])
    click.echo(json.dumps(content, indent=1) if as_json else text)
