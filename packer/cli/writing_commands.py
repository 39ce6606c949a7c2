"""Commands that write an output: pack, tokenize, export and demo, which packs this machine's Python."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from packer.cli.command import PackedPath, command, source_of
from packer.cli.printing import echo, echo_json
from packer.cli.reading_commands import verify
from packer.errors import OptionError, PackerError
from packer.exporting.targets import STEPS, TARGETS, refuse_rows
from packer.json_records import REJECTED
from packer.options import PackOptions, ReadOptions, byte_size, values_of
from packer.plain_text import count_of, duration_and_compiling, fewest, percent, render_table, rounded
from packer.progress import progress_bars
from packer.stores.paths import local_output

if TYPE_CHECKING:
    from packer.exporting.write_export import Export
    from packer.json_records import TextIdentity, Totals
    from packer.output.job import Written
    from packer.pipeline.tokenizing import TokenizeReport
    from packer.shards.manifest import Manifest


def write_output(
    write: Callable[..., Written[Any]],
    values: Mapping[str, Any],
    *,
    as_json: bool,
    complete: str,
    summary: Callable[[Written[Any], str], Iterable[str]],
    more: Callable[[Written[Any]], list[str]] | None = None,
) -> None:
    """Call `write` with a `Job` made of `values`, and print its result.

    complete: message, after the output's name, if the output was already complete. summary: function that returns the
    lines to print, given the result of a new output and its duration as text. more: function that returns further
    lines, given the result.
    """
    from packer.algorithms.jit import compile_seconds
    from packer.engines.ranks import rank_of
    from packer.output.job import Job
    from packer.shards.files import holdout_of

    # Run it.
    begun, compiled = time.perf_counter(), compile_seconds()
    rank = rank_of(values.get("ranks"))
    with (
        progress_bars(silently=rank is not None and rank.rank > 0) as progress,
        contextlib.redirect_stdout(sys.stderr),  # Ray prints events of nodes; stdout is reserved for the result
    ):
        result = write(job=Job(progress=progress, **values_of(Job, values)))
    seconds, compiling = time.perf_counter() - begun, compile_seconds() - compiled

    # Print the result.
    if result.finished_elsewhere:  # the rank that finished it prints it
        if values["ranks"] is None:
            echo(f"{result.output} was completed by another process at the same time")
        return
    lines = [] if more is None else more(result)
    if as_json:
        found, record = {"output": str(result.output), "found_complete": result.found_complete}, result.record.to_dict()
        took = {"seconds": seconds, "compiling": compiling, **({"notes": result.notes} if result.notes else {})}
        rejected = "documents_rejected" in record.get("totals", record)
        listed = {"rejected": str(result.output / REJECTED)} if rejected else {}
        if "holdout" in record.get("options", {}):
            listed["holdout"] = str(holdout_of(result.output))
        echo_json({**found, **took, **listed, **record})
        return
    if result.found_complete:
        checked = f" ({result.checked})" if result.checked else ""
        text = [f"{result.output} {complete}: nothing to do{checked}"]
    else:
        *text, last = summary(result, duration_and_compiling(seconds, compiling))
        text += [*result.notes, last]
    echo("\n".join([*text, *lines]))


@command(
    changes={
        "output": {
            "default_words": "DATASET-packed-MAX_LEN",
            "help": "Folder to write, here or in object storage, as in s3://bucket/set.",
        },
        "lengths_column": {
            "help": "File with the number of tokens of each document, instead of DATASET: a .npy file, or a column of "
            "Arrow, Parquet, CSV or JSON lines. The result lists the documents of each row, as with --index-only.",
            "flags": ("--lengths",),
            "metavar": "FILE[:COLUMN]",
        },
    },
    resumes=True,
    short_help="Pack a dataset into rows of fixed length.",
)
@click.argument("dataset", nargs=-1)
def pack(
    dataset: tuple[str, ...],
    tokenizer: str | None,
    *,
    lengths_column: str | None,
    for_trainer: str | None,
    as_json: bool,
    **values: object,
) -> None:
    """Pack DATASET into rows of exactly --max-len tokens.

    \b
    packer pack tokens.parquet --max-len 4096
    packer pack chats.jsonl --tokenizer Qwen/Qwen3-0.6B --max-len 4096
    packer pack texts.jsonl --tokenizer gpt2 --text-column body --max-len 8k

    DATASET is a folder of datasets.save_to_disk, an Arrow, Parquet, JSON lines, CSV or text file (also .gz or .zst), an
    .idx file of Megatron with its .bin, a .ds file of datatrove, an array of tokens (.npy, .bin), a folder of these
    files, or a Hub id. FOLDER:CONFIG and ID:CONFIG select one of several configurations. DATASET contains tokens or,
    with --tokenizer, text. Several paths are read as one dataset, in this order; --output must then name the output. To
    resume an interrupted command, run it again.
    """  # noqa: D301  (an escaped b tells click to keep the lines)
    from packer.pipeline import packing

    if lengths_column is not None:
        dataset, lengths_column = _lengths_source(dataset, lengths_column)
    source = source_of(dataset)
    pack_options = PackOptions(tokenizer=tokenizer, lengths_column=lengths_column, **values_of(PackOptions, values))
    refuse_rows(for_trainer, pack_options)
    write_output(
        partial(packing.pack, source, options=pack_options),
        values,
        summary=pack_summary,
        more=lambda written: _next_step(for_trainer, written),
        complete="is complete, packed with the same options from the same source",
        as_json=as_json,
    )


def _lengths_source(dataset: tuple[str, ...], lengths: str) -> tuple[tuple[str], str]:
    """Return (paths, column) of --lengths."""
    from packer.sources.token_files import ARRAY_COLUMN

    if dataset:
        raise click.UsageError("--lengths takes the place of DATASET: give one of the two.")
    if lengths.endswith(".npy"):
        return (lengths,), ARRAY_COLUMN
    path, _, column = lengths.rpartition(":")
    if not path or not column or "/" in column:
        raise OptionError(f"--lengths is {lengths!r}: name the column as well, as in data.parquet:num_tokens")
    return (path,), column


def _next_step(trainer: str | None, written: Written[Manifest]) -> list[str]:
    """Return lines for a trainer's configuration; without a trainer, the next command, only on a terminal."""
    if trainer is not None:
        options = written.record.options
        return [STEPS[trainer].text(written.output, options.max_len, weights=options.weights_per is not None)]
    shown = f"Next: packer show {written.output} 0; for training, docs/how-to/trainers/index.md or --for TRAINER"
    return [shown] if sys.stdout.isatty() else []


