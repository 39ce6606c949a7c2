"""Plan the rows of an order algorithm as marks of where rows begin in the source.

One pass arranges all documents, chunk by chunk, and notes where each shard begins. A shard is made by arranging its
documents again from there, so nothing is held per document, and any shard can be made alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.algorithms.bounds import cut_bound, lower_bound
from packer.algorithms.sequential import OpenRow, OrderedRows
from packer.engine import Engine, Threads
from packer.facts import Account, PlanTotals
from packer.notes import Note, Notes, make_note
from packer.options import PackOptions
from packer.pipeline.segments.packable_segments import account_of, require_segments
from packer.pipeline.segments.segment_reader import SegmentReader, chunks, read_chunk
from packer.plan.items import items_of
from packer.plan.ordered import OrderedSegments, lengths_to_arrange, row_places, rows_from
from packer.plan.pieces import Located, ShardRows
from packer.plan.segments import Segments
from packer.plan.threads import each_in_threads

STRETCH = 1 << 20
"""Approximate number of segments and documents from one mark to the next; a shard may have many stretches."""


class _Chunk(NamedTuple):
    """Chunk of documents before they are arranged."""

    account: Account
    """Counts of documents and tokens."""

    items: Segments
    """Segments of the documents, or pairs of segments as one."""

    lengths: NDArray[np.int32]
    """Lengths to be arranged; see `lengths_to_arrange`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderJob:
    """Everything that the rows of an order algorithm depend on. Can be pickled."""

    reader: SegmentReader
    """Reader of the documents."""

    options: PackOptions
    """Options of the pack."""

    @property
    def algorithm(self) -> OrderAlgorithm:
        """Algorithm of the options."""
        algorithm = get_algorithm(self.options.algorithm)
        assert isinstance(algorithm, OrderAlgorithm)
        return algorithm

    def arrange(self, lengths: NDArray[np.int32], open_row: OpenRow | None = None) -> OrderedRows:
        """Arrange the next documents, of which the first ones may go into `open_row`."""
        return self.algorithm.arrange(lengths, self.options.max_len, self.options.max_items, open_row)

    def read(self, first: int) -> _Chunk:
        """Read the chunk that begins with document `first`."""
        segments = read_chunk(self.reader, first)
        items = items_of(segments) if self.options.pairs else segments
        lengths = lengths_to_arrange(items, keeps_whole=self.algorithm.keeps_whole)
        return _Chunk(account_of(segments, self.options), items, lengths)

    def rows(self, *, document: int, skipped: int, end: int, rows: int) -> OrderedSegments:
        """Make rows again.

        Args:
            document: document with which the first row begins.
            skipped: part of this document that is in earlier rows; see `row_places`.
            end: document after the one in which the last row ends.
            rows: number of rows.
        """
        return rows_from(
            self.reader.segments(np.array([[document, end]])),
            self.arrange,
            first_document=document,
            skipped=skipped,
            rows=rows,
            pairs=self.options.pairs,
            keeps_whole=self.algorithm.keeps_whole,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderPlan:
    """Marks of where rows begin, in ascending order; the last mark is the end of the source. Can be pickled."""

    job: OrderJob
    """Job that makes the rows."""

    rows_per_shard: int
    """Rows of every shard but the last."""

    totals: PlanTotals
    """Totals for the manifest."""

    rows: NDArray[np.int64]
    """Shape (marks,): number of the row that begins at each mark; the last is the number of rows."""

    documents: NDArray[np.int64]
    """Shape (marks,): document with which the row at each mark begins."""

    skipped: NDArray[np.int64]
    """Shape (marks,): part of that document that is in earlier rows; see `row_places`."""

    @property
    def packs(self) -> int:
        """Number of rows."""
        return int(self.rows[-1])

    @property
    def lower_bound(self) -> int:
        """Lower bound on the rows of any packing."""
        return self.totals.lower_bound

    @property
    def shard_rows(self) -> list[int]:
        """Rows of each shard; none is empty."""
        rows: list[int] = np.diff([*range(0, self.packs, self.rows_per_shard), self.packs]).tolist()
        return rows

    def shard(self, number: int) -> ShardRows:
        """Return the rows of a shard; they are made when they are looked up."""
        first = number * self.rows_per_shard
        return _ShardInOrder(self, first, min(first + self.rows_per_shard, self.packs))

    def stretch(self, mark: int) -> OrderedSegments:
        """Make the rows from a mark to the next one."""
        end = self.documents[mark + 1]
        if self.skipped[mark + 1]:  # a part of the document at the next mark belongs to these rows
            end += 2 if self.job.options.pairs else 1
        return self.job.rows(
            document=int(self.documents[mark]),
            skipped=int(self.skipped[mark]),
            end=int(end),
            rows=int(self.rows[mark + 1] - self.rows[mark]),
        )


class _ShardInOrder:
    """Rows first..last - 1 of a plan; keeps only the stretch that was looked up last."""

    def __init__(self, plan: OrderPlan, first: int, last: int) -> None:
        self._plan = plan
        self._first = first
        self._last = last
        self._mark = -1
        self._stretch: OrderedSegments | None = None

    def __len__(self) -> int:
        return self._last - self._first

    def located(self, first_row: int, last_row: int) -> Located:
        """Locate the segments of rows first_row..last_row - 1 in the source."""
        first, last = self._first + first_row, self._first + last_row
        marks = self._plan.rows
        parts: list[Located] = []
        while first < last or not parts:
            mark = int(np.searchsorted(marks, first, side="right")) - 1
            end = min(last, int(marks[mark + 1]))
            parts.append(self._at(mark).located(first - int(marks[mark]), end - int(marks[mark])))
            first = end
        if len(parts) == 1:
            return parts[0]
        ends = np.cumsum([0, *(len(part.documents) for part in parts)])
        return Located(
            documents=np.concatenate([part.documents for part in parts]),
            starts=np.concatenate([part.starts for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
            row_starts=np.concatenate(
                [np.zeros(1, np.int64), *(part.row_starts[1:] + end for part, end in zip(parts, ends, strict=False))]
            ),
        )

    def _at(self, mark: int) -> OrderedSegments:
        if self._stretch is None or self._mark != mark:
            self._stretch = None  # do not hold two stretches
            self._mark, self._stretch = mark, self._plan.stretch(mark)
        return self._stretch


def plan_in_order(
    reader: SegmentReader,
    options: PackOptions,
    *,
    rows_per_shard: int,
    notes: Notes,
    engine: Engine = Threads(),  # noqa: B008 (immutable)
) -> OrderPlan:
    """Plan the rows of all documents by an order algorithm.

    Args:
        reader: reader of the documents.
        options: options of the pack.
        rows_per_shard: rows of every shard but the last.
        notes: store of the plan, as note "order"; an existing plan is used.
        engine: decides which process plans, and how many threads cut documents; the plan does not depend on it.

    Raises:
        SourceError: there is nothing to pack; or as `reader.segments`.
    """
    job = OrderJob(reader=reader, options=options)
    note = make_note(notes, "order", partial(_note_marks, job, rows_per_shard, engine.workers), engine)
    marks = {name: np.array(array) for name, array in note.arrays.items()}
    return OrderPlan(job=job, rows_per_shard=rows_per_shard, totals=PlanTotals.from_dict(note.facts["totals"]), **marks)


def _note_marks(job: OrderJob, rows_per_shard: int, workers: int) -> Note:
    """Arrange all documents; note the totals, and where the first row of every shard and stretch begins."""
    options, keeps_whole = job.options, job.algorithm.keeps_whole
    step = 2 if options.pairs else 1
    account, histogram = None, np.zeros(options.max_len + 1, np.int64)
    rows = pieces = documents = places = stretch = 0
    open_row = OpenRow()
    found: list[NDArray[np.int64]] = []
    for chunk in each_in_threads(job.read, chunks(job.reader), workers):
        arranged = job.arrange(chunk.lengths, open_row)
        one = chunk.account
        if not keeps_whole:
            one = replace(one, documents_split=int(np.count_nonzero(np.diff(arranged.cut_documents, prepend=-1))))
        account = one if account is None else account + one
        histogram += chunk.items.histogram
        numbers = np.arange(rows, rows + arranged.packs)
        stretches = (arranged.row_documents + places + arranged.row_starts[:-1] + pieces) // STRETCH
        chosen = np.flatnonzero((numbers % rows_per_shard == 0) | (np.diff(stretches, prepend=stretch) > 0))
        items, skipped = row_places(chunk.items, arranged, chosen, keeps_whole=keeps_whole)
        found.append(np.stack([numbers[chosen], items * step + documents, skipped]))
        stretch = int(stretches[-1]) if arranged.packs else stretch
        open_row = arranged.open_row
        rows, pieces, places = rows + arranged.packs, pieces + arranged.pieces, places + len(chunk.lengths)
        documents += chunk.items.documents * step
    account = require_segments(account, pieces, options)
    found.append(np.array([[rows], [documents], [0]]))
    bound = (lower_bound if keeps_whole else cut_bound)(histogram, options.max_items)
    totals = PlanTotals.of(
        account, max_len=options.max_len, segments=pieces * step, packs=rows, pool_packs=0, lower_bound=bound
    )
    marks = np.concatenate(found, axis=1)
    return Note(
        facts={"totals": totals.to_dict()}, arrays=dict(zip(("rows", "documents", "skipped"), marks, strict=True))
    )
