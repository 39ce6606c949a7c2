"""The command line. Each command is a file of its name, which imports what is heavy when it runs.

command.py           what all commands have in common
declared_options.py  their options, from the declarations in `packer.options`
source_options.py    DATASET, or --source for a mixture
commands_page.py     docs/reference/commands.md
config_options.py    --config and --like: defaults from a file or a packed dataset
one_line_errors.py   errors as one line and an exit code; bus_errors.py: those of files that became shorter
progress_bars.py     progress bars and log lines; colors.py: whether output is colored
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from packer import __version__

COMMANDS = (
    "pack",
    "append",
    "tokenize",
    "stats",
    "compare",
    "verify",
    "show",
    "materialize",
    "export",
    "check",
    "doctor",
    "demo",
)
"""The commands, each a function of a module with its name."""


def main() -> None:
    """Run the command and exit; `one_line_errors` lists the exit codes."""
    cli(prog_name="packer")


def command_named(name: str) -> click.Command:
    """Import a command."""
    command: click.Command = getattr(import_module(f"packer.cli.{name}"), name)
    return command


class _Commands(click.Group):
    """The group of commands: imports the one that runs, and suggests --max-len alone for --max_len."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group`."""
        return command_named(cmd_name) if cmd_name in COMMANDS else None

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            meant = error.option_name.replace("_", "-")
            if meant in (error.possibilities or ()):
                raise click.NoSuchOption(error.option_name, error.message, [meant], error.ctx) from None
            raise


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="packer")
def cli() -> None:
    """Pack a dataset once, offline, into fixed-length rows with explicit document boundaries.

    \b
    packer pack dataset --max-len 4096        writes dataset-packed-4096/
    packer pack chats.jsonl --tokenizer Qwen/Qwen3-0.6B --max-len 4096
    packer stats dataset                      padding now, and packed
    packer compare dataset --max-len 4096     every algorithm, side by side
    packer append dataset-packed-4096 more    adds documents in new shards
    packer verify dataset-packed-4096 --source dataset
    packer export dataset-packed-4096 --to torchtitan
    packer check Qwen/Qwen3-0.6B              attention that is safe for a model
    packer doctor                             what this machine has for packing
    packer demo                               on the Python standard library
    """  # noqa: D301  (an escaped b tells click to keep the lines)
