"""The common part of all commands: `--debug`, errors as one line, and options under headings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from packer.cli.declared_options import DeclaredOption
from packer.cli.one_line_errors import one_line_errors
from packer.options import options_of
from packer.options.command_options import DebugOption
from packer.options.headings import GENERAL, HEADINGS, REQUIRED

ARGUMENTS = "packer.arguments"
"""Where the context has the words of the command line after `packer`."""

GROUPED_FROM = 12
"""Number of options from which a command lists them under headings."""

NAME_WIDTH = 24
"""Width of the column of names under all headings."""


class PackerCommand(click.Command):
    """A command with `--debug` that prints errors as one line, and lists its options under headings."""

    def __init__(self, *arguments: Any, resumes: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.resumes = resumes
        self.params += [DeclaredOption([], declared=option) for option in options_of(DebugOption).values()]

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **settings: Any) -> click.Context:
        """See `click.Command`; `--config`, `--like` and `--chat-template` read files."""
        with one_line_errors(debug="--debug" in args, as_json="--json" in args):
            return super().make_context(info_name, args, *rest, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command`."""
        as_json = ctx.params.get("as_json", False)
        with one_line_errors(debug=ctx.params.pop("debug"), as_json=as_json, resumes=self.resumes):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command`."""
        found = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        if len(found) < GROUPED_FROM:
            super().format_options(ctx, formatter)
            return
        for heading in HEADINGS:
            records = [option.get_help_record(ctx) for option in found if heading_of(option) == heading]
            lines = [(record[0].ljust(NAME_WIDTH), record[1]) for record in records if record is not None]
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines, col_max=NAME_WIDTH)


def heading_of(option: click.Option) -> str:
    """The heading of an option: its own, but that of the required ones if a value must be given."""
    if option.required:
        return REQUIRED
    return option.declared.about.heading if isinstance(option, DeclaredOption) else GENERAL


def command(*, resumes: bool = False, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function.

    Args:
        resumes: whether the same command continues where it was interrupted, so that the message can say so.
        settings: further arguments of `click.Command`.
    """

    def make(function: Callable[..., None]) -> click.Command:
        return click.command(cls=PackerCommand, resumes=resumes, **settings)(function)

    return make
