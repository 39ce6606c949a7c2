"""The command line. Commands import heavy packages only when they run.

writing_commands.py  pack, tokenize, export and demo, and their summaries
reading_commands.py  stats, show, verify and check

command.py           commands and their options, created from declarations; options such as --json and --report
printing.py          printing of text and JSON; errors as one line and an exit code
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import click

from packer import __version__
from packer.cli.command import ARGUMENTS
from packer.cli.printing import echo, echo_error_as_json
from packer.cli.reading_commands import check, show, stats, verify
from packer.cli.writing_commands import demo, export, pack, tokenize
from packer.plain_text import visible

GROUPS = {
    "Look ahead": (stats,),
    "Pack": (pack, tokenize),
    "Check": (verify, show),
    "Train": (export, check),
    "Try it": (demo,),
}
"""Commands by heading."""

COMMANDS: dict[str, click.Command] = {str(each.name): each for group in GROUPS.values() for each in group}


def main() -> None:
    """Run the command line and exit; `one_line_errors` lists the exit codes."""
    cli(prog_name="packer")


@contextmanager
def _one_line_usage_errors(ctx: click.Context) -> Iterator[None]:
    """Show a usage error in one line that refers to the command's help, and as JSON too if `--json` is given."""
    try:
        yield
    except click.UsageError as error:
        what = re.sub("^Invalid value for '([^']+)'", r"\1", error.format_message()).removesuffix(".")
        of = (error.ctx or ctx).command_path.partition(" ")[2]
        message = visible(f"{what}; see {' '.join(['packer', *of.split(), '--help'])}")
        if "--json" in ctx.meta[ARGUMENTS]:
            echo_error_as_json(message, error.exit_code)
        echo(f"packer: {message}", err=True)
        raise click.exceptions.Exit(error.exit_code) from None


LIBRARIES = ("numpy", "pyarrow", "numba", "highspy", "datasets", "tokenizers", "transformers", "gigatoken", "torch")
"""Python packages whose versions may affect rows and tokens, or explain a problem."""


def _versions(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the versions of packer, Python and `LIBRARIES`, and exit."""
    if not is_asked:
        return
    from importlib import metadata

    echo(f"packer {__version__}, Python {platform.python_version()}")
    for name in LIBRARIES:
        try:
            echo(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            echo(f"{name} is not installed")
    ctx.exit()


class _Commands(click.Group):
    """The group of commands. For an unknown name, it suggests the nearest command or option."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group`."""
        width = max(map(len, COMMANDS))
        for heading, group in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(str(each.name).ljust(width), each.get_short_help_str(80)) for each in group])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`."""
        near = [] if args[0] in COMMANDS or args[0].startswith("-") else get_close_matches(args[0], COMMANDS, n=1)
        if near:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Group`."""
        if not args:  # click would report a usage error
            echo(ctx.get_help())
            ctx.exit()
        ctx.meta[ARGUMENTS] = list(args)
        with _one_line_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """See `click.Group`."""
        with _one_line_usage_errors(ctx):
            try:
                return super().invoke(ctx)
            except click.NoSuchOption as error:
                meant = error.option_name.replace("_", "-")
                if meant in (error.possibilities or ()):
                    raise click.NoSuchOption(error.option_name, error.message, [meant], error.ctx) from None
                raise


@click.group(cls=_Commands, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", help="Show versions.", is_flag=True, is_eager=True, expose_value=False, callback=_versions)
def cli() -> None:
    """Pack a dataset once, offline, into fixed-length rows with explicit document boundaries.

    \b
    packer pack dataset --max-len 4096        writes dataset-packed-4096/
    packer pack chats.jsonl --tokenizer Qwen/Qwen3-0.6B --max-len 4096
    packer pack --lengths data.parquet:num_tokens --max-len 4096
    packer pack dataset --max-len 4096 --index-only --output index
    packer verify dataset-packed-4096 --source dataset
    packer export dataset-packed-4096 --to torchtune
    """  # noqa: D301  (an escaped b tells click to keep the lines)
