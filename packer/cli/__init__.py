"""The command line. Each command is in a file of its name, and imports heavy packages only when it runs.

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

GROUPS = {
    "Look ahead": ("stats", "compare"),
    "Pack": ("pack", "append", "tokenize", "materialize"),
    "Check": ("verify", "show"),
    "Train": ("export", "check"),
    "This machine": ("doctor", "demo"),
}
"""The commands under their headings, each a function of a module with its name."""

COMMANDS = tuple(name for names in GROUPS.values() for name in names)


def main() -> None:
    """Run the command and exit; `one_line_errors` lists the exit codes."""
    cli(prog_name="packer")


def command_named(name: str) -> click.Command:
    """Import a command."""
    command: click.Command = getattr(import_module(f"packer.cli.{name}"), name)
    return command


class _Commands(click.Group):
    """The group of commands: imports the one that runs, and for --max_len suggests only --max-len."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group`."""
        return command_named(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group`."""
        width = max(map(len, COMMANDS))
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), command_named(name).get_short_help_str(80)) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            meant = error.option_name.replace("_", "-")
            name = error.ctx.info_name if error.ctx is not None else None
            if name in ("append", "materialize") and any(meant in each.opts for each in command_named("pack").params):
                text = f"No such option '{meant}': packer {name} takes the options of the dataset."
                raise click.UsageError(text, error.ctx) from None
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
    packer pack --lengths data.parquet:num_tokens --max-len 4096
    packer pack dataset --max-len 4096 --index-only --output index
    packer materialize index --source dataset --output rows
    packer append dataset-packed-4096 more    adds documents in new shards
    packer verify dataset-packed-4096 --source dataset
    packer export dataset-packed-4096 --to torchtitan
    """  # noqa: D301  (an escaped b tells click to keep the lines)