@command(
    changes={"output": {"default_words": "DATASET-tokenized"}},
    resumes=True,
    short_help="Tokenize a dataset once, and keep the tokens.",
)
@click.argument("dataset", nargs=-1, required=True)
def tokenize(dataset: tuple[str, ...], *, as_json: bool, **values: object) -> None:
    """Tokenize DATASET once and store the tokens in the format of datasets.save_to_disk.

    DATASET is one path or several, as for `pack` with --tokenizer. Packing the output gives the same rows as packing
    the text. To resume an interrupted command, run it again.
    """
    from packer.pipeline import tokenizing

    write_output(
        partial(tokenizing.tokenize, source_of(dataset), options=ReadOptions(**values_of(ReadOptions, values))),
        values,
        summary=tokenize_summary,
        complete="is complete, tokenized in the same way from the same source",
        as_json=as_json,
    )


_COLUMNS = "\n".join(
    fill(target.summary, 75, initial_indent=f"{name:<18}", subsequent_indent=18 * " ")
    for name, target in TARGETS.items()
)

HELP = f"""Write a PACKED dataset in the format that a trainer reads.

\b
{_COLUMNS}

Every shard becomes a file, or a few. An interrupted export never looks complete.
"""


@command(
    changes={"output": {"default_words": "PACKED-TO"}},
    short_help="Write a packed dataset in the format of another trainer.",
    help=HELP,
)
@click.argument("packed", type=PackedPath())
def export(
    packed: Path, *, to: str, compression: str | None, eos_id: int | None, as_json: bool, **values: object
) -> None:
    """Run the command; `HELP` describes it."""
    from packer.exporting import write_export

    write_output(
        partial(write_export.export, packed, to=to, compression=compression, eos_id=eos_id),
        values,
        summary=export_summary,
        complete="is complete, exported in the same way from the same rows",
        as_json=as_json,
    )


