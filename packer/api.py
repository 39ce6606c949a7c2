"""The commands as Python functions, with options as keyword arguments."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from packer.errors import python_names
from packer.exporting import write_export
from packer.options import PackOptions, ReadOptions, RunOptions, options_of, values_of
from packer.options.option import as_lengths, as_path
from packer.output.job import Job, Record, Written
from packer.pipeline import packing, row_contents, tokenizing, verifying
from packer.pipeline import stats as collecting
from packer.pipeline.stats import ReportFile
from packer.pipeline.waiting import training_job
from packer.progress import Progress, python_progress
from packer.sources.find_source import one_source
from packer.stores.paths import expanded, located, packed_path

if TYPE_CHECKING:
    from typing import TypeAlias

    from datasets import Dataset, DatasetDict
    from typing_extensions import Unpack

    from packer.exporting.write_export import Export
    from packer.options.arguments import PackArguments, StatsArguments
    from packer.options.option import Compression, LongPolicy, OnError, TrainOn
    from packer.pipeline.row_contents import RowContents
    from packer.pipeline.tokenizing import TokenizeReport
    from packer.pipeline.verifying import Verification
    from packer.report.figures import Comparison, Figures
    from packer.shards.manifest import Manifest

    OneSource: TypeAlias = str | Path | Dataset | DatasetDict | Sequence[str | Path]
    """A file, folder, Hub id or dataset; a list of files and folders is one source, in this order."""


log = logging.getLogger(__name__)


def pack(
    source: OneSource,
    output: str | Path | None = None,
    *,
    max_len: int | str,
    tokenizer: str | Path | None = None,
    text_column: str | None = None,
    train_on: TrainOn | None = None,
    chat_template: str | Path | None = None,
    long: LongPolicy = "split",
    keep: Sequence[str] = (),
    algorithm: str = "auto",
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress | bool = True,
    **options: Unpack[PackArguments],
) -> Manifest:
    """Pack a dataset and return its manifest. The same call continues an interrupted one.

    Args:
        source: a file, folder or Hub id ("org/name:config" names a configuration), or a `datasets.Dataset` (a
            DatasetDict needs `split`). A list of files and folders is one source, in this order.
        output: folder to write; by default the name of the source with "-packed-MAX_LEN".
        max_len: number of tokens in a row, such as 4096 or "4k".
        tokenizer: for a source of text or chats, a folder, a tokenizer.json or a Hub id.
        text_column: column of text or messages, if it has another name than those that are recognized.
        train_on: part of each document to train on: "assistant", "completion", "all" and others. By default, assistant
            turns of chats, the completion of a prompt, and all of a plain text.
        chat_template: a file with a Jinja template, the name of one that comes with packer, or the text of one, to use
            instead of the tokenizer's own.
        long: what to do with documents longer than a row: "split", "truncate", "drop" or "error".
        keep: columns to keep, with one value per segment.
        algorithm: which documents share a row; `packer.stats(source, algorithm="all")` compares the algorithms.
        workers: number of threads; by default the number of available cores.
        overwrite: replace an existing output as soon as the new one is complete.
        progress: True shows bars on a terminal and in a notebook, False nothing; or a callback, called as
            `progress(stage, done, total)`.
        options: any other option of `packer pack`, under the same name. `help(packer.PackOptions)` and
            docs/reference/commands.md list them. Those that do not change the bytes are:

            - sync: call fsync for every file and folder (by default True).
            - engine: "threads"; or "ray" for a Ray cluster with the same storage that is started here, "ray:ADDRESS"
              for another, and "ray:auto" for the one that this machine belongs to.
            - ranks: number of this process and how many pack into the same folder, as in "0/4", or "env" to read both
              from the variables of torchrun, Slurm or SkyPilot. They need not be on one machine.

    Returns:
        The manifest, whose `path` is the folder: `packer.load(manifest.path)` opens it.

    Raises:
        PackerError: an error that the user can fix, in one line: the value, the limit and the remedy.
        TypeError: there is no option of that name, or `max_len` is missing.
    """
    values = {**locals(), **options}
    _refuse_unknown(pack, options, (options_of(PackOptions) | options_of(RunOptions)).keys() - {"is_holdout"})
    with _call(progress) as shown:
        pack_options = PackOptions(**values_of(PackOptions, values))
        job = Job(**values_of(Job, {**values, "progress": shown}))
        written = packing.pack(one_source(source), options=pack_options, job=job)
    return replace(_logged(written).record, path=written.output)


def stats(
    source: OneSource,
    *,
    max_len: int | str | Sequence[int | str] | None = None,
    tokenizer: str | Path | None = None,
    text_column: str | None = None,
    train_on: TrainOn | None = None,
    chat_template: str | Path | None = None,
    long: LongPolicy = "split",
    algorithm: str = "auto",
    batch_size: int = 64,
    data_parallel: int | None = None,
    accumulation: int | None = None,
    model: str | None = None,
    report: str | Path | None = None,
    progress: Progress | bool = True,
    **options: Unpack[StatsArguments],
) -> Figures | Comparison:
    """Count how much padding a dataset has now, and how much when packed; or how full a packed dataset is.

    It predicts the number of rows that `pack` makes with the same options. Printed, the result is what `packer stats`
    prints; in a notebook, it is a table.

    Args:
        source: as for `pack`; a packed dataset; or a histogram: a CSV file with the header length,count.
        max_len: number of tokens in a row, by default 4096, or a list of several to compare; not for packed datasets.
        tokenizer: as for `pack`; with a packed dataset, the report shows its rows as text.
        text_column: as for `pack`.
        train_on: as for `pack`.
        chat_template: as for `pack`.
        long: as for `pack`.
        algorithm: as for `pack`; "all" compares them.
        batch_size: documents per optimizer step in training without packing.
        data_parallel: ranks that train on one row at a time, to see how long they wait for each other.
        accumulation: rows of each of these ranks in an optimizer step, by default 1.
        model: weights of their model, by default "7B", or its config: a folder, a config.json or a Hub id.
        report: HTML file to write: a report with plots, which needs no network.
        progress: as for `pack`.
        options: any other option of `packer stats`, under the same name.

    Returns:
        Figures, such as `rows`, `padding` and `epoch`; of several lengths or algorithms, a comparison, whose
        `outcomes` are figures. `to_dict()` is what `packer stats --json` prints.

    Raises:
        PackerError: an error that the user can fix, in one line.
        TypeError: there is no option of that name.
    """
    values = {**locals(), **options}
    _refuse_unknown(stats, options, [name for name, one in options_of(PackOptions).items() if "stats" in one.commands])
    with _call(progress) as shown:
        return collecting.stats(
            one_source(source),
            max_lens=as_lengths(values.pop("max_len")),
            values=values,
            documents_per_step=batch_size,
            page=ReportFile(path=None if report is None else Path(expanded(report)), tokenizer=as_path(tokenizer)),
            job=training_job(data_parallel, accumulation, model),
            progress=shown,
        )


def tokenize(
    source: OneSource,
    output: str | Path | None = None,
    *,
    tokenizer: str | Path,
    text_column: str | None = None,
    train_on: TrainOn | None = None,
    chat_template: str | Path | None = None,
    eos: bool = True,
    keep: Sequence[str] = (),
    split: str | None = None,
    on_error: OnError = "error",
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> TokenizeReport:
    """Tokenize a dataset once and store the tokens, in the format of `datasets.save_to_disk`.

    Packing the result gives the same rows as packing the text. The same call continues an interrupted one.

    Args:
        source: as for `pack`.
        output: folder to write; by default the name of the source with "-tokenized".
        tokenizer: a folder, a tokenizer.json or a Hub id.
        text_column: as for `pack`.
        train_on: as for `pack`.
        chat_template: as for `pack`.
        eos: end texts and completions with the end-of-sequence token.
        keep: as for `pack`.
        split: split to read from a source that has several.
        on_error: "skip" leaves out records that cannot be used, and lists them in rejected.jsonl.
        workers: as for `pack`.
        sync: call fsync for every file and folder.
        overwrite: as for `pack`.
        progress: as for `pack`.

    Returns:
        What was counted; its `path` is the folder.

    Raises:
        PackerError: an error that the user can fix, in one line.
    """
    values = locals()
    with _call(progress) as shown:
        options = ReadOptions(**values_of(ReadOptions, values))
        job = Job(**values_of(Job, {**values, "progress": shown}))
        written = tokenizing.tokenize(one_source(source), options=options, job=job)
    assert isinstance(written.output, Path)
    return replace(_logged(written).record, path=written.output)


def show(
    packed: str | Path,
    row: int = 0,
    *,
    document: int | None = None,
    tokenizer: str | Path | None = None,
    source: str | Path | Sequence[str | Path] | None = None,
    full: bool = False,
) -> RowContents:
    """Show a row of a packed dataset, segment by segment, or a document.

    Args:
        packed: folder of the packed dataset.
        row: number of the row; -1 is the last.
        document: number of a document, whose segments are shown instead of a row.
        tokenizer: path or Hub id of the tokenizer, to show text instead of token ids.
        source: dataset that was packed, if `packed` is an index.
        full: show all tokens, with trained ones between [[ and ]].

    Returns:
        The segments; printed, they are what `packer show` prints; in a notebook, a table.

    Raises:
        PackerError: there is no such row or document, or the dataset cannot be read.
    """
    with python_names():
        name, folder = as_path(tokenizer), packed_path(packed)
        return row_contents.show(folder, row, document=document, tokenizer=name, source=source, full=full)


def verify(
    packed: str | Path,
    source: str | Path | Dataset | DatasetDict | Sequence[str | Path | Dataset | DatasetDict] | None = None,
    *,
    tokenizer: str | None = None,
    workers: int | None = None,
    engine: str = "threads",
    progress: Progress | bool = True,
) -> Verification:
    """Check a packed dataset; return a list of its faults, which is true if there is none.

    `if packer.verify(packed): train()` trains only on a dataset without faults. Otherwise, the result is a list of
    sentences, and false.

    Without `source`, this checks hashes, structure and the totals of the manifest. With it, every token that should be
    in the rows is also compared with the source, together with its label and its place.

    Args:
        packed: folder of the packed dataset.
        source: source that was packed, or a list of all its paths, in order. Text is tokenized again.
        tokenizer: path or Hub id of the tokenizer, if its name in the manifest is not enough to find it.
        workers: number of shards that are checked at a time; by default the number of available cores.
        engine: "threads", or a Ray cluster with the same storage that checks the shards, as in `pack`.
        progress: as in `pack`.

    Raises:
        PackerError: the packed dataset or the source cannot be read.
    """
    with _call(progress) as shown:
        job = Job(workers=workers, engine=engine, progress=shown)
        return verifying.verify(packed_path(packed), located(source), tokenizer=tokenizer, job=job)


def export(
    packed: str | Path,
    output: str | Path | None = None,
    *,
    to: str,
    compression: Compression = "zstd",
    eos_id: int | None = None,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> Export:
    """Write a packed dataset in the format of another trainer: Parquet, Arrow or bare token ids, shard by shard.

    An export that is complete, with the same options and from the same rows, is checked and left as it is.

    Args:
        packed: folder of the packed dataset.
        output: folder to write; by default the name of the packed dataset with "-TO".
        to: trainer whose columns are written: "megatron", "maxtext", "torchtune", "llama-factory",
            "megatron-indexed" or "parquet".
        compression: compression of the Parquet files.
        eos_id: token that ends documents, for trainers that find documents or padding by it ("megatron" with `align`,
            "megatron-indexed"); by default the last token of the first document. Padding is written as
            this token. Documents that do not end in it, or have it elsewhere, are refused, except by "megatron" if
            `eos_id` is given.
        workers: number of files written at a time; by default the number of available cores. It does not change the
            bytes.
        sync: call fsync for every file and folder.
        overwrite: replace an existing export as soon as the new one is complete.
        progress: as in `pack`; the stage is "export", in tokens.

    Raises:
        PackerError: an error that the user can fix, in one line.
    """
    with _call(progress) as shown:
        job = Job(output=output, workers=workers, sync=sync, overwrite=overwrite, progress=shown)
        written = write_export.export(str(packed_path(packed)), to=to, compression=compression, eos_id=eos_id, job=job)
    return replace(written.record, path=written.output)


def _logged(written: Written[Record]) -> Written[Record]:
    for note in written.notes:
        log.info(note)
    return written


@contextmanager
def _call(progress: Progress | bool) -> Iterator[Progress]:
    """Run a function of this module: show progress, and name options in errors as in Python."""
    with python_names(), python_progress(progress) as shown:
        yield shown


def _refuse_unknown(function: Callable[..., object], arguments: Mapping[str, object], known: Collection[str]) -> None:
    """Raise a TypeError that suggests the nearest name if a further keyword argument is not known."""
    for name in arguments:
        if name not in known:
            nearest = get_close_matches(name, [*inspect.signature(function).parameters, *known], 1, 0.5)
            meant = f": did you mean {nearest[0]}?" if nearest else ""
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{meant}")
