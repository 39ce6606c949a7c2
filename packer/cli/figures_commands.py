"""The command stats, which prints figures, and writes nothing but reports of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from click.core import ParameterSource

from packer.algorithms import ALGORITHMS, ALIASES
from packer.cli.command import command
from packer.cli.printing import echo, echo_json
from packer.cli.progress_bars import progress_bars
from packer.cli.shared_options import (
    AsJson,
    BatchSize,
    Report,
    ReportFile,
    source_of,
)
from packer.errors import OptionError, PackerError
from packer.options import PackOptions, values_of
from packer.options.option import as_length
from packer.paths import PathList, expanded, is_histogram
from packer.stores import any_path
from packer.system_errors import system_errors

ALL = "all"
"""Value of --algorithm that compares all algorithms."""


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
        },
        "algorithm": {
            "help": "Algorithm that decides which documents share a row; all compares those that are quick.",
            "choices": (*ALGORITHMS, *ALIASES, ALL),
        },
    },
    short_help="Show the padding of a dataset now, and when packed.",
)
@click.argument("dataset", nargs=-1)
def stats(
    dataset: tuple[str, ...],
    max_len: tuple[int, ...],
    tokenizer: str | None,
    batch_size: BatchSize = 64,
    report: Report = None,
    as_json: AsJson = False,
    **values: object,
) -> None:
    """Show how much padding DATASET has now, and how much when packed; or how full a packed dataset is.

    It predicts the number of rows that `pack` makes with the same options, also for groups, pairs and limits.
    Several row lengths are compared in a table, and with `--algorithm all` the algorithms. DATASET may also be a
    histogram: a file NAME.csv with the header length,count. Of several packed datasets, as in web-packed:0.7
    code-packed:0.3, it shows the shares in which packer.load combines them.
    """
    from packer.pipeline.collect_figures import dataset_figures, packed_figures
    from packer.report.figure_tables import render_figures, render_row_lengths
    from packer.report.plain_text import in_encoding

    if _print_shares(dataset, as_json=as_json, wants_report=report is not None):
        return
    source = source_of(dataset)
    page = ReportFile(path=report, tokenizer=tokenizer)
    if values["algorithm"] == ALL or is_histogram(source, tokenizer):
        _compare(source, max_len, page, values, as_json=as_json)
        return
    several = len(max_len) > 1
    with progress_bars() as progress:
        collecting: dict[str, Any] = {"documents_per_step": batch_size, "for_report": report is not None}
        if isinstance(source, str) and _is_packed(source):
            _refuse_lengths(source, max_len)
            found = packed_figures(source, decode=page.decoder(), progress=progress, **collecting)
        else:
            options = PackOptions(max_len=max_len[-1], tokenizer=tokenizer, **values_of(PackOptions, values))
            max_lens = max_len if several else ()
            found = dataset_figures(source, options=options, max_lens=max_lens, progress=progress, **collecting)
        lines = page.write(found)
    compared = found.row_lengths if several else None
    if as_json:
        echo_json((compared or found).to_json())
    elif compared is not None:
        echo("\n".join([render_row_lengths(compared), *lines]))
    else:
        echo("\n".join([in_encoding(render_figures(found), sys.stdout.encoding), *lines]))


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


def _print_shares(names: tuple[str, ...], *, as_json: bool, wants_report: bool) -> bool:
    """Print what an epoch takes of several packed datasets; return False if the names are no such."""
    from packer.loader.combined import CombinedDataset
    from packer.loader.load import load

    if (paths := _shares_of(names)) is None:
        return False
    if wants_report:
        raise PackerError("a report shows one dataset: leave out --report, or name one")
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


def _refuse_lengths(packed: str, max_len: tuple[int, ...]) -> None:
    """Raise a PackerError if lengths are given, in which a packed dataset does not have its rows."""
    from packer.shards.reader import read_manifest

    is_given = click.get_current_context().get_parameter_source("max_len") is ParameterSource.COMMANDLINE
    if is_given and max_len != (read_manifest(any_path(expanded(packed))).options.max_len,):
        raise PackerError(
            f"--max-len {','.join(map(str, max_len))}: {packed} is packed, into rows of one length; leave it out, or "
            "predict other lengths on the dataset that it was packed from"
        )


def _compare(
    source: str | PathList,
    max_len: tuple[int, ...],
    page: ReportFile,
    values: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print the rows that each algorithm makes, or one of them of a histogram."""
    from packer.pipeline.comparing import compare
    from packer.report.figure_tables import render_comparison

    if page.path is not None:
        raise OptionError(f"--report {page.path} is about the rows of a dataset by one algorithm: leave it out")
    if len(max_len) > 1:
        raise OptionError(f"--max-len {','.join(map(str, max_len))}: algorithms are compared at one length; choose it")
    options = PackOptions(
        max_len=max_len[0], tokenizer=page.tokenizer, **values_of(PackOptions, {**values, "algorithm": "auto"})
    )
    if options.limits or options.align > 1:
        raise OptionError("--limit and --align are not for all algorithms: name one by --algorithm")
    algorithms = () if values["algorithm"] == ALL else (values["algorithm"],)
    with progress_bars() as progress:
        found = compare(source, options=options, algorithms=algorithms, progress=progress)
    if as_json:
        echo_json(found.to_json())
    else:
        echo(render_comparison(found))
