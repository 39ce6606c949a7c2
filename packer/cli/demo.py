"""`packer demo`: all of it on what every machine has."""

from __future__ import annotations

from pathlib import Path

import click

from packer.cli.shared import UserPath, one_line_errors, progress_bars


@click.command()
@click.option("-o", "--output", type=UserPath(), default=Path("packer-demo"), show_default=True,
              help="Folder for the corpus and what becomes of it.")  # fmt: skip
@click.option("--max-len", type=click.IntRange(1), default=4096, show_default=True, metavar="N",
              help="Tokens of a row.")  # fmt: skip
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def demo(output: Path, max_len: int, debug: bool) -> None:
    """Pack the source files of this machine's Python standard library: nothing is downloaded.

    A byte-level BPE tokenizer is trained on them in place; then stats, pack, verify and one batch of the loader.
    """
    with one_line_errors(debug=debug, resumes=True), progress_bars() as progress:
        from packer.demo_corpus import run_demo

        for text in run_demo(output, max_len=max_len, progress=progress):
            click.echo(text)
