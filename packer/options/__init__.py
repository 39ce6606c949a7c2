"""The options, declared once.

    pack_fields.py      options that affect the bytes of a packed dataset
    pack_options.py     which of these cannot be combined, and what follows from them
    run_options.py      options of every command that writes a folder
    option.py           how an option is declared, and how declarations are read
    choices.py          values of options that are chosen from a list
    values.py           values as users give them: sizes, limits, lists
    arguments.py        types of the keyword arguments of `packer.pack`, made from the declarations

An option of a single command is a parameter of the command in `packer/cli`, annotated with `Option`. The command line,
the checks of values, the option table of the manifest and docs/reference/commands/ follow from the declarations.
Nothing here imports numpy, pyarrow or Numba.
"""

from packer.options.option import Option, options_of, values_of
from packer.options.pack_options import PackOptions
from packer.options.run_options import RunOptions
from packer.options.values import byte_size, parse_size

__all__ = [
    "Option",
    "PackOptions",
    "RunOptions",
    "byte_size",
    "options_of",
    "parse_size",
    "values_of",
]
