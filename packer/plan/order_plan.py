"""Plan the rows of an order algorithm: one pass marks where rows begin in the source.

The pass arranges all documents, chunk by chunk, and saves where each shard begins. To make a shard, its documents are
arranged again from its mark. Memory therefore does not grow with the documents, and shards are made independently.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.algorithms.bounds import cut_bound, lower_bound
from packer.algorithms.patterns import Rows
from packer.algorithms.sequential import OpenRow, OrderedRows
from packer.engines.checkpoints import Checkpoint, make_checkpoint
from packer.json_records import PlanTotals
from packer.options import PackOptions
from packer.plan.rows import Planning, located
from packer.plan.segments import SegmentReader, Segments, each_chunk, require_segments
from packer.shards.located_rows import LocatedRows

STRETCH = 1 << 20
"""Approximate number of segments and documents between two marks; a shard may have many stretches."""

_MARKS = ("rows", "documents", "skipped")  # names of the checkpoint's arrays


def _arrange(options: PackOptions, lengths: NDArray[np.int32], open_row: OpenRow | None = None) -> OrderedRows:
    """Arrange the next documents. The first ones may go into `open_row`."""
    arrange = get_algorithm(options.algorithm).arrange
    assert arrange is not None
    return arrange(lengths, options.max_len, options.max_segments, open_row)


def row_places(
    segments: Segments, arranged: OrderedRows, rows: NDArray[np.int64], *, keeps_whole: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find where the given rows begin: (documents, skipped), each int64, shape (rows,).

    A row begins in a document, after the part of it that is in earlier rows. `skipped` counts the segments of this part
    if the algorithm keeps segments whole, otherwise its tokens. Example: lengths [3, 9] with max_len 4:

        next fit  3 | 4 | 4 | 1    rows begin at (0, 0), (1, 0), (1, 1), (1, 2)
        wrapped   3 1 | 4 | 4      rows begin at (0, 0), (1, 1), (1, 5)
    """
    found = arranged.row_documents[rows]
    if not keeps_whole:
        return found, arranged.row_offsets[rows].astype(np.int64)
    heads = segments.heads
    # If h heads precede segment i, it is the tail or a head of document i - h.
    earlier = np.searchsorted(heads + np.arange(len(heads)), found)
    numbers = found - earlier
    skipped: NDArray[np.int64] = earlier - np.searchsorted(heads, numbers)
    return numbers, skipped


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderPlan:
    """Marks where rows begin, in ascending order. The last mark is the end of the source. Can be pickled."""

    reader: SegmentReader
    totals: PlanTotals

    shard_starts: NDArray[np.int64]
    """First row of each shard, plus the number of rows; shape (shards + 1,)."""

    marks: NDArray[np.int64]
    """Shape (3, marks). For each mark: number of a row, document in which the row begins, and tokens or segments of
    that document in earlier rows (see `row_places`). The last mark has the total numbers of rows and documents."""

    def rows(self, shard: int) -> LocatedRows:
        """Make the rows of a shard, stretch by stretch. Every shard begins at a mark."""
        begin, end = np.searchsorted(self.marks[0], self.shard_starts[shard : shard + 2])
        return LocatedRows.joined(map(self._stretch, range(begin, end)))

    def _stretch(self, mark: int) -> LocatedRows:
        """Make the rows from a mark to the next one."""
        options = self.reader.options
        (first_row, document, skipped), (last_row, end, is_shared) = self.marks[:, mark : mark + 2].T.tolist()
        if is_shared:  # the first tokens of the document at the next mark belong to these rows
            end += 1
        segments = self.reader.segments(np.array([[document, end]]))
        if options.keeps_whole:
            numbers, lengths = segments.in_order()
            arranged = _arrange(options, lengths[skipped:])
            numbers = numbers[lengths > 0][skipped:]  # the skipped segments all have tokens
        else:
            lengths = segments.kept_lengths()
            if skipped:
                lengths = lengths.copy()
                lengths[0] -= skipped
            arranged = _arrange(options, lengths)
            cut_documents, cut_starts = arranged.cut_documents, arranged.cut_starts
            if skipped:  # cut at the first row's start as well
                offsets = np.where(cut_documents == 0, np.int32(skipped), np.int32(0))
                cut_documents = np.concatenate([np.zeros(1, np.int64), cut_documents])
                cut_starts = np.concatenate([np.array([skipped], np.int32), cut_starts + offsets])
            segments = segments.cut_at(cut_documents, cut_starts)
            numbers, lengths = segments.in_order()
            numbers = numbers[lengths > 0][int(skipped > 0) :]
        row_starts = arranged.row_starts[: last_row - first_row + 1]
        return located(Rows(values=numbers[: row_starts[-1]], row_starts=row_starts), segments)


def plan_in_order(planning: Planning) -> OrderPlan:
    """Plan the rows of all documents by an order algorithm. All shards but the last have `rows_per_shard` rows."""
    checkpoint = make_checkpoint(planning.checkpoints, "order", partial(_save_marks, planning), planning.engine)
    totals = PlanTotals.from_dict(checkpoint.facts["totals"])
    return OrderPlan(
        reader=planning.reader,
        totals=totals,
        shard_starts=np.append(np.arange(0, totals.rows, planning.rows_per_shard), totals.rows),
        marks=np.stack([checkpoint.arrays[name] for name in _MARKS]),
    )


def _save_marks(planning: Planning) -> Checkpoint:
    """Arrange all documents. Save the totals, and where the first row of every shard and stretch begins."""
    options = planning.reader.options
    keeps_whole = options.keeps_whole
    account, histogram = None, np.zeros(options.max_len + 1, np.int64)
    rows = segments = documents = places = stretch = 0
    open_row = OpenRow()
    found: list[NDArray[np.int64]] = []

    def arranged_lengths(segments: Segments) -> NDArray[np.int32]:
        # Algorithms that do not keep segments whole cut documents themselves, so they get whole documents.
        return segments.in_order()[1] if keeps_whole else segments.kept_lengths()

    for chunk in each_chunk(planning.reader, arranged_lengths, planning.engine.workers):
        arranged = _arrange(options, chunk.values, open_row)
        one = chunk.account
        if not keeps_whole:
            one = replace(one, documents_split=int(np.count_nonzero(np.diff(arranged.cut_documents, prepend=-1))))
        account = one if account is None else account + one
        histogram += chunk.histogram
        numbers = np.arange(rows, rows + arranged.packs)
        stretches = (arranged.row_documents + places + arranged.row_starts[:-1] + segments) // STRETCH
        chosen = np.flatnonzero((numbers % planning.rows_per_shard == 0) | (np.diff(stretches, prepend=stretch) > 0))
        firsts, skipped = row_places(chunk.segments, arranged, chosen, keeps_whole=keeps_whole)
        found.append(np.stack([numbers[chosen], firsts + documents, skipped]))
        stretch = int(stretches[-1]) if arranged.packs else stretch
        open_row = arranged.open_row
        rows, segments = rows + arranged.packs, segments + arranged.segments
        places += len(chunk.values)
        documents += chunk.segments.documents
    account = require_segments(account, segments, options)
    found.append(np.array([[rows], [documents], [0]]))
    bound = (lower_bound if keeps_whole else cut_bound)(histogram, options.max_segments)
    totals = PlanTotals.of(account, max_len=options.max_len, segments=segments, rows=rows, lower_bound=bound)
    arrays = dict(zip(_MARKS, np.concatenate(found, axis=1), strict=True))
    return Checkpoint(facts={"totals": totals.to_dict()}, arrays=arrays)
