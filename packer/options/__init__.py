"""The options, declared once.

    declarations.py     options that affect the bytes of a packed dataset, and options of what writes a folder
    pack_options.py     which of the former cannot be combined, and what follows from them
    option.py           how an option is declared, how declarations are read, and values as users give them
    choices.py          values of options that are chosen from a list
    arguments.py        types of the keyword arguments of `packer.pack`, made from the declarations

An option of a single command is a parameter of the command in `packer/cli`, annotated with `Option`. The command line,
the checks of values, the option table of the manifest and docs/reference/commands/ follow from the declarations.
Nothing here imports numpy, pyarrow or Numba.
"""

from packer.options.declarations import RunOptions
from packer.options.option import Option, byte_size, options_of, parse_size, values_of
from packer.options.pack_options import PackOptions

__all__ = [
    "Option",
    "PackOptions",
    "RunOptions",
    "byte_size",
    "options_of",
    "parse_size",
    "values_of",
]
