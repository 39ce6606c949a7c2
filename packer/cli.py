"""The command line: options, progress, exit codes. It translates and calls; heavy imports wait until needed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from packer import __version__
from packer.algorithms import ALGORITHMS, ALIASES
from packer.check import check
from packer.errors import PackerError

if TYPE_CHECKING:
    from packer.options import PackOptions
    from packer.progress import Progress

Command = TypeVar("Command", bound=Callable[..., Any])

LONG_NAMES = ("split", "truncate", "drop", "error")  # as in packer.plan, which imports numpy; a test compares them


def main() -> None:
    """Run the command; exit codes: 0 done, 1 an error of ours, 2 usage."""
    cli(prog_name="packer")


@contextmanager
def _one_line_errors(*, debug: bool) -> Iterator[None]:
    """Turn a PackerError, a lack of memory and an interrupt into one line and exit code 1."""
    try:
        yield
    except PackerError as error:
        if debug:
            raise
        message = " ".join(str(error).splitlines())
    except MemoryError as error:
        if debug:
            raise
        message = f"out of memory ({error}): choose a smaller --max-len or fewer --workers, or free some"
    except KeyboardInterrupt:
        if debug:
            raise
        message = "interrupted; the same command goes on where it stopped"
    else:
        return
    click.echo(f"packer: {message}", err=True)
    sys.exit(1)


def shared_options(command: Command) -> Command:
    """Declare what `pack` and `stats` have in common: what to read, and how to pack it."""
    options = (
        click.option("--algorithm", type=click.Choice([*ALGORITHMS, *ALIASES]), default="bfd", show_default=True,
                     help="How documents share rows."),
        click.option("--max-segments", type=click.IntRange(1), metavar="N", help="The most documents in a row."),
        click.option("--long", "long_policy", type=click.Choice(LONG_NAMES), default="split", show_default=True,
                     help="What happens to documents longer than --max-len."),
        click.option("--split", metavar="NAME", help="Split of a DatasetDict or a Hub dataset."),
        click.option("--input-column", default="input_ids", show_default=True, metavar="NAME",
                     help="Column with the tokens."),
        click.option("--labels-column", default="labels", show_default=True, metavar="NAME",
                     help="Column with the labels; where there is none, labels are made from the tokens."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
        click.option("--debug", is_flag=True, help="Show tracebacks."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    r"""Pack a tokenized dataset once, offline, into fixed-length rows with explicit document boundaries.

    \b
    packer pack dataset --max-len 4096        writes dataset-packed-4096/
    packer stats dataset                      padding now, and packed
    packer verify dataset-packed-4096 --source dataset
    packer check Qwen/Qwen3-0.6B              which attention keeps packed documents apart
    packer demo                               all of it on the Python standard library
    """


@cli.command()
@click.argument("dataset")
@click.option("--max-len", type=click.IntRange(1), required=True, metavar="N", help="Tokens of a row.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write [default: DATASET-packed-N].")
@shared_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Another seed is another packing of as many rows.")  # fmt: skip
@click.option("--pad-id", type=click.IntRange(0), default=0, show_default=True, help="Token id of the padding.")
@click.option("--emit", default="labels", show_default=True, metavar="COLUMNS",
              help="Token columns beside input_ids; labels,position_ids adds positions.")  # fmt: skip
@click.option("--no-labels", is_flag=True, help="Leave out labels; only packer.load is safe then.")
@click.option("--shard-size", default="512MB", show_default=True, metavar="SIZE", help="Size of a shard at most.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Shards written at a time [default: the cores].")
@click.option("--no-sync", is_flag=True, help="Skip fsync: faster, not safe against a power failure.")
@click.option("--overwrite", is_flag=True, help="Replace the output, at one stroke when the new dataset is whole.")
def pack(
    dataset: str,
    max_len: int,
    output: Path | None,
    algorithm: str,
    max_segments: int | None,
    long_policy: str,
    split: str | None,
    input_column: str,
    labels_column: str,
    as_json: bool,
    debug: bool,
    seed: int,
    pad_id: int,
    emit: str,
    no_labels: bool,
    shard_size: str,
    workers: int | None,
    no_sync: bool,
    overwrite: bool,
) -> None:
    """Pack DATASET into rows of exactly --max-len tokens.

    DATASET is a folder of datasets.save_to_disk, an Arrow, Parquet or JSONL file (.gz, .zst), a folder or glob of
    these, or a Hub id. Killed at any instant, the same command goes on where it stopped.
    """
    with _one_line_errors(debug=debug), _progress_bars() as progress:
        from packer import pipeline
        from packer.options import EMITTED, parse_size

        emitted = [name.strip() for name in emit.split(",") if name.strip()]
        unknown = [name for name in emitted if name not in EMITTED]
        if unknown:
            raise PackerError(f"--emit {emit}: no column {unknown[0]!r}; there are {', '.join(EMITTED)}")
        options = _pack_options(
            max_len, algorithm, max_segments, long_policy, split, input_column, labels_column,
            seed=seed, pad_id=pad_id, labels=not no_labels, position_ids="position_ids" in emitted,
            shard_size=parse_size(shard_size),
        )  # fmt: skip
        begun = time.perf_counter()
        result = pipeline.pack(
            dataset,
            output,
            options=options,
            workers=workers,
            sync=not no_sync,
            overwrite=overwrite,
            progress=progress,
        )
        seconds = time.perf_counter() - begun
    if as_json:
        content = {"output": str(result.output), "found_complete": result.found_complete, "seconds": seconds}
        click.echo(json.dumps({**content, **result.manifest.to_dict()}, indent=1))
    elif result.found_complete:
        click.echo(f"{result.output} is complete, packed with the same options from the same source: nothing to do")
    else:
        from packer.report import render_manifest_summary

        click.echo(render_manifest_summary(result.manifest.to_dict(), output=str(result.output), seconds=seconds))


@cli.command()
@click.argument("dataset")
@click.option("--max-len", type=click.IntRange(1), default=4096, show_default=True, metavar="N",
              help="Tokens of a row; a packed dataset has its own.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, metavar="N",
              help="Documents per optimizer step, to be kept when packed.")  # fmt: skip
@shared_options
def stats(
    dataset: str,
    max_len: int,
    batch_size: int,
    algorithm: str,
    max_segments: int | None,
    long_policy: str,
    split: str | None,
    input_column: str,
    labels_column: str,
    as_json: bool,
    debug: bool,
) -> None:
    """Show the padding ratio of DATASET now and what packing makes of it, or how full a packed dataset is."""
    with _one_line_errors(debug=debug), _progress_bars() as progress:
        from packer import pipeline, report
        from packer.shards.manifest import is_packed

        unicode = report.can_draw_blocks(sys.stdout.encoding)
        if is_packed(Path(dataset)):
            packed = pipeline.packed_statistics(dataset)
            content, text = packed.to_json(), report.render_packed_stats(packed, unicode=unicode)
        else:
            options = _pack_options(
                max_len, algorithm, max_segments, long_policy, split, input_column, labels_column
            )  # fmt: skip
            found = pipeline.dataset_statistics(
                dataset, options=options, documents_per_step=batch_size, progress=progress
            )
            content, text = found.to_json(), report.render_stats(found, unicode=unicode)
    click.echo(json.dumps(content, indent=1) if as_json else text)


@cli.command()
@click.argument("packed", type=click.Path(path_type=Path))
@click.option("--source", metavar="DATASET", help="Compare every token with what was packed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def verify(packed: Path, source: str | None, as_json: bool, debug: bool) -> None:
    """Check the hashes and the structure of a PACKED dataset and, with --source, every token."""
    with _one_line_errors(debug=debug), _progress_bars() as progress:
        from packer import pipeline
        from packer.shards import read_manifest

        faults = list(pipeline.verify(packed, source, progress=progress))
        manifest = None if faults else read_manifest(packed)
    if as_json:
        click.echo(json.dumps({"packed": str(packed), "source": source, "faults": faults}, indent=1))
    for fault in [] if as_json else faults:
        click.echo(f"packer: {packed}: {fault}", err=True)
    if faults:
        sys.exit(1)
    if manifest is not None and not as_json:
        scope = "hashes and structure" if source is None else "hashes, structure and every token of the source"
        tokens = manifest.totals["tokens_packed"]
        click.echo(f"{packed} is right: {scope} ({manifest.packs:,} rows, {tokens:,} tokens)")


@cli.command()
@click.argument("packed", type=click.Path(path_type=Path))
@click.argument("row", type=int)
@click.option("--tokenizer", metavar="PATH_OR_ID", help="Show text instead of token ids.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def show(packed: Path, row: int, tokenizer: str | None, debug: bool) -> None:
    """Show one ROW of a PACKED dataset, segment by segment."""
    with _one_line_errors(debug=debug):
        from packer.loader import load
        from packer.report import render_row
        from packer.tokenize import open_decoder

        dataset = load(packed)
        if not -len(dataset) <= row < len(dataset):
            raise PackerError(f"{packed} has no row {row}: there are {len(dataset):,}, from 0 to {len(dataset) - 1:,}")
        decode = open_decoder(tokenizer) if tokenizer is not None else None
        click.echo(render_row(dataset[row], decode=decode))


@cli.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("packer-demo"), show_default=True,
              help="Folder for the corpus and what becomes of it.")  # fmt: skip
@click.option("--max-len", type=click.IntRange(1), default=4096, show_default=True, metavar="N",
              help="Tokens of a row.")  # fmt: skip
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def demo(output: Path, max_len: int, debug: bool) -> None:
    """Pack the source files of this machine's Python standard library: nothing is downloaded.

    A byte-level BPE tokenizer is trained on them in place; then stats, pack, verify and one batch of the loader.
    """
    with _one_line_errors(debug=debug), _progress_bars() as progress:
        from packer.demo import run_demo

        for text in run_demo(output, max_len=max_len, progress=progress):
            click.echo(text)


cli.add_command(check)


def _pack_options(
    max_len: int,
    algorithm: str,
    max_segments: int | None,
    long_policy: str,
    split: str | None,
    input_column: str,
    labels_column: str,
    **only_pack: Any,
) -> PackOptions:
    from packer.options import PackOptions

    return PackOptions(
        max_len=max_len,
        algorithm=algorithm,
        max_segments=max_segments,
        long=long_policy,  # type: ignore[arg-type]  # click has checked it
        split=split,
        input_column=input_column,
        labels_column=labels_column,
        **only_pack,
    )


@contextmanager
def _progress_bars() -> Iterator[Progress]:
    """Draw a bar on stderr for each stage that takes more than a second."""
    from tqdm import tqdm

    bars: dict[str, tqdm[Any]] = {}

    def draw(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            for bar in bars.values():
                bar.close()
            unit = {"write": "tok", "compare": "tok", "plan": "doc"}.get(stage, "B")
            bars[stage] = tqdm(total=total, desc=stage, unit=unit, unit_scale=True, delay=1, file=sys.stderr)
        bars[stage].update(done - bars[stage].n)

    try:
        yield draw
    finally:
        for bar in bars.values():
            bar.close()
