"""The commands that print figures, and write nothing but reports of them: stats and compare."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from packer.cli.command import command
from packer.cli.printing import echo, echo_json
from packer.cli.progress_bars import progress_bars
from packer.cli.shared_options import (
    AsJson,
    BatchSize,
    Report,
    ReportFiles,
    WithText,
    like_option,
    source_of,
)
from packer.errors import OptionError, PackerError
from packer.options import Option, PackOptions, values_of
from packer.options.choices import ReportPlot
from packer.options.option import OUTPUT, as_length
from packer.paths import expanded
from packer.stores import any_path
from packer.system_errors import system_errors

if TYPE_CHECKING:
    from packer.figures.dataset_figures import Figures, RowLengths


def _ascending(lengths: str | int | Sequence[int]) -> tuple[int, ...]:
    """Return distinct row lengths in ascending order: "4k,512" -> (512, 4096)."""
    if isinstance(lengths, int):
        return (lengths,)
    words = lengths.split(",") if isinstance(lengths, str) else lengths
    try:
        return tuple(sorted({int(as_length(word)) for word in words}))
    except ValueError:
        raise OptionError(
            f"{lengths!r} is not a list of row lengths: write 4096, or 512,1024,2048 for several"
        ) from None


Plot = Annotated[Path | None, Option("SVG file to write: one plot of the report.", OUTPUT, metavar="FILE.svg")]
PlotOf = Annotated[ReportPlot, Option("The plot that --plot writes.", OUTPUT, metavar="NAME")]


@command(
    PackOptions,
    changes={
        "max_len": {
            "help": "Number of tokens in a row, or several to compare, as in 512,1k,2k; not for packed datasets.",
            "is_list": True,
            "default": (4096,),
            "default_words": "4096",
            "metavar": "N[,N...]",
            "convert": _ascending,
        }
    },
    short_help="Show the padding of a dataset now, and when packed.",
)
@click.argument("dataset", nargs=-1)
@like_option
def stats(
    dataset: tuple[str, ...],
    max_len: tuple[int, ...],
    tokenizer: str | None,
    batch_size: BatchSize = 64,
    report: Report = None,
    with_text: WithText = False,
    plot: Plot = None,
    plot_of: PlotOf = "rows",
    as_json: AsJson = False,
    **values: object,
) -> None:
    """Show how much padding DATASET has now, and how much when packed; or how full a packed dataset is.

    It predicts the number of rows that `pack` makes with the same options, also for groups, pairs and limits.
    Several row lengths are compared in a table. Of several packed datasets, as in web-packed:0.7 code-packed:0.3, it
    shows the shares in which packer.load combines them.
    """
    from packer.figures.dataset_figures import Figures
    from packer.figures.figure_tables import render_figures, render_row_lengths
    from packer.figures.plain_text import in_encoding
    from packer.pipeline.collect_figures import dataset_figures, packed_figures, row_lengths

    if _print_shares(dataset, as_json=as_json, wants_files=report is not None or plot is not None):
        return
    source = source_of(dataset)
    files = ReportFiles(report=report, plot=plot, plot_of=plot_of, with_text=with_text, tokenizer=tokenizer)
    wants_files, several = report is not None or plot is not None, len(max_len) > 1
    found: Figures | RowLengths | None
    with progress_bars() as progress:
        collecting: dict[str, Any] = {"documents_per_step": batch_size, "progress": progress}
        if isinstance(source, str) and _is_packed(source):
            if several:
                raise PackerError(
                    f"--max-len {','.join(map(str, max_len))}: {source} is packed, into rows of one length; "
                    "compare lengths on the dataset that it was packed from"
                )
            found = packed_figures(source, for_report=wants_files, decode=files.decoder(), **collecting)
        else:
            if with_text:
                raise PackerError("--with-text is for a packed dataset: pack first, as in packer pack DATA --report F")
            collecting["options"] = PackOptions(
                max_len=max_len[-1], tokenizer=tokenizer, **values_of(PackOptions, values)
            )
            collecting["max_lens"] = max_len if several else ()
            if several and not wants_files:  # only what tells the lengths apart
                found = row_lengths(source, **collecting)
            else:
                found = dataset_figures(source, for_report=wants_files, **collecting)
        lines = []
        if wants_files and isinstance(found, Figures):
            lines = files.write(found)
            found = found.row_lengths if several else found  # what is printed; everything else is in the report
    assert found is not None
    if as_json:
        echo_json(found.to_json())
    elif isinstance(found, Figures):
        echo("\n".join([in_encoding(render_figures(found), sys.stdout.encoding), *lines]))
    else:
        echo("\n".join([render_row_lengths(found), *lines]))


def _shares_of(dataset: tuple[str, ...]) -> list[str] | dict[str, float] | None:
    """Return several packed datasets, or these with weights, as `packer.load` takes them; None for anything else."""
    weights: dict[str, float] = {}
    for word in dataset:
        path, _, weight = word.rpartition(":")
        with contextlib.suppress(ValueError):
            if path and not _is_packed(word):
                weights[path] = float(weight)
    paths = list(weights) if weights else list(dataset)
    if not weights and len(dataset) < 2:
        return None
    if len(paths) < len(dataset) or not all(map(_is_packed, paths)):
        if weights:
            raise PackerError(
                f"{' '.join(dataset)}: weights are for packed datasets, each of which has one, as in "
                "web-packed-4096:0.7 code-packed-4096:0.3"
            )
        return None
    return weights or paths


def _print_shares(names: tuple[str, ...], *, as_json: bool, wants_files: bool) -> bool:
    """Print what an epoch takes of several packed datasets; return False if the names are no such."""
    from packer.loader.combined import CombinedDataset
    from packer.loader.load import load

    if (paths := _shares_of(names)) is None:
        return False
    if wants_files:
        raise PackerError("a report shows one dataset: leave out --report and --plot, or name one")
    dataset = load(paths)
    assert isinstance(dataset, CombinedDataset)
    if not as_json:
        echo(repr(dataset))
        return True
    parts = zip(dataset.datasets, dataset.shares, strict=True)
    shares = [{"path": str(one.path), **asdict(share)} for one, share in parts]
    echo_json({"rows": len(dataset), "max_len": dataset.max_len, "datasets": shares})
    return True


def _is_packed(source: str) -> bool:
    """Whether a source is a packed dataset."""
    from packer.shards.manifest import is_packed

    path = any_path(expanded(source))
    with system_errors(path, resumes=False):
        return is_packed(path)


@command(
    PackOptions,
    changes={"algorithm": {"is_list": True, "default": (), "help": "Run only this algorithm."}},
    short_help="Compare the rows that each algorithm needs.",
)
@click.argument("dataset", nargs=-1)
def compare(
    dataset: tuple[str, ...],
    algorithm: tuple[str, ...],
    batch_size: BatchSize = 64,
    as_json: AsJson = False,
    **values: object,
) -> None:
    """Run all algorithms on DATASET and show the rows that each needs; nothing is written.

    For rows above 512 tokens, algorithms that may take minutes are left out unless --algorithm names them.

    DATASET is a source as for `pack`, or a histogram: a file NAME.csv with the header length,count.
    """
    from packer.figures.figure_tables import render_comparison
    from packer.pipeline import comparing

    source = source_of(dataset)
    pack_options = PackOptions(**values_of(PackOptions, values))
    with progress_bars() as progress:
        found = comparing.compare(
            source, options=pack_options, algorithms=algorithm, documents_per_step=batch_size, progress=progress
        )
    if as_json:
        echo_json(found.to_json())
    else:
        echo(render_comparison(found))
