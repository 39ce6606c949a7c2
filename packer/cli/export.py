"""`packer export`: write a packed dataset as files for another trainer."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Annotated

import click

from packer.cli.command import AsJson, UserPath, command
from packer.cli.writing_commands import write_output
from packer.exporting.targets import TARGETS
from packer.options import Option, RunOptions
from packer.options.choices import Compression
from packer.options.option import OUTPUT

To = Annotated[
    str, Option("Trainer that reads the files; parquet keeps all columns as they are.", OUTPUT, choices=tuple(TARGETS))
]
PageCompression = Annotated[Compression, Option("Compression of the Parquet pages.", OUTPUT)]


def _table() -> str:
    """Return the targets and their columns, aligned."""
    lines = []
    for name, target in TARGETS.items():
        first, *others = wrap(target.summary, 60)
        lines += [f"{name:<13}{first}", *(f"{'':13}{line}" for line in others)]
    return "\n".join(lines)


HELP = f"""Write a PACKED dataset as Parquet, with the columns that a trainer reads.

\b
{_table()}

Every shard becomes one file. An interrupted export never looks complete.
"""


@command(
    RunOptions,
    changes={"output": {"default_words": "PACKED-TO"}},
    short_help="Write a packed dataset with the columns of another trainer.",
    help=HELP,
)
@click.argument("packed", type=UserPath())
def export(
    packed: Path, *, to: To, compression: PageCompression = "zstd", as_json: AsJson = False, **values: object
) -> None:
    """Run the command; `HELP` describes it."""
    from packer.cli.run_summary import export_summary
    from packer.exporting import write_export

    write_output(
        write_export.export,
        packed,
        to=to,
        compression=compression,
        values=values,
        summary=export_summary,
        complete="is complete, exported in the same way from the same rows",
        as_json=as_json,
    )
