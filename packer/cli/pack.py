"""`packer pack`: a dataset to rows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

import click

from packer.cli.reading import given_sources, group_options, seed_option, source_options
from packer.cli.shared import UserPath, algorithm_options, one_line_errors, progress_bars, shared_options, text_options
from packer.errors import PackerError


@click.command()
@source_options
@click.option("--max-len", type=click.IntRange(1), required=True, metavar="N", help="Tokens of a row.")
@click.option("-o", "--output", type=UserPath(), help="Folder to write [default: DATASET-packed-N].")
@algorithm_options
@text_options
@shared_options
@seed_option
@click.option("--pad-id", type=click.IntRange(0), metavar="ID",
              help="Token id of the padding [default: the tokenizer's, or its end token; else 0].")  # fmt: skip
@click.option("--emit", default="labels", show_default=True, metavar="COLUMNS",
              help="Token columns beside input_ids; labels,position_ids adds positions.")  # fmt: skip
@click.option("--keep", multiple=True, metavar="COLUMN",
              help="Keep this column of the source, one value per segment; repeat it for several.")  # fmt: skip
@click.option("--keep-tokens", multiple=True, metavar="COLUMN",
              help="Keep this column of lists, one value per token; repeat it for several.")  # fmt: skip
@click.option("--split-at", type=click.Choice(["tokens", "turns"]), default="tokens", show_default=True,
              help="With --long split: cut anywhere, or between the turns of a chat only.")  # fmt: skip
@click.option("--drop-untrained", "untrained", flag_value="drop",
              help="Leave out segments of which nothing is trained.")  # fmt: skip
@click.option("--refuse-untrained", "untrained", flag_value="error",
              help="Segments of which nothing is trained are an error.")  # fmt: skip
@group_options
@click.option("--no-labels", is_flag=True, help="Leave out labels; only packer.load is safe then.")
@click.option("--shard-size", default="512MB", show_default=True, metavar="SIZE", help="Size of a shard at most.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Threads at work [default: the cores].")
@click.option("--no-sync", is_flag=True, help="Skip fsync: faster, not safe against a power failure.")
@click.option("--overwrite", is_flag=True, help="Replace the output, at one stroke when the new dataset is whole.")
def pack(
    dataset: str | None,
    sources: tuple[str, ...],
    output: Path | None,
    emit: str,
    group_by: tuple[str, str] | None,
    no_labels: bool,
    shard_size: str,
    workers: int | None,
    no_sync: bool,
    overwrite: bool,
    untrained: Literal["drop", "error"] | None,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Pack DATASET into rows of exactly --max-len tokens.

    DATASET is a folder of datasets.save_to_disk, an Arrow, Parquet or JSONL file (.gz, .zst), a folder or glob of
    these, or a Hub id; of tokens, or with --tokenizer of text. Killed at any instant, the same command goes on where it
    stopped.
    """
    with one_line_errors(debug=debug, resumes=True), progress_bars() as progress:
        from packer import pipeline
        from packer.options import EMITTED, PackOptions, parse_size

        emitted = [name.strip() for name in emit.split(",") if name.strip()]
        unknown = [name for name in emitted if name not in EMITTED]
        if unknown:
            raise PackerError(f"--emit {emit}: no column {unknown[0]!r}; there are {', '.join(EMITTED)}")
        source, of_source = given_sources(dataset, sources, group_by)
        begun = time.perf_counter()
        result = pipeline.pack(
            source,
            output,
            options=PackOptions(
                labels=not no_labels,
                position_ids="position_ids" in emitted,
                shard_size=parse_size(shard_size),
                untrained=untrained or "keep",
                **of_source,
                **options,
            ),
            workers=workers,
            sync=not no_sync,
            overwrite=overwrite,
            progress=progress,
        )
        seconds = time.perf_counter() - begun
    if as_json:
        content = {"output": str(result.output), "found_complete": result.found_complete, "seconds": seconds}
        click.echo(json.dumps({**content, **result.manifest.to_dict()}, indent=1))
    elif result.found_complete:
        made = "packed with the same options from the same source"
        click.echo(f"{result.output} is complete, {made}: nothing to do ({result.checked})")
    else:
        from packer.report import render_manifest_summary

        summary, rows = result.manifest.to_dict(), pipeline.packed_statistics(result.output)
        click.echo(render_manifest_summary(summary, rows=rows, output=str(result.output), seconds=seconds))
