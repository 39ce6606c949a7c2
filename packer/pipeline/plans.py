"""Documents to a plan: by partitions that make their own rows, or held as a whole where that cannot be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import Algorithm, get_algorithm
from packer.notes import Note, Notes, NotesInMemory
from packer.options import PackOptions
from packer.pipeline.apply_options import row_format_of
from packer.pipeline.grouping import document_groups
from packer.pipeline.mixing import Documents
from packer.pipeline.partitioning import plan_partitions
from packer.pipeline.planning import cut_lengths, make_plan
from packer.pipeline.reading import LengthsReader, TableReader
from packer.pipeline.surveying import survey
from packer.pipeline.writing import Shards
from packer.plan import Plan, Segments
from packer.plan.deal import PlannedShards
from packer.progress import Progress, silent
from packer.shards.columns import RowFormat
from packer.sources import TokenTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A plan, and what is needed to write its rows."""

    table: TokenTable
    """The columns of all documents, by address."""

    row_format: RowFormat
    """What a row looks like."""

    shards: Shards
    """The rows of each shard."""

    overlap: int
    """Tokens with which a piece of a document repeats the end of the piece before it."""

    totals: dict[str, Any]
    """Those of the manifest: every document and token accounted for."""


def makes_own_rows(options: PackOptions) -> bool:
    """Whether partitions make their own rows: not in the order of the source, nor where documents are grouped."""
    return options.group_by is None and isinstance(get_algorithm(options.algorithm), Algorithm)


def plan_documents(
    documents: Documents, options: PackOptions, *, notes: Notes, workers: int = 1, progress: Progress = silent
) -> Planned:
    """Plan the rows of all documents, going on from the notes that are there.

    Args:
        documents: those of a mapped source; with their lengths, unless partitions make their own rows.
        options: what shapes the rows.
        notes: where the plan is kept.
        workers: tasks at a time; the plan is the same for any number.
        progress: called with "plan".

    Raises:
        SourceError: a document cannot be packed as the options say, or there is nothing to pack.
    """
    none = np.zeros(0, np.int32)
    table = documents.source.table(none if documents.lengths is None else documents.lengths)
    row_format = row_format_of(options, table.extra)
    if not makes_own_rows(options):
        return _held_plan(documents, table, row_format, options, notes, workers, progress)
    rows_per_shard = max(1, options.shard_size // row_format.row_bytes)
    count = documents.identity["documents"]
    reader = TableReader(table=table, documents=count, options=options, describe=documents.describe)
    surveyed = survey(reader, options, rows_per_shard=rows_per_shard, threads=workers)
    plan = plan_partitions(
        reader, surveyed, options,
        rows_per_shard=rows_per_shard, notes=notes, workers=workers, progress=progress,
    )  # fmt: skip
    totals = {
        **asdict(surveyed.account),
        "segments": surveyed.segments,
        "packs": plan.packs,
        "pool_packs": plan.pool_packs,
        "lower_bound": plan.lower_bound,
        "efficiency": surveyed.account.tokens_packed / (plan.packs * options.max_len),
    }
    return Planned(table=table, row_format=row_format, shards=plan, overlap=_overlap(options), totals=totals)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLengths:
    """The rows that documents are going to be packed into."""

    segments: Segments
    """What the long-document policy makes of the documents."""

    shards: Shards
    """The rows of each shard."""

    packs: int
    """All rows."""

    lower_bound: int
    """Rows that no packing goes below."""


def plan_lengths(
    lengths: NDArray[np.int32],
    options: PackOptions,
    *,
    groups: NDArray[np.int32] | None = None,
    threads: int = 1,
    progress: Progress = silent,
) -> PlannedLengths:
    """Plan the rows that `pack` makes of documents with the same options, from their lengths; nothing is written.

    Args:
        lengths: (documents,) tokens of each.
        options: what shapes the rows.
        groups: (documents,) the group of each, where `options.group_by` asks for them.
        threads: tasks at a time; the plan is the same for any number.
        progress: called with "plan".

    Raises:
        SourceError: there is nothing to pack, or a document is longer than max_len and that is an error.
    """
    row_bytes = RowFormat.of(options).row_bytes
    cut = cut_lengths(lengths, options, threads=threads)
    if not makes_own_rows(options):
        plan, totals = make_plan(cut, options, row_bytes=row_bytes, groups=groups, progress=progress)
        shards = PlannedShards(plan=plan, segments=cut.segments)
        packs, bound = totals["packs"], totals["lower_bound"]
        return PlannedLengths(segments=cut.policy, shards=shards, packs=packs, lower_bound=bound)
    rows_per_shard = max(1, options.shard_size // row_bytes)
    reader = LengthsReader(lengths=lengths, options=options)
    surveyed = survey(reader, options, rows_per_shard=rows_per_shard, threads=threads)
    own = plan_partitions(
        reader, surveyed, options,
        rows_per_shard=rows_per_shard, notes=NotesInMemory(), workers=threads, progress=progress,
    )  # fmt: skip
    return PlannedLengths(segments=cut.policy, shards=own, packs=own.packs, lower_bound=own.lower_bound)


def _overlap(options: PackOptions) -> int:
    """Tokens that pieces repeat: none where documents are cut between turns."""
    return options.overlap if options.long == "split" and options.split_at == "tokens" else 0


def _held_plan(
    documents: Documents,
    table: TokenTable,
    row_format: RowFormat,
    options: PackOptions,
    notes: Notes,
    workers: int,
    progress: Progress,
) -> Planned:
    """Plan in the order of the source, or with groups: what is planned is kept as one note, and mapped."""
    cut = cut_lengths(table.lengths, options, table=table, describe=documents.describe, threads=workers)
    note = notes.load("plan")
    if note is None:
        groups = document_groups(table.extra, table.rows, options)
        plan, totals = make_plan(cut, options, row_bytes=row_format.row_bytes, groups=groups, progress=progress)
        arrays = {"shard_rows": plan.shard_rows, "row_starts": plan.row_starts, "slots": plan.slots}
        note = Note(facts={"totals": totals, "pool_packs": plan.pool_packs}, arrays=arrays)
        notes.save("plan", note, lasting=True)
        del plan, arrays  # from here on mapped, not held
        note = notes.load("plan")
        assert note is not None
    plan = Plan(**note.arrays, pool_packs=note.facts["pool_packs"])
    shards = PlannedShards(plan=plan, segments=cut.segments)
    return Planned(
        table=table,
        row_format=row_format,
        shards=shards,
        overlap=cut.segments.overlap,
        totals=dict(note.facts["totals"]),
    )
