"""`packer compare`: every algorithm on the same dataset."""

from __future__ import annotations

import json

import click

from packer.cli.command import AsJson, BatchSize, command
from packer.cli.progress_bars import progress_bars
from packer.cli.source_options import MixtureSources, sources_and_weights
from packer.options import PackOptions, values_of


@command(
    PackOptions,
    changes={"algorithm": {"is_list": True, "default": (), "help": "Run only this algorithm."}},
    short_help="Compare the rows that each algorithm needs.",
)
@click.argument("dataset", nargs=-1)
def compare(
    dataset: tuple[str, ...],
    algorithm: tuple[str, ...],
    sources: MixtureSources = (),
    batch_size: BatchSize = 64,
    as_json: AsJson = False,
    **values: object,
) -> None:
    """Run all algorithms on DATASET and show the rows that each needs; nothing is written.

    For rows above 512 tokens, algorithms that may take minutes are left out unless --algorithm names them.

    DATASET is a source as for `pack`, or a histogram: a file NAME.csv with the header length,count.
    """
    from packer.figures.figure_tables import render_comparison
    from packer.pipeline import comparing

    source, weights = sources_and_weights(dataset, sources)
    pack_options = PackOptions(weights=weights, **values_of(PackOptions, values))
    with progress_bars() as progress:
        found = comparing.compare(
            source, options=pack_options, algorithms=algorithm, documents_per_step=batch_size, progress=progress
        )
        text = json.dumps(found.to_json(), indent=1) if as_json else render_comparison(found)
    click.echo(text)
