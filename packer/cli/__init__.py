"""The command line: options, progress, exit codes. It translates and calls; heavy imports wait until needed.

A command is a file of its name; `shared.py` has what they have in common.
"""

from __future__ import annotations

from typing import Any

import click

from packer import __version__
from packer.cli.check import check
from packer.cli.compare import compare
from packer.cli.demo import demo
from packer.cli.export import export
from packer.cli.pack import pack
from packer.cli.show import show
from packer.cli.stats import stats
from packer.cli.tokenize import tokenize
from packer.cli.verify import verify


def main() -> None:
    """Run the command; exit codes: 0 done, 1 an error of ours, 2 usage, 130 and 143 after SIGINT and SIGTERM."""
    cli(prog_name="packer")


class _Commands(click.Group):
    """The commands; --max_len is answered with --max-len alone, not with all that looks like it."""

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            meant = error.option_name.replace("_", "-")
            if meant in (error.possibilities or ()):
                raise click.NoSuchOption(error.option_name, error.message, [meant], error.ctx) from None
            raise


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """Pack a dataset once, offline, into fixed-length rows with explicit document boundaries.

    \b
    packer pack dataset --max-len 4096        writes dataset-packed-4096/
    packer pack chats.jsonl --tokenizer Qwen/Qwen3-0.6B --max-len 4096
    packer stats dataset                      padding now, and packed
    packer compare dataset --max-len 4096     every algorithm, side by side
    packer verify dataset-packed-4096 --source dataset
    packer export dataset-packed-4096 --to torchtitan
    packer check Qwen/Qwen3-0.6B              which attention keeps packed documents of a model apart
    packer demo                               all of it on the Python standard library
    """  # noqa: D301  (an escaped b is how click is told to keep lines)


for command in (pack, tokenize, stats, compare, verify, show, export, check, demo):
    cli.add_command(command)
