"""`packer tokenize`: write a dataset of text as a tokenized one."""

from __future__ import annotations

import click

from packer.cli.command import AsJson, command, options, values_of
from packer.cli.source_options import source_of
from packer.cli.writing_commands import print_result, run_job
from packer.options import PackOptions
from packer.options.command_options import OutputOptions


@command(resumes=True, short_help="Tokenize a dataset once, and keep the tokens.")
@click.argument("dataset", nargs=-1, required=True)
@options(PackOptions, of="tokenize")
@options(OutputOptions, "output", default_words="DATASET-tokenized")
@options(OutputOptions, without=("output",))
def tokenize(dataset: tuple[str, ...], as_json: AsJson = False, **values: object) -> None:
    """Tokenize DATASET once and store the tokens in the format of datasets.save_to_disk.

    DATASET is one path or several, as for `pack` with --tokenizer. Packing the output gives the same rows as packing
    the text. An interrupted command continues where it stopped when it is run again.
    """
    from packer.cli.run_summary import render_tokenized
    from packer.pipeline import tokenizing

    text_options = PackOptions(max_len=2, long="error", **values_of(PackOptions, values))  # rows that fit any text
    result, took = run_job(tokenizing.tokenize, source_of(dataset), values=values, options=text_options)
    print_result(
        result,
        result.report.to_dict(),
        took,
        lambda: render_tokenized(result.report, output=str(result.output), **took),
        complete=f"is complete, tokenized in the same way from the same source: nothing to do ({result.checked})",
        as_json=as_json,
    )
