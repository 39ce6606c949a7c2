"""`packer compare`: every algorithm, side by side."""

from __future__ import annotations

import json

import click

from packer.cli.shared import (
    ALGORITHM_NAMES,
    batch_size_option,
    one_line_errors,
    pack_options,
    progress_bars,
    shared_options,
)


@click.command()
@click.argument("dataset")
@click.option("--max-len", type=click.IntRange(1), required=True, metavar="N", help="Tokens of a row.")
@click.option("--algorithm", "algorithms", type=ALGORITHM_NAMES, multiple=True,
              help="Only this one; repeat it for several [default: all].")  # fmt: skip
@batch_size_option
@shared_options
def compare(
    dataset: str,
    max_len: int,
    algorithms: tuple[str, ...],
    batch_size: int,
    max_segments: int | None,
    long_policy: str,
    split: str | None,
    input_column: str,
    labels_column: str,
    as_json: bool,
    debug: bool,
) -> None:
    """Run every algorithm on DATASET and show what each makes of it; nothing is written.

    DATASET is what `pack` takes, or a histogram: a file NAME.csv with the header length,count.
    """
    with one_line_errors(debug=debug), progress_bars() as progress:
        from packer import pipeline, report

        found = pipeline.compare(
            dataset,
            options=pack_options(max_len, max_segments, long_policy, split, input_column, labels_column),
            algorithms=algorithms,
            documents_per_step=batch_size,
            progress=progress,
        )
        text = json.dumps(found.to_json(), indent=1) if as_json else report.render_comparison(found)
    click.echo(text)
