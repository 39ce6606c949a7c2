"""The page docs/reference/commands.md: `python -m packer.cli.commands_page > docs/reference/commands.md` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from packer.cli import COMMANDS, command_named
from packer.cli.command import heading_of
from packer.cli.declared_options import DeclaredOption
from packer.options import Option
from packer.options.headings import HEADINGS

_INTRODUCTION = """\
# Commands and options

This page is made from the declarations in `packer/options/` by `python -m packer.cli.commands_page`.

The keyword arguments of `packer.pack`, `packer.verify` and `packer.export` have the names of the options, with `_` for
`-`. What is on by default is switched off by `--no-NAME` on the command line and by `NAME=False` in Python. What can be
repeated on the command line is a list in Python. These differ:

| command line | Python |
|---|---|
| `--source web:0.7 --source code:0.3` | `source=[("web", 0.7), ("code", 0.3)]` |
| `--chat-template FILE` | `chat_template`: the content of the file (names are the same) |
| `--emit position_ids` | `emit="position_ids"`, or a list of columns |
| `--json`, `--debug` | none: functions return a result and raise errors |

Results go to stdout, progress, log lines and errors to stderr. With `--json`, an error is printed on stdout as well, as
`{"error": ..., "exit_code": ...}`. Exit codes:

| code | meaning |
|---|---|
| 0 | done |
| 1 | the input, the data or the machine is at fault; one line says what, and what helps |
| 2 | wrong usage |
| 3 | what was checked is not right (`packer verify`, `packer check`) |
| 130, 143 | interrupted (Ctrl-C), terminated; the same command resumes where it stopped |
"""


def commands_page() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *(line for name in COMMANDS for line in _command(name))])


def _command(name: str) -> Iterator[str]:
    """Lines about a command."""
    command = command_named(name)
    context = click.Context(command, info_name=f"packer {name}")
    yield f"## packer {name}\n"
    yield f"    {command.get_usage(context).removeprefix('Usage: ')}\n"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "")
    yield ""
    found = [option for option in command.params if isinstance(option, click.Option)]
    for heading in HEADINGS:
        members = [option for option in found if heading_of(option) == heading]
        if members:
            yield f"| {heading} | value | default | |\n|---|---|---|---|"
            yield from (_row(option) for option in members)
            yield ""


def _row(option: click.Option) -> str:
    """A row of a table."""
    flags = ", ".join(f"`{flag}`" for flag in option.opts)
    if not isinstance(option, DeclaredOption):
        return f"| {flags} | {option.metavar or ''} | | {option.help} |"
    about = option.declared.about
    off = option.declared.default is True and about.off is not None
    repeats = " Repeat it for several." if option.multiple and not about.says_repeats else ""
    sentence = f"{about.off if off else about.help}{repeats}"
    return f"| {flags} | {_value(option.declared)} | {_default(option.declared)} | {sentence} |"


def _value(option: Option) -> str:
    if option.kind is bool:
        return ""
    if option.choices and option.about.is_file:
        return f"{', '.join(f'`{choice}`' for choice in option.choices)}, or FILE"
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.kind in (int, float):
        return f"{option.about.metavar}, {option.limits}"
    return option.about.metavar or "PATH"


def _default(option: Option) -> str:
    if option.about.default_words is not None:
        return option.about.default_words
    has_value = not option.is_required and option.kind is not bool and option.default not in (None, ())
    return f"`{option.default}`" if has_value else ""


if __name__ == "__main__":
    print(commands_page(), end="")
