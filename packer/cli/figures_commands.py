"""The command stats, which prints figures, and writes nothing but reports of them."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict

import click

from packer.algorithms import ALGORITHMS, ALIASES
from packer.cli.command import ARGUMENTS, command
from packer.cli.printing import echo, echo_json
from packer.cli.shared_options import Accumulation, AsJson, BatchSize, DataParallel, ModelSize, Report, source_of
from packer.errors import PackerError
from packer.options import PackOptions
from packer.options.option import as_lengths
from packer.progress_bars import progress_bars


@command(
    PackOptions,
    changes={
        "max_len": {
            "help": "Number of tokens in a row, or several to compare, as in 512,1k,2k; not for packed datasets.",
            "is_list": True,
            "default": (),
            "default_words": "4096",
            "metavar": "N[,N...]",
            "convert": as_lengths,
        },
        "algorithm": {
            "help": "Algorithm that decides which documents share a row; all compares those that are quick.",
            "choices": (*ALGORITHMS, *ALIASES, "all"),
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
    data_parallel: DataParallel = None,
    accumulation: Accumulation = None,
    model: ModelSize = None,
    report: Report = None,
    as_json: AsJson = False,
    **values: object,
) -> None:
    """Show how much padding DATASET has now, and how much when packed; or how full a packed dataset is.

    It predicts the number of rows that `pack` makes with the same options, also for groups, pairs and limits.
    Several row lengths are compared in a table, and with `--algorithm all` the algorithms. DATASET may also be a
    histogram: a CSV file with the header length,count. Of several packed datasets, as in web-packed:0.7
    code-packed:0.3, it shows the shares in which packer.load combines them.
    """
    from packer.pipeline.report_file import ReportFile
    from packer.pipeline.stats import stats as figures_of
    from packer.pipeline.waiting import training_job
    from packer.report.plain_text import in_encoding

    if _print_shares(dataset, as_json=as_json, wants_report=report is not None):
        return
    words = click.get_current_context().meta[ARGUMENTS]
    page = ReportFile(path=report, tokenizer=tokenizer, words=tuple(words))
    with progress_bars() as progress:
        found = figures_of(
            source_of(dataset),
            max_lens=max_len,
            values={**values, "tokenizer": tokenizer},
            documents_per_step=batch_size,
            page=page,
            job=training_job(data_parallel, accumulation, model),
            progress=progress,
        )
    if as_json:
        echo_json(found.to_dict())
        return
    echo(in_encoding(str(found), sys.stdout.encoding))
    if report is not None:
        echo(f"Report written to {report}")


def _shares_of(dataset: tuple[str, ...]) -> list[str] | dict[str, float] | None:
    """Return several packed datasets, or these with weights, as `packer.load` takes them; None for anything else."""
    from packer.pipeline.stats import names_packed

    weights: dict[str, float] = {}
    for word in dataset:
        path, _, weight = word.rpartition(":")
        with contextlib.suppress(ValueError):
            if path and not names_packed(word):
                weights[path] = float(weight)
    paths = list(weights) if weights else list(dataset)
    if not weights and len(dataset) < 2:
        return None
    if len(paths) < len(dataset) or not all(map(names_packed, paths)):
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
