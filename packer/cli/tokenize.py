"""`packer tokenize`: write a dataset of text as a tokenized one."""

from __future__ import annotations

import click

from packer.cli.command import AsJson, command
from packer.cli.source_options import source_of
from packer.cli.writing_commands import write_output
from packer.options import PackOptions, RunOptions, values_of


@command(
    PackOptions,
    RunOptions,
    changes={"output": {"default_words": "DATASET-tokenized"}},
    resumes=True,
    short_help="Tokenize a dataset once, and keep the tokens.",
)
@click.argument("dataset", nargs=-1, required=True)
def tokenize(dataset: tuple[str, ...], as_json: AsJson = False, **values: object) -> None:
    """Tokenize DATASET once and store the tokens in the format of datasets.save_to_disk.

    DATASET is one path or several, as for `pack` with --tokenizer. Packing the output gives the same rows as packing
    the text. An interrupted command continues where it stopped when it is run again.
    """
    from packer.cli.run_summary import tokenize_summary
    from packer.pipeline import tokenizing

    write_output(
        tokenizing.tokenize,
        source_of(dataset),
        options=PackOptions(max_len=2, long="error", **values_of(PackOptions, values)),  # rows that fit any text
        values=values,
        summary=tokenize_summary,
        complete="is complete, tokenized in the same way from the same source",
        as_json=as_json,
    )
