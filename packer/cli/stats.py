"""`packer stats`: padding of a dataset now, and when packed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click

from packer.cli.command import AsJson, BatchSize, command, options
from packer.cli.config_options import like_option
from packer.cli.progress_bars import progress_bars
from packer.cli.report_files import Report, WithText, check_report_files, text_decoder, write_report_files
from packer.cli.source_options import MixtureSources, sources_and_weights
from packer.errors import OptionError, PackerError
from packer.options import About, PackOptions
from packer.options.choices import ReportPlot
from packer.options.option import OUTPUT
from packer.options.values import as_length
from packer.paths import PathList, expanded
from packer.stores import any_path
from packer.system_errors import system_errors

if TYPE_CHECKING:
    from packer.progress import Progress
    from packer.stats.report_figures import ReportFigures


def _ascending(lengths: str | int | Sequence[int]) -> tuple[int, ...]:
    """Return distinct row lengths in ascending order: "4k,512" -> (512, 4096).

    Raises:
        OptionError: one is not a whole number.
    """
    if isinstance(lengths, int):
        return (lengths,)
    words = lengths.split(",") if isinstance(lengths, str) else lengths
    try:
        return tuple(sorted({int(as_length(word)) for word in words}))
    except ValueError:
        raise OptionError(
            f"{lengths!r} is not a list of row lengths: write 4096, or 512,1024,2048 for several"
        ) from None


Plot = Annotated[Path | None, About("SVG file to write: one plot of the report.", OUTPUT, metavar="FILE.svg")]
PlotOf = Annotated[ReportPlot, About("The plot that --plot writes.", OUTPUT, metavar="NAME")]


@command(short_help="Show the padding of a dataset now, and when packed.")
@click.argument("dataset", nargs=-1)
@like_option
@options(
    PackOptions,
    "max_len",
    help="Number of tokens in a row, or several to compare, as in 512,1k,2k; not for packed datasets.",
    is_list=True,
    default=(4096,),
    default_words="4096",
    metavar="N[,N...]",
    convert=_ascending,
)
@options(PackOptions, of="stats")
def stats(
    dataset: tuple[str, ...],
    max_len: tuple[int, ...],
    sources: MixtureSources = (),
    batch_size: BatchSize = 64,
    report: Report = None,
    with_text: WithText = False,
    plot: Plot = None,
    plot_of: PlotOf = "rows",
    as_json: AsJson = False,
    **values: Any,
) -> None:
    """Show how much padding DATASET has now, and how much when packed; or how full a packed dataset is.

    It predicts the number of rows that `pack` makes with the same options, also for mixtures, groups, pairs and
    limits. Several row lengths are compared in a table.
    """
    source, weights = sources_and_weights(dataset, sources)
    tokenizer = values["tokenizer"]
    check_report_files(report=report, plot=plot, with_text=with_text, tokenizer=tokenizer)
    wants_files = report is not None or plot is not None
    with progress_bars() as progress:
        if isinstance(source, str) and _is_packed(source):
            decode = text_decoder(with_text=with_text, tokenizer=tokenizer)
            found = _of_packed(source, max_len, batch_size, decode, progress, wants_files=wants_files)
        else:
            if with_text:
                raise PackerError(
                    "--with-text is for a packed dataset: pack first, as in packer pack DATASET --report F"
                )
            pack_options = PackOptions(weights=weights, max_len=max_len[-1], **values)
            found = _of_dataset(source, pack_options, max_len, batch_size, progress, wants_files=wants_files)
        lines = (
            []
            if found.figures is None
            else write_report_files(found.figures, report=report, plot=plot, plot_of=plot_of)
        )
    click.echo(json.dumps(found.content, indent=1) if as_json else "\n".join([found.text, *lines]))


class _Found(NamedTuple):
    """Output as JSON and as text, and the figures of a report; None if no report is requested."""

    content: dict[str, object]
    text: str
    figures: ReportFigures | None


def _is_packed(source: str) -> bool:
    """Whether a source is a packed dataset.

    Raises:
        PackerError: the store cannot be read.
    """
    from packer.shards.manifest import is_packed

    path = any_path(expanded(source))
    with system_errors(path, resumes=False):
        return is_packed(path)


def _of_packed(
    packed: str,
    max_lens: tuple[int, ...],
    batch_size: int,
    decode: Callable[[Any], str] | None,
    progress: Progress,
    *,
    wants_files: bool,
) -> _Found:
    """Describe a packed dataset.

    Raises:
        PackerError: it cannot be read, or there are several lengths.
    """
    from packer.pipeline import statistics
    from packer.report import dataset_report, plain_text

    if len(max_lens) > 1:
        raise PackerError(
            f"--max-len {','.join(map(str, max_lens))}: {packed} is packed, into rows of one length; "
            "compare lengths on the dataset that it was packed from"
        )
    found = statistics.packed_statistics(packed)
    text = dataset_report.render_packed_stats(found, unicode=plain_text.can_draw_blocks(sys.stdout.encoding))
    figures = None
    if wants_files:
        from packer.pipeline.collect_figures import packed_figures

        figures = packed_figures(packed, documents_per_step=batch_size, decode=decode, progress=progress)
    return _Found(found.to_json(), text, figures)


def _of_dataset(
    source: str | PathList | list[str],
    pack_options: PackOptions,
    max_lens: tuple[int, ...],
    batch_size: int,
    progress: Progress,
    *,
    wants_files: bool,
) -> _Found:
    """Describe a dataset or a mixture, at one row length or at several.

    Raises:
        PackerError: it cannot be read, or there is nothing in it to pack.
    """
    from packer.pipeline import measure_row_lengths, statistics
    from packer.report import dataset_report, plain_text, row_length_table

    is_choice = len(max_lens) > 1
    figures = None
    if wants_files:
        from packer.pipeline.collect_figures import dataset_figures

        figures = dataset_figures(
            source,
            options=pack_options,
            max_lens=max_lens if is_choice else (),
            documents_per_step=batch_size,
            progress=progress,
        )
    if is_choice:
        lengths = figures.row_lengths if figures is not None else None
        lengths = lengths or measure_row_lengths.row_length_statistics(
            source, options=pack_options, max_lens=max_lens, documents_per_step=batch_size, progress=progress
        )
        return _Found(lengths.to_json(), row_length_table.render_row_lengths(lengths), figures)
    stats = figures.stats if figures is not None else None
    stats = stats or statistics.dataset_statistics(
        source, options=pack_options, documents_per_step=batch_size, progress=progress
    )
    unicode = plain_text.can_draw_blocks(sys.stdout.encoding)
    text = dataset_report.render_stats(stats, unicode=unicode, mix_unit=pack_options.mix_unit)
    return _Found(stats.to_json(), text, figures)
