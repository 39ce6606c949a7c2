"""`packer pack`: write a dataset as packed rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from packer.cli.command import AsJson, Verbose, command, options, values_of
from packer.cli.config_options import config_option, like_option
from packer.cli.progress_bars import progress_bars
from packer.cli.report_files import Report, WithText, check_report_files, text_decoder, write_report_files
from packer.cli.source_options import MixtureSources, lengths_and_column, sources_and_weights
from packer.cli.writing_commands import print_result, run_job
from packer.errors import OptionError
from packer.options import Option, PackOptions
from packer.options.command_options import EngineOptions, OutputOptions
from packer.options.option import READING
from packer.stores import is_remote

if TYPE_CHECKING:
    from packer.pipeline.packing import PackResult

Lengths = Annotated[
    str | None,
    Option(
        "In place of DATASET, the number of tokens of each document: a .npy file, or a column of Arrow, Parquet, CSV "
        "or JSON lines. The result says which documents share a row, as with --index-only.",
        READING,
        metavar="FILE[:COLUMN]",
    ),
]


@command(resumes=True, short_help="Pack a dataset into rows of fixed length.")
@click.argument("dataset", nargs=-1)
@config_option
@like_option
@options(PackOptions, of="pack")
@options(
    OutputOptions,
    "output",
    default_words="DATASET-packed-MAX_LEN",
    help="Folder to write, here or in object storage, as in s3://bucket/set.",
)
@options(OutputOptions, without=("output",))
@options(EngineOptions)
def pack(
    dataset: tuple[str, ...],
    tokenizer: str | None,
    sources: MixtureSources = (),
    lengths: Lengths = None,
    report: Report = None,
    with_text: WithText = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    **values: object,
) -> None:
    """Pack DATASET into rows of exactly --max-len tokens.

    DATASET is a folder of datasets.save_to_disk, an Arrow, Parquet, JSON lines, CSV or text file (also .gz or .zst), a
    folder or glob of these, or a Hub id. It holds tokens or, with --tokenizer, text. A packed dataset is read as its
    documents. Several paths are read as one dataset, in this order; name the output with --output. An interrupted
    command continues where it stopped when it is run again.
    """
    from packer.pipeline import packing

    # Read and check the options.
    if lengths is not None:
        if dataset or sources:
            raise click.UsageError("--lengths takes the place of DATASET: give one of the two.")
        dataset, values["lengths_column"] = lengths_and_column(lengths)
    source, weights = sources_and_weights(dataset, sources)
    pack_options = PackOptions(weights=weights, tokenizer=tokenizer, **values_of(PackOptions, values))
    check_report_files(report=report, with_text=with_text, tokenizer=tokenizer)
    decode = text_decoder(with_text=with_text, tokenizer=tokenizer)
    if report is not None and is_remote(values["output"]):
        raise OptionError(
            f"--report {report} reads the rows, which are not here: run packer stats when they are packed"
        )

    # Pack.
    result, took = run_job(packing.pack, source, values=values, options=pack_options)
    if result.finished_elsewhere:  # the rank that finished it writes the report and prints the summary
        if values["ranks"] is None:
            click.echo(f"{result.output} was completed by another process at the same time")
        return

    # Write the report and print the summary.
    lines = []
    if report is not None and isinstance(result.output, Path):
        from packer.pipeline.collect_figures import packed_figures

        with progress_bars() as progress:
            figures = packed_figures(result.output, for_report=True, decode=decode, progress=progress)
            lines = write_report_files(figures, report=report)
    print_result(
        result,
        result.manifest.to_dict(),
        took,
        lambda: _summary(result, took, verbose=verbose),
        complete=f"is complete, packed with the same options from the same source: nothing to do ({result.checked})",
        as_json=as_json,
        lines=lines,
    )


def _summary(result: PackResult, took: dict[str, float], *, verbose: bool) -> str:
    from packer.cli.run_summary import render_manifest_summary

    rows = None
    if verbose and isinstance(result.output, Path):  # in object storage, `packer stats` reads the boundaries
        from packer.pipeline.collect_figures import sampled_rows

        rows = sampled_rows(result.output, result.manifest)
    return render_manifest_summary(result.manifest, rows=rows, output=str(result.output), **took, verbose=verbose)
