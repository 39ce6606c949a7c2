"""`packer stats`: padding of a dataset now, and when packed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from packer.cli.command import command
from packer.cli.declared_options import options, values_of
from packer.cli.progress_bars import progress_bars
from packer.cli.source_options import source_options, sources_and_weights
from packer.errors import PackerError
from packer.options import PackOptions
from packer.options.command_options import JsonOption, RowLengthsOption, StatsOptions
from packer.paths import expanded

WITHOUT = (
    *("max_len", "keep", "keep_tokens", "untrained", "pad_id", "split_at"),
    *("emit", "labels", "shard_size"),
)
"""Options of `pack` that need the tokens, or do not change the number of rows."""


@command()
@source_options
@options(RowLengthsOption)
@options(PackOptions, without=WITHOUT)
@options(StatsOptions)
@options(JsonOption)
def stats(
    dataset: str | None,
    sources: tuple[str, ...],
    max_len: tuple[int, ...],
    batch_size: int,
    as_json: bool,
    **values: Any,
) -> None:
    """Show how much padding DATASET has now, and how much when packed; or how full a packed dataset is.

    It predicts as many rows as `pack` makes with the same options, also for mixtures, groups and pairs. Several row
    lengths are compared in a table, to choose one.
    """
    from packer import pipeline, report
    from packer.shards.manifest import is_packed

    source, weights = sources_and_weights(dataset, sources)
    unicode = report.can_draw_blocks(sys.stdout.encoding)
    content: dict[str, Any]
    if dataset is not None and is_packed(Path(expanded(dataset))):
        if len(max_len) > 1:
            raise PackerError(
                f"--max-len {','.join(map(str, max_len))}: {dataset} is packed, into rows of one length; "
                "compare lengths on the dataset that it was packed from"
            )
        packed = pipeline.packed_statistics(dataset)
        content, text = packed.to_json(), report.render_packed_stats(packed, unicode=unicode)
    else:
        pack_options = PackOptions(weights=weights, max_len=max_len[-1], **values_of(PackOptions, values))
        with progress_bars() as progress:
            if len(max_len) > 1:
                lengths = pipeline.row_length_statistics(
                    source, options=pack_options, max_lens=max_len, documents_per_step=batch_size, progress=progress
                )
                content, text = lengths.to_json(), report.render_row_lengths(lengths)
            else:
                found = pipeline.dataset_statistics(
                    source, options=pack_options, documents_per_step=batch_size, progress=progress
                )
                content = found.to_json()
                text = report.render_stats(found, unicode=unicode, mix_unit=pack_options.mix_unit)
    click.echo(json.dumps(content, indent=1) if as_json else text)
