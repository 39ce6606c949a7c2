"""`packer.pack`, `stats`, `tokenize` and `export`: commands as Python functions, with options as keyword arguments."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from packer.errors import as_whole
from packer.exporting import write_export
from packer.options import PackOptions, ReadOptions, arguments, options_for, values_of
from packer.options.option import as_lengths, as_path, described
from packer.output.job import Job, Record, Written
from packer.pipeline import packing, tokenizing
from packer.pipeline import stats as collecting
from packer.pipeline.collect_figures import training_job
from packer.pipeline.stats import ReportFile
from packer.progress import Progress, python_call
from packer.sources.find_source import one_source
from packer.stores.paths import expanded, packed_path

if TYPE_CHECKING:
    from typing import TypeAlias

    from datasets import Dataset, DatasetDict
    from typing_extensions import Unpack

    from packer.exporting.write_export import Export
    from packer.options.option import Compression
    from packer.pipeline.tokenizing import TokenizeReport
    from packer.report.figures import Comparison, Figures
    from packer.shards.manifest import Manifest

    OneSource: TypeAlias = str | Path | Dataset | DatasetDict | Sequence[str | Path]
    """A file, folder, Hub id or dataset. A list of files and folders is one source, in this order."""

Function = TypeVar("Function", bound=Callable[..., object])

log = logging.getLogger(__name__)


def _with_options(function: Function) -> Function:
    """Add the options of the command to a function's docstring and signature, for `help` and the reference.

    Type checkers and editors do not run this; they read `packer.options.arguments`.
    """
    signature, documented = inspect.signature(function), inspect.cleandoc(function.__doc__ or "")
    options = [each for name, each in options_for(function.__name__).items() if name not in signature.parameters]
    function.__doc__ = re.sub("    options: .*?(?=\n\n)", lambda _: described(options), documented, flags=re.DOTALL)
    types = arguments.PackArguments.__annotations__
    parameters = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    for option in options:
        hint = types[option.name].__forward_arg__ if option.name in types else inspect.Parameter.empty
        parameters.append(
            inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=hint)
        )
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


@_with_options
def pack(
    source: OneSource,
    output: str | Path | None = None,
    *,
    max_len: int | str,
    progress: Progress | bool = True,
    **options: Unpack[arguments.PackArguments],
) -> Manifest:
    """Pack a dataset and return its manifest. To resume an interrupted call, repeat it.

        packer.pack("chats.jsonl", max_len="4k", tokenizer="Qwen/Qwen3-0.6B", keep=["topic"], overwrite=True)

    Args:
        source: a file, folder or Hub id ("org/name:config" names a configuration), or a `datasets.Dataset` (a
            DatasetDict needs `split`). A list of files and folders is one source, in this order.
        output: folder to write; by default the name of the source with "-packed-MAX_LEN".
        max_len: number of tokens in a row, such as 4096 or "4k".
        progress: True shows bars on a terminal and in a notebook, False shows nothing; or a callback, called as
            `progress(stage, done, total)`.
        options: the other options of `packer pack`, under the same names; `help(packer.pack)` describes each. Options
            that can be repeated on the command line take a list.

    Returns:
        The manifest. Its `path` is the folder: `packer.load(manifest.path)` opens it.

    Raises:
        PackerError: an error that the user can fix, in one line: the value, the limit and the remedy.
        TypeError: there is no option of that name, or `max_len` is missing.
    """
    values = {**locals(), **options}
    _refuse_unknown(pack, options)
    with python_call(progress) as shown:
        pack_options = PackOptions(**values_of(PackOptions, values))
        job = Job(**values_of(Job, {**values, "progress": shown}))
        written = packing.pack(one_source(source), options=pack_options, job=job)
    return replace(_logged(written).record, path=written.output)


@_with_options
def stats(
    source: OneSource,
    *,
    max_len: int | str | Sequence[int | str] | None = None,
    batch_size: int = 64,
    data_parallel: int | None = None,
    accumulation: int | None = None,
    model: str | None = None,
    report: str | Path | None = None,
    progress: Progress | bool = True,
    **options: Unpack[arguments.StatsArguments],
) -> Figures | Comparison:
    """Compare the padding of a dataset before and after packing. For a packed dataset, count how full its rows are.

    It predicts the number of rows that `pack` makes with the same options. Printed, the result is the output of `packer
    stats`; in a notebook, it is a table. With a `tokenizer`, the report shows the rows of a packed dataset as text.

    Args:
        source: as for `pack`; a packed dataset; or a histogram: a CSV file with the header length,count.
        max_len: number of tokens in a row, by default 4096, or a list of several to compare; not for packed datasets.
        batch_size: documents per optimizer step in training without packing.
        data_parallel: number of ranks that train one row at a time, to estimate how long they wait for each other.
        accumulation: rows of each of these ranks in an optimizer step, by default 1.
        model: number of weights of the ranks' model, by default "7B", or its config: a folder, a config.json or a Hub
            id.
        report: HTML file to write: a report with plots, which needs no network access.
        progress: as for `pack`.
        options: the other options of `packer stats`, under the same names; `help(packer.stats)` describes each.
            `algorithm="all"` compares the algorithms.

    Returns:
        Figures, such as `rows`, `padding` and `epoch`. For several lengths or algorithms, a comparison, whose
        `outcomes` are figures. `to_dict()` returns what `packer stats --json` prints.

    Raises:
        PackerError: an error that the user can fix, in one line.
        TypeError: there is no option of that name.
    """
    _refuse_unknown(stats, options)
    with python_call(progress) as shown:
        page, tokenizer = as_path(report), as_path(options.get("tokenizer"))
        path = None if page is None else Path(expanded(page))
        return collecting.stats(
            one_source(source),
            max_lens=as_lengths(max_len),
            values=options,
            documents_per_step=as_whole("batch_size", batch_size, least=1),
            page=ReportFile(path=path, tokenizer=tokenizer),
            job=training_job(data_parallel, accumulation, model),
            progress=shown,
        )


@_with_options
def tokenize(
    source: OneSource,
    output: str | Path | None = None,
    *,
    tokenizer: str | Path,
    progress: Progress | bool = True,
    **options: Unpack[arguments.TokenizeArguments],
) -> TokenizeReport:
    """Tokenize a dataset once and store the tokens, in the format of `datasets.save_to_disk`.

    Packing the result gives the same rows as packing the text. To resume an interrupted call, repeat it.

    Args:
        source: as for `pack`.
        output: folder to write; by default the name of the source with "-tokenized".
        tokenizer: a folder, a tokenizer.json or a Hub id.
        progress: as for `pack`.
        options: the other options of `packer tokenize`, under the same names; `help(packer.tokenize)` describes each.

    Returns:
        Counts of documents and tokens. Its `path` is the folder.

    Raises:
        PackerError: an error that the user can fix, in one line.
        TypeError: there is no option of that name, or `tokenizer` is missing.
    """
    values = {**locals(), **options}
    _refuse_unknown(tokenize, options)
    with python_call(progress) as shown:
        read_options = ReadOptions(**values_of(ReadOptions, values))
        job = Job(**values_of(Job, {**values, "progress": shown}))
        written = tokenizing.tokenize(one_source(source), options=read_options, job=job)
    assert isinstance(written.output, Path)
    return replace(_logged(written).record, path=written.output)


def export(
    packed: str | Path,
    output: str | Path | None = None,
    *,
    to: str,
    compression: Compression | None = None,
    eos_id: int | None = None,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> Export:
    """Write a packed dataset in the format of another trainer, or for the Hugging Face Hub.

    A complete export with the same options and from the same rows is checked and left as it is.

    Args:
        packed: folder of the packed dataset.
        output: folder to write; by default the name of the packed dataset with "-TO".
        to: trainer whose columns are written: "megatron", "maxtext", "torchtune", "llama-factory",
            "megatron-indexed" or "parquet"; or "hub" for the rows as they are with a dataset card.
        compression: compression of Parquet files, by default "zstd"; other files are not compressed.
        eos_id: token that ends documents, for trainers that use it to find documents or padding ("megatron" with
            `align`, "megatron-indexed"); by default the last token of the first document. Padding is written as this
            token. Documents that do not end in it, or contain it elsewhere, are refused, except by "megatron" if
            `eos_id` is given.
        workers: number of files written at a time; by default the number of available cores. It does not change the
            bytes.
        sync: call fsync for every file and folder.
        overwrite: replace an existing export as soon as the new one is complete.
        progress: as in `pack`; the stage is "export", in tokens.

    Raises:
        PackerError: an error that the user can fix, in one line.
    """
    with python_call(progress) as shown:
        job = Job(output=output, workers=workers, sync=sync, overwrite=overwrite, progress=shown)
        written = write_export.export(str(packed_path(packed)), to=to, compression=compression, eos_id=eos_id, job=job)
    return replace(written.record, path=written.output)


def _logged(written: Written[Record]) -> Written[Record]:
    for note in written.notes:
        log.info(note)
    return written


def _refuse_unknown(function: Callable[..., object], names: Iterable[str]) -> None:
    """Raise a TypeError that suggests the nearest name if a function lacks a keyword argument in `names`."""
    known = inspect.signature(function).parameters
    for name in names:
        if name not in known:
            nearest = get_close_matches(name, known, 1, 0.5)
            meant = f": did you mean {nearest[0]}?" if nearest else ""
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{meant}")
