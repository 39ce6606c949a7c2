"""The options, declared once.

    read_options.py     what is read from a source
    row_options.py      how documents are cut, which share a row, and what is written; all options of a manifest
    run_options.py      options of everything that writes a folder, which do not affect the bytes
    option.py           how an option is declared, how declarations are read, and values as users give them
    choices.py          values of options that are chosen from a list
    arguments.py        types of the keyword arguments of `packer.pack`, made from the declarations

An option of a single command is a parameter of the command in `packer/cli`, annotated with `Option`. The command line,
the checks of values, the option table of the manifest and docs/reference/commands/ follow from the declarations.
Nothing here imports numpy, pyarrow or Numba.
"""

from packer.options.option import Option, byte_size, options_of, parse_size, values_of
from packer.options.read_options import ReadOptions
from packer.options.row_options import CutOptions, PackOptions
from packer.options.run_options import RunOptions

__all__ = [
    "CutOptions",
    "Option",
    "PackOptions",
    "ReadOptions",
    "RunOptions",
    "byte_size",
    "options_of",
    "parse_size",
    "values_of",
]
