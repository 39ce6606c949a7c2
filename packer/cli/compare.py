"""`packer compare`: every algorithm, side by side."""

from __future__ import annotations

import json
from typing import Any

import click

from packer.cli.reading import given_sources, group_options, seed_option, source_options
from packer.cli.shared import (
    ALGORITHM_NAMES,
    batch_size_option,
    one_line_errors,
    progress_bars,
    shared_options,
    text_options,
)


@click.command()
@source_options
@click.option("--max-len", type=click.IntRange(1), required=True, metavar="N", help="Tokens of a row.")
@click.option("--algorithm", "algorithms", type=ALGORITHM_NAMES, multiple=True,
              help="Only this one; repeat it for several [default: all].")  # fmt: skip
@batch_size_option
@text_options
@group_options
@seed_option
@shared_options
def compare(
    dataset: str | None,
    sources: tuple[str, ...],
    group_by: tuple[str, str] | None,
    algorithms: tuple[str, ...],
    batch_size: int,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Run every algorithm on DATASET and show what each makes of it; nothing is written.

    DATASET is what `pack` takes, or a histogram: a file NAME.csv with the header length,count.
    """
    with one_line_errors(debug=debug), progress_bars() as progress:
        from packer import pipeline, report
        from packer.options import PackOptions

        source, of_source = given_sources(dataset, sources, group_by)
        found = pipeline.compare(
            source,
            options=PackOptions(**of_source, **options),
            algorithms=algorithms,
            documents_per_step=batch_size,
            progress=progress,
        )
        text = json.dumps(found.to_json(), indent=1) if as_json else report.render_comparison(found)
    click.echo(text)
