"""The commands as Python functions, with options as keyword arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from packer.errors import python_names
from packer.exporting import write_export
from packer.options import PackOptions, options_of, values_of
from packer.options.arguments import RunArguments
from packer.output.job import Job
from packer.pipeline import packing, verifying
from packer.progress import Progress, silent
from packer.sources.open_sources import one_source

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from typing_extensions import Unpack

    from packer.exporting.write_export import Export
    from packer.options.arguments import PackArguments
    from packer.options.choices import Compression
    from packer.pipeline.verifying import Verification
    from packer.shards.manifest import Manifest


def pack(
    source: str | Path | Dataset | DatasetDict | Sequence[str | Path],
    output: str | Path | None = None,
    **options: Unpack[PackArguments],
) -> Manifest:
    """Pack a dataset and return its manifest. The same call continues an interrupted one.

    Args:
        source: a file, folder or Hub id, or a `datasets.Dataset` (a DatasetDict needs `split`). A list of files
            and folders is one source, in this order.
        output: folder to write; by default the name of the source with "-packed-MAX_LEN".
        options: `max_len`, the number of tokens in a row, and any other option of `packer pack`, under the same name.
            `help(packer.PackOptions)` and docs/reference/commands.md list them. Those that do not change the bytes are:

            - workers: number of threads; by default the number of available cores.
            - sync: call fsync for every file and folder (by default True).
            - overwrite: replace an existing output as soon as the new one is complete.
            - engine: "threads"; or "ray" for a Ray cluster with the same storage that is started here, "ray:ADDRESS"
              for another, and "ray:auto" for the one that this machine belongs to.
            - ranks: number of this process and how many pack into the same folder, as in "0/4", or "env" to read both
              from the variables of torchrun, Slurm or SkyPilot. They need not be on one machine.
            - progress: callback, called as `progress(stage, done, total)`.

    Raises:
        PackerError: an error that the user can fix, in one line: the value, the limit and the remedy.
        TypeError: there is no option of that name, or `max_len` is missing.
    """
    shaping = [name for name in options_of(PackOptions) if name != "is_holdout"]
    _refuse_unknown("pack", options, ["output", *shaping, *RunArguments.__annotations__])
    if "max_len" not in options:
        raise TypeError("pack() is missing the keyword argument 'max_len'")
    with python_names():
        pack_options = PackOptions(**values_of(PackOptions, options))
        job = Job(output=output, **values_of(Job, options))
        return packing.pack(one_source(source), options=pack_options, job=job).record


def verify(
    packed: str | Path,
    source: str | Path | Dataset | DatasetDict | Sequence[str | Path | Dataset | DatasetDict] | None = None,
    *,
    tokenizer: str | None = None,
    workers: int | None = None,
    engine: str = "threads",
    progress: Progress = silent,
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
        progress: callback, called as `progress(stage, done, total)`.

    Raises:
        PackerError: the packed dataset or the source cannot be read.
    """
    with python_names():
        job = Job(workers=workers, engine=engine, progress=progress)
        return verifying.verify(packed, source, tokenizer=tokenizer, job=job)


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
    progress: Progress = silent,
) -> Export:
    """Write a packed dataset in the format of another trainer: Parquet, Arrow or bare token ids, shard by shard.

    An export that is complete, with the same options and from the same rows, is checked and left as it is.

    Args:
        packed: folder of the packed dataset.
        output: folder to write; by default the name of the packed dataset with "-TO".
        to: trainer whose columns are written: "megatron", "maxtext", "torchtitan", "torchtune", "llama-factory",
            "automodel", "megatron-indexed", "olmo-core" or "parquet".
        compression: compression of the Parquet files.
        eos_id: token that ends documents, for trainers that find documents or padding by it ("megatron" with `align`,
            "megatron-indexed", "olmo-core"); by default the last token of the first document. Padding is written as
            this token. Documents that do not end in it, or have it elsewhere, are refused, except by "megatron" if
            `eos_id` is given.
        workers: number of files written at a time; by default the number of available cores. It does not change the
            bytes.
        sync: call fsync for every file and folder.
        overwrite: replace an existing export as soon as the new one is complete.
        progress: callback, called as `progress("export", done, total)`, in tokens.

    Raises:
        PackerError: an error that the user can fix, in one line.
    """
    with python_names():
        job = Job(output=output, workers=workers, sync=sync, overwrite=overwrite, progress=progress)
        return write_export.export(packed, to=to, compression=compression, eos_id=eos_id, job=job).record


def _refuse_unknown(function: str, arguments: Mapping[str, object], known: Collection[str]) -> None:
    """Raise a TypeError that suggests the nearest name if an argument is not known."""
    for name in arguments:
        if name not in known:
            nearest = get_close_matches(name, known, 1, 0.5)
            meant = f": did you mean {nearest[0]}?" if nearest else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{meant}")
