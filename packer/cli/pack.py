"""`packer pack`: write a dataset as packed rows."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import click

from packer.cli.command import command
from packer.cli.config_options import config_option, like_option
from packer.cli.declared_options import options, values_of
from packer.cli.progress_bars import Stopwatch, progress_bars
from packer.cli.report_files import check_report_files, text_decoder, write_report_files
from packer.cli.source_options import lengths_and_column, source_options, sources_and_weights
from packer.errors import OptionError
from packer.facts import REJECTED
from packer.options import PackOptions
from packer.options.command_options import EngineOptions, JsonOption, OutputOptions, ReportOptions, SummaryOption
from packer.stores import is_remote


@command(resumes=True, short_help="Pack a dataset into rows of fixed length.")
@source_options
@click.option(
    "--lengths",
    metavar="FILE[:COLUMN]",
    help="In place of DATASET, the number of tokens of each document: a .npy file, or a column of Arrow, Parquet, CSV "
    "or JSON lines. The result says which documents share a row, as with --index-only.",
)
@config_option
@like_option
@options(PackOptions)
@options(
    OutputOptions,
    "output",
    default_words="DATASET-packed-MAX_LEN",
    help="Folder to write, here or in object storage, as in s3://bucket/set.",
)
@options(OutputOptions, without=("output",))
@options(EngineOptions)
@options(ReportOptions)
@options(SummaryOption)
@options(JsonOption)
def pack(
    dataset: tuple[str, ...],
    sources: tuple[str, ...],
    lengths: str | None,
    report: Path | None,
    with_text: bool,
    verbose: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Pack DATASET into rows of exactly --max-len tokens.

    DATASET is a folder of datasets.save_to_disk, an Arrow, Parquet, JSON lines, CSV or text file (also .gz or .zst), a
    folder or glob of these, or a Hub id. It holds tokens or, with --tokenizer, text. A packed dataset is read as its
    documents. Several paths are read as one dataset, in this order; name the output with --output. An interrupted
    command continues where it stopped when it is run again.
    """
    from packer.pipeline import packing
    from packer.ranks import rank_of

    if lengths is not None:
        if dataset or sources:
            raise click.UsageError("--lengths takes the place of DATASET: give one of the two.")
        dataset, values["lengths_column"] = lengths_and_column(lengths)
    source, weights = sources_and_weights(dataset, sources)
    pack_options = PackOptions(weights=weights, **values_of(PackOptions, values))
    check_report_files(report=report, with_text=with_text, tokenizer=values["tokenizer"])
    decode = text_decoder(with_text=with_text, tokenizer=values["tokenizer"])
    if report is not None and is_remote(values["output"]):
        raise OptionError(
            f"--report {report} reads the rows, which are not here: run packer stats when they are packed"
        )
    engine_options = EngineOptions(**values_of(EngineOptions, values))
    place = rank_of(engine_options.rank, engine_options.ranks)
    with progress_bars(silently=place is not None and place.rank > 0) as progress:
        watch = Stopwatch()
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints what happens to nodes; stdout is for the result
            result = packing.pack(
                source,
                options=pack_options,
                engine_options=engine_options,
                progress=progress,
                **values_of(OutputOptions, values),
            )
        took = watch.read()
        lines = []
        if report is not None and not result.finished_elsewhere and isinstance(result.output, Path):
            from packer.pipeline.collect_figures import packed_figures

            figures = packed_figures(result.output, decode=decode, progress=progress)
            lines = write_report_files(figures, report=report)
    if result.finished_elsewhere:  # the rank that finished it prints the summary
        if place is None:
            click.echo(f"{result.output} was completed by another process at the same time")
        return
    if as_json:
        content = {"output": str(result.output), "found_complete": result.found_complete, **took}
        if result.manifest.totals.documents_rejected is not None:
            content["rejected"] = str(result.output / REJECTED)
        click.echo(json.dumps({**content, **result.manifest.to_dict()}, indent=1))
    elif result.found_complete:
        made = "packed with the same options from the same source"
        click.echo("\n".join([f"{result.output} is complete, {made}: nothing to do ({result.checked})", *lines]))
    else:
        from packer.report.run_summary import render_manifest_summary

        # In object storage, reading the boundaries of rows may take long: `packer stats` does it.
        measures = verbose and isinstance(result.output, Path)
        rows = None
        if measures:
            from packer.pipeline.statistics import mixing_sample

            rows = mixing_sample(result.output, result.manifest)
        summary = render_manifest_summary(
            result.manifest, rows=rows, output=str(result.output), **took, verbose=verbose
        )
        click.echo("\n".join([summary, *lines]))
