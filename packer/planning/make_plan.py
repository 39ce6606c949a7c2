"""Plan the rows of documents in one of three ways.

- With a histogram algorithm, partitions of the source pack their own documents (`partitioning`).
- With an order algorithm, rows follow the order of the source (`order_plan`).
- With groups of documents, or limits besides tokens, the whole plan is held in memory (`whole_plan`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import AnyAlgorithm, OrderAlgorithm
from packer.algorithms.jit import prepare_for
from packer.engine import Engine
from packer.facts import PlanTotals
from packer.notes import Note, Notes, make_note
from packer.options import PackOptions
from packer.plan.rows import PlacedRows, Plan
from packer.planning.order_plan import plan_in_order
from packer.planning.packable_segments import Planning, SegmentReader, cut_by_policy
from packer.planning.partitioning import plan_partitions, survey
from packer.planning.whole_plan import DocumentValues, WholePlan, document_values, plan_whole
from packer.progress import Progress, silent
from packer.shards.row_format import RowFormat
from packer.sources.corpus import Documents

PLAN_VERSION = 2
"""Number of the rules by which documents are placed. An unfinished output of other rules is not resumed, because its
shards would have other documents."""


def needs_documents(algorithm: AnyAlgorithm, options: PackOptions) -> bool:
    """Whether the rows depend on more than the histogram: on source order, random draws, pairs or groups."""
    return isinstance(algorithm, OrderAlgorithm) or algorithm.draws or options.pairs or options.group_by is not None


def plan_documents(
    documents: Documents,
    options: PackOptions,
    row_format: RowFormat,
    *,
    notes: Notes,
    engine: Engine = Engine(),  # noqa: B008 (immutable)
    progress: Progress = silent,
) -> Plan:
    """Plan the rows of all documents of a mapped source; continue from the notes of an interrupted run.

    Progress is reported as "plan", in tasks. If the options do not allow a document to be packed, or there is
    nothing to pack, this is a SourceError.
    """
    identity = documents.identity
    prepare_for(documents=identity.documents, tokens=0 if options.index_only else identity.tokens)
    reader = SegmentReader(options=options, documents=identity.documents, source=documents)
    rows_per_shard = row_format.rows_in(options.shard_size)
    planning = Planning(reader=reader, rows_per_shard=rows_per_shard, notes=notes, engine=engine, progress=progress)
    return _plan_whole(documents, planning) if options.is_planned_whole else _plan_by_tasks(planning)


def plan_lengths(
    lengths: NDArray[np.int32],
    options: PackOptions,
    *,
    values: DocumentValues = DocumentValues(),  # noqa: B008 (immutable)
    threads: int = 1,
    progress: Progress = silent,
) -> Plan:
    """Plan the rows that `pack` makes with the same options, from the lengths of documents, without writing anything.

    `values` are needed if options name columns for groups or limits. Errors are those of `plan_documents`.
    """
    prepare_for(documents=len(lengths))
    rows_per_shard = RowFormat.of(options).rows_in(options.shard_size)
    if options.is_planned_whole:
        return plan_whole(cut_by_policy(lengths, options), values, options, rows_per_shard=rows_per_shard)
    reader = SegmentReader(options=options, documents=len(lengths), lengths=lengths)
    engine = Engine(workers=threads)
    return _plan_by_tasks(Planning(reader=reader, rows_per_shard=rows_per_shard, engine=engine, progress=progress))


def _plan_by_tasks(planning: Planning) -> Plan:
    """Plan rows without groups or limits; hold nothing per document."""
    if planning.reader.options.keeps_order:
        return plan_in_order(planning)
    return plan_partitions(planning, survey(planning))


def _plan_whole(documents: Documents, planning: Planning) -> WholePlan:
    """Plan rows with groups or limits; the whole plan is saved as one note, and then mapped."""
    assert documents.lengths is not None
    options, rows_per_shard = planning.reader.options, planning.rows_per_shard
    table = replace(documents.table, lengths=documents.lengths)
    segments = cut_by_policy(table.lengths, options, table=table, describe=documents.describe)

    def make() -> Note:
        lists = None if table.lists is None else table.lists_of(np.arange(len(table.lengths)))
        values = document_values(table.extra, lists, options, documents.describe)
        plan = plan_whole(segments, values, options, rows_per_shard=rows_per_shard)
        arrays = {"row_starts": plan.placed.row_starts, "slots": plan.placed.numbers}
        return Note(facts={"totals": plan.totals.to_dict()}, arrays=arrays)

    note = make_note(planning.notes, "plan", make, planning.engine, lasting=True)
    return WholePlan(
        placed=PlacedRows(row_starts=note.arrays["row_starts"], numbers=note.arrays["slots"]),
        segments=segments,
        rows_per_shard=rows_per_shard,
        totals=PlanTotals.from_dict(note.facts["totals"]),
    )