# ---- summaries of the outputs, line by line ----


Fact = tuple[str, int | str | None, str]
"""A line of a summary: name, number and note.

Lines without a number are left out. Indented lines are left out if the number is 0.
"""


def pack_summary(written: Written[Manifest], took: str) -> Iterator[str]:
    """Yield the number of rows, and what happened to every document and token, without zeros."""
    from packer.shards.files import holdout_of
    from packer.shards.manifest import is_packed

    manifest, output = written.record, str(written.output)
    options, totals, source = manifest.options, manifest.totals, manifest.source
    documents, packed_rows = count_of(totals.documents_packed, "document"), count_of(totals.rows, "row")
    yield f"Packed {documents} into {packed_rows} of {options.max_len:,} tokens in {took}"
    yield from _table(_facts(manifest))

    # Facts to know before training on the rows.
    if options.algorithm == "wrapped":
        cut = count_of(totals.documents_split, "document")
        yield f"Wrapping cut {cut}: tokens after a cut do not see those before it."
    if options.labels and not totals.tokens_trained:
        of_text = options.tokenizer is not None
        masks = "--train-on and the roles in the source" if of_text else "the labels or masks of the source"
        yield f"NOTHING IS TRAINED: every label is -100, so no step will learn from these rows. Check {masks}."
    if not options.labels:
        yield "No labels were written: only packer.load is safe."
        yield "Other trainers would train on padding and across the boundaries of documents."

    # How text was tokenized, and which of its tokens are trained.
    if source.text is not None:
        yield f"Tokenized with {options.tokenizer}, {_text_identity(source.text)}"
    if options.holdout is not None and is_packed(held_out := holdout_of(written.output, is_holdout=options.is_holdout)):
        yield f"Documents that are {'not ' if options.is_holdout else ''}held out are in {held_out}"
    if totals.documents_rejected:
        yield f"Rejected records are listed in {written.output / REJECTED}"

    # How the rows are used.
    use = ""
    if options.lengths_column is not None:
        use = f"; packer.rows({output!r}) has the documents of each row"
    elif options.index_only:
        use = f" without tokens; packer.load({output!r}, source=...) reads them from the dataset"
    elif options.has_trees:
        use = ' with trees: train only with format="tree"; other trainers do not know them'
    yield f"Written to {output}{use}"


def export_summary(written: Written[Export], took: str) -> Iterator[str]:
    """Yield the summary of `packer export`."""
    export = written.record
    rows, max_len = sum(file.rows or 0 for file in export.files), export.packed["max_len"]
    compression = "" if export.compression == "none" else f", {export.compression}"
    yield f"Exported {count_of(rows, 'row')} of {max_len:,} tokens to {export.to} in {took}"
    yield render_table(list(export.columns.items()), align="<<")
    if export.eos_id is not None:
        yield f"EOS is {export.eos_id}, which pads rows, too"
    yield f"{count_of(len(export.files), 'file')}, {byte_size(export.bytes)}{compression}"
    yield f"Written to {written.output}"
    if warning := TARGETS[export.to].warning:
        yield warning.format(out=shlex.quote(str(written.output)))


