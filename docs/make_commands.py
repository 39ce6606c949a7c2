"""What is made from the declarations of options: the pages of the commands, and the types of keyword arguments.

`python docs/make_commands.py` writes both.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_origin

import click

import packer
from packer.cli import COMMANDS
from packer.cli.command import DeclaredOption, heading_of
from packer.options import Option, PackOptions, RunOptions, options_for, options_of
from packer.options import option as declaring
from packer.options.option import HEADINGS

_INTRODUCTION = """\
# Commands and options

{table}

These pages are generated from the declarations in `packer/options/` by `python docs/make_commands.py`.

Results go to stdout; progress, log lines and errors go to stderr. [Errors and exit codes](errors.md) lists the exit
codes.

## The same in Python

The keyword arguments of `packer.pack`, `stats`, `tokenize`, `verify`, `show` and `export` have the names of the
options, with `_` for `-`. An option that is on by default is switched off by `--no-NAME` on the command line, and by
`NAME=False` in Python. An option that can be repeated on the command line is a list in Python. These options differ:

| command line | Python |
|---|---|
| `--add-column position_ids` | `add_column="position_ids"`, or a list of columns |
| `--json`, `--debug` | none: functions raise errors and return a result, whose `to_dict()` has the values of `--json` |

```{{toctree}}
:hidden:

{toctree}
```
"""


def commands_pages() -> dict[str, str]:
    """Return the pages by their paths in docs/reference: one that lists the commands, and one for each."""
    table = "| command | what it does |\n|---|---|\n" + "\n".join(
        f"| [packer {name}](commands/{name}.md) | {_first_sentence(command)} |" for name, command in COMMANDS.items()
    )
    toctree = "\n".join(f"commands/{name}" for name in COMMANDS)
    pages = {f"commands/{name}.md": "\n".join(_command(name, command)) for name, command in COMMANDS.items()}
    return {"commands.md": _INTRODUCTION.format(table=table, toctree=toctree), **pages}


def _first_sentence(command: click.Command) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


def _command(name: str, command: click.Command) -> Iterator[str]:
    """Lines about a command."""
    context = click.Context(command, info_name=f"packer {name}")
    yield f"# packer {name}\n"
    yield f"    {command.get_usage(context).removeprefix('Usage: ')}\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.removeprefix("\b\n")
        yield f"{lines if lines == paragraph else f'```text{chr(10)}{lines}{chr(10)}```'}\n"
    found = [option for option in command.params if isinstance(option, click.Option)]
    for heading in HEADINGS:
        members = [option for option in found if heading_of(option) == heading]
        if members:
            yield f"## {heading}\n\n| option | meaning | default |\n|---|---|---|"
            yield from (_row(option) for option in members)
            yield ""


def _row(option: click.Option) -> str:
    """A row of a table."""
    flags = ", ".join(f"`{flag}`" for flag in option.opts)
    if not isinstance(option, DeclaredOption):
        return f"| {flags}{f' {option.metavar}' if option.metavar else ''} | {option.help} |  |"
    declared = option.declared
    off = declared.default is True and declared.off is not None
    repeats = " Repeat it for several." if option.multiple and "Repeat it" not in declared.help else ""
    sentence = f"{declared.off if off else declared.help}{repeats}{_values(declared)}"
    return f"| {flags}{_metavar(declared)} | {sentence} | {_default(declared)} |"


def _metavar(option: Option) -> str:
    if option.type is bool or option.choices:
        return ""
    return f" {option.metavar or 'PATH'}"


def _values(option: Option) -> str:
    """The possible values as a sentence; the largest one only where a user could reach it."""
    if option.choices:
        return f" Values: {', '.join(f'`{choice}`' for choice in option.choices)}."
    if option.type not in (int, float):
        return ""
    least, most = option.limits
    if least == sys.float_info.min:
        return " Above 0."
    return f" At least {least}." if most >= 2**31 - 1 else f" From {least} to {most:,}."


def _default(option: Option) -> str:
    if option.default_words is not None:
        return option.default_words
    has_value = not option.is_required and option.type is not bool and option.default not in (None, ())
    return f"`{option.default}`" if has_value else ""


_ARGUMENTS = '''\
"""Types of the keyword arguments of Python functions that are options, for type checkers and editors.

Made from the declarations of options by `python docs/make_commands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from packer.options.option import {choices}
'''


def arguments_module() -> str:
    """Return the content of packer/options/arguments.py."""
    types, classes = _types(PackOptions) | _types(RunOptions), []
    for function, base in ((packer.stats, None), (packer.pack, packer.stats), (packer.tokenize, None)):
        known = function.__annotations__.keys() | (options_for(base.__name__).keys() if base else set())
        fields = [f"    {name}: {types[name]}" for name in options_for(function.__name__) if name not in known]
        bases = _class_name(base) if base else "TypedDict"
        head = f"class {_class_name(function)}({bases}, total=False):"
        doc = f'    """Options of `packer.{function.__name__}`."""'
        classes.append("\n".join([head, doc, "", *fields, ""]))
    words = set(re.findall(r"\w+", "".join(classes)))
    choices = sorted(word for word in words if get_origin(getattr(declaring, word, None)) is Literal)
    return "\n\n".join([_ARGUMENTS.format(choices=", ".join(choices)), *classes])


def _class_name(function: Callable[..., object]) -> str:
    return f"{function.__name__.title()}Arguments"


def _types(declaration: type) -> dict[str, str]:
    """Return the types of options by name, as wide as the functions that convert their values accept them."""
    types = {}
    for name, option in options_of(declaration).items():
        hint = next(each.__annotations__[name] for each in declaration.__mro__ if name in each.__annotations__)
        if option.convert is not None:
            hint = next(iter(option.convert.__annotations__.values()))
        hint = re.sub(r"^tuple\[([\w.]+), \.\.\.\]$", r"Sequence[\1]", hint)
        hint += " | None" if option.is_optional and "None" not in hint else ""
        types[name] = hint
    return types


if __name__ == "__main__":
    for path, text in commands_pages().items():
        (Path(__file__).parent / "reference" / path).write_text(text)
    Path(declaring.__file__).with_name("arguments.py").write_text(arguments_module())
