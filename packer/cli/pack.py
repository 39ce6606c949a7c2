"""`packer pack`: write a dataset as packed rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import click

from packer.cli.command import AsJson, Verbose, command
from packer.cli.config_options import config_option, like_option
from packer.cli.progress_bars import progress_bars
from packer.cli.report_files import Decode, Report, WithText, check_report_files, text_decoder, write_report_files
from packer.cli.source_options import MixtureSources, lengths_and_column, sources_and_weights
from packer.cli.writing_commands import write_output
from packer.errors import OptionError
from packer.options import Option, PackOptions, RunOptions, values_of
from packer.options.option import READING
from packer.stores import AnyPath, is_remote

Lengths = Annotated[
    str | None,
    Option(
        "In place of DATASET, the number of tokens of each document: a .npy file, or a column of Arrow, Parquet, CSV "
        "or JSON lines. The result says which documents share a row, as with --index-only.",
        READING,
        metavar="FILE[:COLUMN]",
    ),
]


@command(
    PackOptions,
    RunOptions,
    changes={
        "output": {
            "default_words": "DATASET-packed-MAX_LEN",
            "help": "Folder to write, here or in object storage, as in s3://bucket/set.",
        }
    },
    resumes=True,
    short_help="Pack a dataset into rows of fixed length.",
)
@click.argument("dataset", nargs=-1)
@config_option
@like_option
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
    from packer.cli.run_summary import pack_summary
    from packer.pipeline import packing

    if lengths is not None:
        if dataset or sources:
            raise click.UsageError("--lengths takes the place of DATASET: give one of the two.")
        dataset, values["lengths_column"] = lengths_and_column(lengths)
    source, weights = sources_and_weights(dataset, sources)
    pack_options = PackOptions(weights=weights, tokenizer=tokenizer, **values_of(PackOptions, values))
    check_report_files(report=report, with_text=with_text, tokenizer=tokenizer)
    if report is not None and is_remote(values["output"]):
        raise OptionError(
            f"--report {report} reads the rows, which are not here: run packer stats when they are packed"
        )
    decode = text_decoder(with_text=with_text, tokenizer=tokenizer)
    write_output(
        packing.pack,
        source,
        options=pack_options,
        values=values,
        summary=partial(pack_summary, verbose=verbose),
        report=lambda written: [] if report is None else _write_report(written.output, report, decode),
        complete="is complete, packed with the same options from the same source",
        as_json=as_json,
    )


def _write_report(packed: AnyPath, report: Path, decode: Decode | None) -> list[str]:
    """Write the report of a packed dataset, and return a line about it."""
    from packer.pipeline.collect_figures import packed_figures

    with progress_bars() as progress:
        figures = packed_figures(packed, for_report=True, decode=decode, progress=progress)
        return write_report_files(figures, report=report)
