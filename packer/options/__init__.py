"""Declarations of the options.

    pack_options.py     options of commands that write a dataset
    option.py           how options are declared, how declarations are read, and how users' values are converted
    arguments.py        types of keyword arguments for type checkers and editors, generated from the declarations

`packer/cli/command.py` declares the options that only commands have. The command line, the checks of values,
the manifest's option table and docs/reference/commands/ follow from these declarations. Nothing here imports numpy,
pyarrow or Numba.
"""

from __future__ import annotations

from packer.options.option import Option, as_bytes, byte_size, options_of, values_of
from packer.options.pack_options import PackOptions, ReadOptions, RunOptions

__all__ = [
    "Option",
    "PackOptions",
    "ReadOptions",
    "RunOptions",
    "as_bytes",
    "byte_size",
    "options_for",
    "options_of",
    "values_of",
]


def options_for(command: str) -> dict[str, Option]:
    """Return the options that a command shares with the Python function of the same name, by name."""
    declared = options_of(PackOptions) | options_of(RunOptions)
    return {name: option for name, option in declared.items() if command in option.commands}
