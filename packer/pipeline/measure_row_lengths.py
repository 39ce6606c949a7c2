"""Plan the same documents in rows of several lengths, to help choose `--max-len`; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.measure_source import Measured, measure
from packer.pipeline.planning.make_plan import plan_lengths
from packer.pipeline.read_documents import SourceLike
from packer.plan.pieces import Located, Shards
from packer.progress import Progress, silent
from packer.stats.model_work import RowWork
from packer.stats.row_lengths import RowLength, RowLengths, row_length


class DocumentLengths(NamedTuple):
    """Documents in the order in which they are packed."""

    lengths: NDArray[np.int32]
    """(documents,) tokens of each document."""

    groups: NDArray[np.int32] | None = None
    """(documents,) group of each document; None without `--group-by`."""

    limits: Mapping[str, NDArray[np.int32]] = {}
    """(documents,) what each document takes of each limit, by column."""

    describe: Callable[[int], str] = "document {:,}".format
    """Function that names a document in messages."""


class MeasuredLengths:
    """Lengths of a source, as `pack` sees them at any max_len. The source is read once, if that is possible.

    If documents of a mixture are truncated or dropped, what it takes of each source depends on max_len; it is then read
    again for every max_len.
    """

    def __init__(self, source: SourceLike | Sequence[SourceLike], progress: Progress) -> None:
        self._source = source
        self._progress = progress
        self._measured: tuple[int, Measured] | None = None

    def at(self, options: PackOptions) -> Measured:
        """Return the lengths at `options.max_len`; other options must be the same at every call.

        Raises:
            PackerError: the source cannot be read, or there is nothing in it to pack.
        """
        depends = bool(options.weights) and options.long != "split"
        if self._measured is None or (depends and self._measured[0] != options.max_len):
            self._measured = options.max_len, measure(self._source, options, self._progress)
        return self._measured[1]

    def in_order(self, options: PackOptions) -> DocumentLengths:
        """Return the documents at `options.max_len`, in the order in which they are packed."""
        measured = self.at(options)
        return DocumentLengths(measured.lengths_for(options), measured.groups, measured.limits, measured.describe)


def row_length_statistics(
    source: SourceLike | Sequence[SourceLike],
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
        progress: callback, called as `progress(stage, done, total)` while reading, and with the stage "length N".

    Raises:
        PackerError: the source cannot be read, or there is nothing in it to pack at one of the lengths.
    """
    measured = MeasuredLengths(source, progress)
    return compare_lengths(
        measured.in_order, options, max_lens, documents_per_step=documents_per_step, progress=progress
    )


def compare_lengths(
    documents_at: Callable[[PackOptions], DocumentLengths],
    options: PackOptions,
    max_lens: Sequence[int],
    *,
    documents_per_step: int,
    progress: Progress,
    skips: bool = False,
) -> RowLengths:
    """Describe the rows of each length.

    Args:
        documents_at: function that returns the documents, in packing order.
        options: options of the pack; their `max_len` is not used.
        max_lens: tokens per row, ascending, at least one.
        documents_per_step: documents per optimizer step in unpacked training.
        progress: callback, called as `progress("length N", done, total)`.
        skips: whether to leave out impossible lengths, as long as one length is left.

    Raises:
        PackerError: the options do not allow one of the lengths, or there is nothing to pack at it.
    """
    found: list[RowLength] = []
    for done, max_len in enumerate(max_lens):
        try:
            at_length = replace(options, max_len=max_len)
            documents = documents_at(at_length)
            progress(f"length {max_len}", done, len(max_lens))
            found.append(describe_length(documents, at_length, documents_per_step=documents_per_step))
        except PackerError:
            if not skips or (max_len == max_lens[-1] and not found):
                raise
    progress("length", len(max_lens), len(max_lens))
    return RowLengths(
        documents=len(documents.lengths),
        tokens=found[-1].tokens,
        algorithm=get_algorithm(options.algorithm).name,
        documents_per_step=documents_per_step,
        lengths=tuple(found),
    )


def describe_length(documents: DocumentLengths, options: PackOptions, *, documents_per_step: int) -> RowLength:
    """Return the figures of the rows of one length, `options.max_len`.

    Other arguments are those of `row_length_statistics`.

    Raises:
        SourceError: there is nothing to pack, a document is longer than max_len and that is an error, or a document
            takes more than a limit.
    """
    planned = plan_lengths(
        documents.lengths,
        options,
        groups=documents.groups,
        limits=documents.limits,
        describe=documents.describe,
    )
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
