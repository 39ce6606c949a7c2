"""Plan the rows of documents in one of three ways.

- With a histogram algorithm, each partition of the source packs its own documents (`partition_plan`).
- With an order algorithm, rows follow the order of the source (`order_plan`).
- With groups of documents, or limits besides tokens, partitions cannot be planned separately, so the whole plan is held
  in memory (`whole_plan`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import prepare_for
from packer.engines.checkpoints import Checkpoints
from packer.engines.engine import Engine
from packer.options import PackOptions
from packer.plan.order_plan import plan_in_order
from packer.plan.partition_plan import plan_partitions, survey
from packer.plan.rows import Plan, Planning
from packer.plan.segments import SegmentReader
from packer.plan.whole_plan import DocumentValues, document_values, plan_whole
from packer.progress import Progress, silent
from packer.shards.row_format import RowFormat
from packer.sources.source import Documents, ValueColumn

PLAN_VERSION = 4
"""Version of the rules that place documents. An unfinished output of another version is not resumed, because its
shards would contain other documents."""


def plan_documents(
    documents: Documents,
    options: PackOptions,
    row_format: RowFormat,
    *,
    checkpoints: Checkpoints,
    engine: Engine = Engine(),  # noqa: B008 (immutable)
    progress: Progress = silent,
) -> Plan:
    """Plan the rows of all documents of a mapped source. Continues from the checkpoints of an interrupted run.

    Progress is reported as "plan", in tasks. Raises a SourceError if the options forbid a document, or if there is
    nothing to pack.
    """
    identity = documents.identity
    prepare_for(identity.documents + identity.tokens // options.max_len)
    planning = Planning(
        reader=SegmentReader(options=options, documents=identity.documents, source=documents),
        rows_per_shard=row_format.rows_in(options.shard_size),
        checkpoints=checkpoints,
        engine=engine,
        progress=progress,
    )
    return _plan(planning, lambda: document_values(documents, documents.table.extra, options))


def plan_lengths(
    lengths: NDArray[np.int32],
    options: PackOptions,
    *,
    values: DocumentValues = DocumentValues(),  # noqa: B008 (immutable)
    starts: ValueColumn | None = None,
    threads: int = 1,
    progress: Progress = silent,
) -> Plan:
    """Plan the rows that `pack` makes with the same options, from document lengths alone; nothing is written.

    If the options name columns for groups or limits, pass `values`. If starts of exchanges are known, pass `starts`.
    Errors are the same as in `plan_documents`.
    """
    prepare_for(len(lengths) + int(lengths.sum(dtype=np.int64)) // options.max_len)
    planning = Planning(
        reader=SegmentReader(options=options, documents=len(lengths), lengths=lengths, starts=starts),
        rows_per_shard=RowFormat.of(options).rows_in(options.shard_size),
        engine=Engine(workers=threads),
        progress=progress,
    )
    return _plan(planning, lambda: values)


def _plan(planning: Planning, values_of: Callable[[], DocumentValues]) -> Plan:
    options = planning.reader.options
    planning.progress("plan", 0, 1)  # the first task may take long
    if not options.is_planned_whole and not options.keeps_order:
        return plan_partitions(planning, survey(planning))
    plan = plan_whole(planning, values_of) if options.is_planned_whole else plan_in_order(planning)
    planning.progress("plan", 1, 1)
    return plan