def tokenize_summary(written: Written[TokenizeReport], took: str) -> Iterator[str]:
    """Yield the summary of `packer tokenize`."""
    report, source = written.record, written.record.source
    documents, tokens = count_of(source.documents, "document"), count_of(source.tokens, "token")
    yield f"Tokenized {documents} into {tokens} in {took}"
    yield from _table(_text_facts(report))
    if source.text is not None:
        yield f"With {report.tokenizer}, {_text_identity(source.text)}"
    if report.documents_rejected:
        yield f"Rejected records are listed in {written.output / REJECTED}"
    yield f"Written to {written.output}"


def _text_identity(text: TextIdentity) -> str:
    from packer.sources.meanings import HISTORY, OF_CHATS

    first, *others = text.columns
    # Only the first two columns are in every file. Others, such as a prompt's, are read where they exist.
    columns = "+".join([first, *(column for column in others if column not in (*OF_CHATS, HISTORY))][:2])
    left_out = " without " + " and ".join(text.untrained_parts) if text.untrained_parts else ""
    as_chats = ", rendered as chats" if text.as_chats else ""
    return f"training on {text.train_on} of {columns}{left_out}{as_chats} (tokenizer {text.tokenizer[:8]})"


def _table(facts: Iterable[Fact]) -> list[str]:
    """Align the facts that have a number. Leaves out indented facts that are 0."""
    shown = [
        (name, value if isinstance(value, str) else f"{value:,}", note)
        for name, value, note in facts
        if value is not None and (value or not name.startswith(" "))
    ]
    return [render_table(shown, align="<><")] if shown else []


def _facts(manifest: Manifest) -> Iterator[Fact]:
    """Yield what happened to every document and token."""
    from packer.sources.meanings import EXCHANGE_STARTS

    options, totals = manifest.options, manifest.totals
    yield "documents", totals.documents, f"{rounded(totals.documents_packed / totals.rows)} per row"
    yield "  split", totals.documents_split, f"{count_of(totals.segments, 'segment')} in all"
    yield "  truncated", totals.documents_truncated, ""
    for reason, count in totals.documents_dropped.items():
        if reason != "rejected":
            yield f"  dropped, {reason.replace('_', ' ')}", count, ""
    yield from _text_facts(totals)

    yield "tokens", totals.tokens, ""
    if totals.tokens_packed != totals.tokens:
        yield "  packed", totals.tokens_packed, ""
    yield "  truncated", totals.tokens_truncated, ""
    for reason, count in totals.tokens_dropped.items():
        yield f"  dropped, {reason.replace('_', ' ')}", count, ""
    yield "  padding", totals.tokens_stripped, "removed before; not among the tokens"
    yield "  shared", totals.tokens_shared, "left out: beginnings of documents are stored once"
    if options.labels and options.lengths_column is None:
        share = percent(totals.tokens_trained / totals.tokens_packed)
        weighted = f"; each {options.weights_per} has a weight" if options.weights_per is not None else ""
        yield "trained", totals.tokens_trained, f"{share} of packed{weighted}"
        yield "  untrained", totals.segments_untrained, "segments without a trained token"
        if manifest.source.labels or EXCHANGE_STARTS in manifest.source.columns:
            yield "  in later segments", totals.tokens_trained_later, "of documents, whose beginning they do not see"
        yield "  truncated", totals.tokens_trained_truncated, "trained tokens that are cut off"

    packed, groups = totals.rows, totals.groups
    yield "rows", packed, f"{percent(totals.efficiency)} full; {fewest(packed, totals.lower_bound)}"
    if groups is not None:
        extra, without = packed - groups.rows_ungrouped, groups.documents_without
        share = percent(extra / groups.rows_ungrouped)
        none = f"; {count_of(without, 'document')} in none" if without else ""
        yield "  together", f"{extra:+,}", f"rows more than ungrouped, {share}"
        yield "  groups", groups.groups, f"of {options.group_by}{none}"
    yield "shards", len(manifest.shards), byte_size(sum(shard.bytes for shard in manifest.shards))


