"""`packer pack`: a dataset to rows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

import click

from packer.cli.shared import algorithm_options, one_line_errors, progress_bars, shared_options, text_options
from packer.errors import PackerError

GROUP_MODE_NAMES = ("together", "apart")  # as in packer.plan, which imports numpy; a test compares them


@click.command()
@click.argument("dataset", required=False)
@click.option("--source", "sources", multiple=True, metavar="PATH:WEIGHT",
              help="In place of DATASET, a source of a mixture; repeat it for each. Without a weight: 1.")  # fmt: skip
@click.option("--mix-unit", type=click.Choice(["tokens", "epochs"]), default="tokens", show_default=True,
              help="What weights are: shares of the mixture's tokens, or how often each source is seen.")  # fmt: skip
@click.option("--mix-tokens", type=click.IntRange(1), metavar="N",
              help="Tokens of the mixture [default: as many as there are without repeating a source].")  # fmt: skip
@click.option("--max-len", type=click.IntRange(1), required=True, metavar="N", help="Tokens of a row.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write [default: DATASET-packed-N].")
@algorithm_options
@text_options
@shared_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Another seed is another packing of as many rows.")  # fmt: skip
@click.option("--pad-id", type=click.IntRange(0), metavar="ID",
              help="Token id of the padding [default: 0; with --tokenizer its padding or end token].")  # fmt: skip
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
@click.option("--group-by", type=(str, click.Choice(GROUP_MODE_NAMES)), metavar="COLUMN together|apart",
              help="Rows of one value of COLUMN only, or no two of a value in a row; null is no group.")  # fmt: skip
@click.option(
    "--pairs",
    is_flag=True,
    help="Rows are pairs, chosen_input_ids and rejected_input_ids, which stay together; role is kept.",
)
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
    if (dataset is None) == (not sources):
        raise click.UsageError("Give a DATASET, or several with --source PATH:WEIGHT.")
    with one_line_errors(debug=debug, resumes=True), progress_bars() as progress:
        from packer import pipeline
        from packer.options import EMITTED, PackOptions, parse_size

        emitted = [name.strip() for name in emit.split(",") if name.strip()]
        unknown = [name for name in emitted if name not in EMITTED]
        if unknown:
            raise PackerError(f"--emit {emit}: no column {unknown[0]!r}; there are {', '.join(EMITTED)}")
        if group_by is not None:
            options["group_by"], options["group_mode"] = group_by
        begun = time.perf_counter()
        mixture = [_weighted(source) for source in sources]
        result = pipeline.pack(
            dataset if dataset is not None else [path for path, _ in mixture],
            output,
            options=PackOptions(
                labels=not no_labels,
                position_ids="position_ids" in emitted,
                shard_size=parse_size(shard_size),
                untrained=untrained or "keep",
                weights=tuple(weight for _, weight in mixture),
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
        click.echo(f"{result.output} is complete, packed with the same options from the same source: nothing to do")
    else:
        from packer.report import render_manifest_summary

        click.echo(render_manifest_summary(result.manifest.to_dict(), output=str(result.output), seconds=seconds))


def _weighted(source: str) -> tuple[str, float]:
    """(path, weight) of PATH:WEIGHT; a path may have colons.

    Raises:
        PackerError: what follows the last colon is no number.
    """
    path, colon, weight = source.rpartition(":")
    if not colon:
        return source, 1.0
    try:
        return path, float(weight)
    except ValueError:
        raise PackerError(f"--source {source}: {weight!r} is no weight; write PATH:WEIGHT, as in web:0.7") from None
