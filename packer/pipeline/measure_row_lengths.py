"""Plans of the same documents in rows of several lengths, to choose `--max-len` by; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.options import PackOptions
from packer.pipeline.make_plan import plan_lengths
from packer.pipeline.measure_source import Measured, measure
from packer.pipeline.read_documents import Given
from packer.pipeline.shard_maker import Shards
from packer.plan.pieces import Located
from packer.progress import Progress, silent
from packer.stats import RowLength, RowLengths, RowWork, row_length


def row_length_statistics(
    source: Given | Sequence[Given],
    *,
    options: PackOptions,
    max_lens: Sequence[int],
    documents_per_step: int = 64,
    progress: Progress = silent,
) -> RowLengths:
    """Describe the rows that packing makes of a dataset, or a mixture, at each of several lengths.

    Args:
        source: a path, glob, Hub id, or a `datasets` object; or a list of these, to be mixed by `options.weights`.
        options: options of the pack; their `max_len` is not used.
        max_lens: tokens per row, ascending, at least one.
        documents_per_step: documents per optimizer step in unpacked training.
        progress: callback, called as `progress(stage, done, total)`, of reading and of "plan N", in lengths.

    Raises:
        PackerError: the source cannot be read, or there is nothing in it to pack at one of the lengths.
    """
    lengths: list[RowLength] = []
    documents = tokens = 0
    measured: Measured | None = None
    for done, max_len in enumerate(max_lens):
        at_length = replace(options, max_len=max_len)
        # What a mixture takes depends on max_len only through the documents that are truncated or dropped.
        if measured is None or (options.weights and options.long != "split"):
            measured = measure(source, at_length, progress)
            documents, tokens = len(measured.lengths), int(measured.lengths.sum(dtype=np.int64))
        progress(f"plan {max_len}", done, len(max_lens))
        lengths.append(
            describe_length(
                measured.lengths_for(at_length),
                at_length,
                groups=measured.groups,
                documents_per_step=documents_per_step,
            )
        )
    progress("plan", len(max_lens), len(max_lens))
    return RowLengths(
        documents=documents,
        tokens=tokens,
        algorithm=get_algorithm(options.algorithm).name,
        documents_per_step=documents_per_step,
        lengths=tuple(lengths),
    )


def describe_length(
    lengths: NDArray[np.int32], options: PackOptions, *, groups: NDArray[np.int32] | None, documents_per_step: int
) -> RowLength:
    """Return the figures of the rows of one length, `options.max_len`.

    Arguments are those of `plan_lengths` and `row_length_statistics`.

    Raises:
        SourceError: there is nothing to pack, or a document is longer than max_len and that is an error.
    """
    planned = plan_lengths(lengths, options, groups=groups)
    work = RowWork()
    tokens_after_start = 0
    for rows in located_rows(planned.shards):
        work.add(rows.lengths, rows.row_starts)
        tokens_after_start += int(rows.lengths[rows.starts > 0].sum())
    return row_length(
        planned.totals,
        work,
        max_len=options.max_len,
        tokens_after_start=tokens_after_start,
        documents_per_step=documents_per_step,
    )


def located_rows(shards: Shards) -> Iterator[Located]:
    """Yield the rows of a plan, one shard after the other."""
    for number in range(len(shards.shard_rows)):
        shard = shards.shard(number)
        yield shard.located(0, len(shard))
