"""`packer demo`: the main commands on a corpus that every machine has."""

from __future__ import annotations

from pathlib import Path

import click

from packer.cli.command import command, options
from packer.cli.progress_bars import progress_bars
from packer.options import PackOptions
from packer.options.command_options import OutputOptions


@command(resumes=True, short_help="Pack the source files of this machine's Python.")
@options(
    OutputOptions,
    "output",
    default=Path("packer-demo"),
    default_words=None,
    help="Folder for the corpus and the packed dataset.",
)
@options(PackOptions, "max_len", default=4096)
def demo(output: Path, max_len: int) -> None:
    """Pack the source files of this machine's Python standard library; nothing is downloaded.

    It trains a byte-level BPE tokenizer on the files and runs stats, pack, verify and one batch of the loader.
    """
    from packer.demo_corpus import run_demo

    with progress_bars() as progress:
        for text in run_demo(output, max_len=max_len, progress=progress):
            click.echo(text)