def _text_facts(counted: Totals | TokenizeReport) -> Iterator[Fact]:
    """Yield what tokenizing counted. Leaves out unusable records, which are errors unless they are skipped."""
    if counted.documents_rejected is not None:
        rejected = counted.documents_rejected
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in rejected.items())
        yield "  rejected", sum(rejected.values()), reasons
    yield "  nothing to train on", counted.documents_untrained, ""
    yield "  straddling", counted.documents_straddling, "a token is partly inside what is trained"


# ---- the demonstration ----

_MARK = ".packer-demo"
"""File that marks a folder created by the demonstration, in which files may be replaced."""

_VOCAB_SIZE = 4096
_TRAINING_FILES = 400  # more files barely change the tokenizer
_EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def standard_library_texts() -> Iterator[str]:
    """Yield the source files of this interpreter's standard library, without its tests."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py"), key=lambda path: path.as_posix().encode()):
        if _EXCLUDED_FOLDERS.isdisjoint(path.relative_to(library).parts):
            text = path.read_text(encoding="utf-8", errors="replace")
            if text:
                yield text


def write_corpus(folder: Path) -> Path:
    """Tokenize the standard library; return the path of the tokens, `folder`/stdlib.arrow.

    A byte-level BPE tokenizer is trained on a sample of the files. It is written to the same folder, with a
    tokenizer_config.json that names the end-of-text token.
    """
    import numpy as np
    import pyarrow as pa

    from packer.arrow import as_arrow
    from packer.text.tokenizer import END_OF_TEXT, train_byte_level

    texts = [*standard_library_texts()]
    tokenizer = train_byte_level(texts[:: max(1, len(texts) // _TRAINING_FILES)], _VOCAB_SIZE)
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [np.array([*encoded.ids, end], np.int32) for encoded in tokenizer.encode_batch(texts)]
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).write_text("packer demo made this folder, and replaces its files when it is run again\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_OF_TEXT}) + "\n")
    lists = pa.ListArray.from_arrays(as_arrow(offsets), as_arrow(np.concatenate(ids)))
    table = pa.table({"input_ids": lists})
    path = folder / "stdlib.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return path


@command(
    changes={
        "output": {
            "default": Path("packer-demo"),
            "default_words": None,
            "help": "Folder for the corpus and the packed dataset.",
        },
        "max_len": {"default": 4096},
    },
    resumes=True,
    short_help="Pack the source files of this machine's Python.",
)
def demo(output: Path, max_len: int) -> None:
    """Pack the source files of this machine's Python standard library; nothing is downloaded.

    It trains a byte-level BPE tokenizer on the files, then runs pack and verify.
    """
    from packer.plain_text import share
    from packer.shards.reader import read_manifest

    output = local_output(output, "packer demo")
    source, packed = str(output / "stdlib.arrow"), str(output / f"stdlib-packed-{max_len}")
    try:
        if output.is_dir() and any(output.iterdir()) and not (output / _MARK).is_file():
            raise PackerError(f"{output} exists and was not made by packer demo: choose another --output")
        echo("Tokenizing the Python standard library ...")
        write_corpus(output)
    except OSError as error:
        raise PackerError(f"{error.filename or output}: {error.strerror}: choose another --output") from error
    _run(pack, source, "--max-len", str(max_len), "--output", packed, "--overwrite")
    _run(verify, packed, "--source", source)

    totals = read_manifest(Path(packed)).totals
    padded = 1 - totals.tokens_packed / (totals.segments * max_len)
    echo(f"\nPadding: {share(padded)} with each document in rows of its own, {share(1 - totals.efficiency)} packed.")
    echo(f"More figures: packer stats {source}")
    echo(f"A row as text: packer show {packed} --tokenizer {output / 'tokenizer.json'}")


def _run(command: click.Command, *arguments: str) -> None:
    """Show a command line and run it. Its errors end this command."""
    name = str(command.name)
    echo(f"\n$ {shlex.join(['packer', name, *arguments])}")
    assert command.callback is not None
    with command.make_context(name, list(arguments), parent=click.get_current_context()) as context:
        del context.params["debug"]
        context.invoke(command.callback, **context.params)
