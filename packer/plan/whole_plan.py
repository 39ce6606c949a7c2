"""Plan rows with groups of documents, or limits besides tokens: the whole plan is held in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound, vector_bounds
from packer.algorithms.index_arrays import extents_of
from packer.algorithms.patterns import Rows
from packer.arrow import as_numpy
from packer.checkpoints import Checkpoint, make_checkpoint
from packer.errors import SourceError
from packer.manifest_fields import REMEDY, GroupTotals, PlanTotals
from packer.options import RowOptions
from packer.plan.groups import least_rows, pack_by_group
from packer.plan.rows import LocatedRows, even_cuts, solve_histogram
from packer.plan.segment_reader import Planning
from packer.plan.segments import Segments
from packer.plan.vector_packing import pack_vectors
from packer.shards.sharing import NO_GROUP, Chunks, group_codes, group_values
from packer.sources.number_columns import number_fault, wrong_numbers
from packer.sources.read_documents import Documents


@dataclass(frozen=True, kw_only=True, slots=True)
class WholePlan:
    """Rows of all shards."""

    placed: Rows
    """Segment numbers of the rows of all shards, one shard after the other."""

    segments: Segments
    rows_per_shard: int
    totals: PlanTotals

    @property
    def _cuts(self) -> list[int]:
        return even_cuts(len(self.placed), self.rows_per_shard)

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows of each shard; none is empty."""
        rows: list[int] = np.diff(self._cuts).tolist()
        return rows

    def rows(self, shard: int) -> LocatedRows:
        """Locate the rows of a shard."""
        return LocatedRows.of(self.placed.part(*self._cuts[shard : shard + 2]), self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentValues:
    """Values that decide which documents may share a row, in packing order."""

    groups: NDArray[np.int32] | None = None
    """(documents,) group of each document, NO_GROUP for none; None without groups."""

    limits: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """(documents,) what each document takes of each limit, by column."""

    describe: Callable[[int], str] = "document {:,}".format
    """Function that names a document in messages."""


def plan_saved(documents: Documents, planning: Planning) -> WholePlan:
    """Plan rows with groups or limits; the whole plan is saved as one checkpoint, and then mapped."""
    options, rows_per_shard = planning.reader.options, planning.rows_per_shard
    segments = planning.reader.all_segments()

    def make() -> Checkpoint:
        values = document_values(documents.table.extra, options, documents.describe)
        plan = plan_whole(segments, values, options, rows_per_shard=rows_per_shard)
        arrays = {"row_starts": plan.placed.row_starts, "slots": plan.placed.values}
        return Checkpoint(facts={"totals": plan.totals.to_dict()}, arrays=arrays)

    checkpoint = make_checkpoint(planning.checkpoints, "plan", make, planning.engine, lasting=True)
    return WholePlan(
        placed=Rows(values=checkpoint.arrays["slots"], row_starts=checkpoint.arrays["row_starts"]),
        segments=segments,
        rows_per_shard=rows_per_shard,
        totals=PlanTotals.from_dict(checkpoint.facts["totals"]),
    )


def document_values(extra: Mapping[str, Chunks], options: RowOptions, describe: Callable[[int], str]) -> DocumentValues:
    """Read the groups of documents, and what they take of limits; raise a SourceError if values cannot be used."""
    return DocumentValues(
        groups=None if options.group_by is None else _groups(extra[options.group_by], options.group_by),
        limits={name: _limited(extra[name], name, options, describe) for name in options.limits},
        describe=describe,
    )


def _groups(column: Chunks, name: str) -> NDArray[np.int32]:
    """Return the group of each document: documents with equal values form a group, those with null are in none."""
    codes = group_codes(group_values(column, name))
    if codes.max(initial=NO_GROUP) == NO_GROUP:
        raise SourceError(f"column '{name}' is null in every document; name another with --group-by")
    return codes


def _limited(column: Chunks, name: str, options: RowOptions, describe: Callable[[int], str]) -> NDArray[np.int32]:
    """Return what each document takes of a limit: shape (documents,)."""
    parts, first = [np.zeros(0, np.int32)], 0
    for chunk in column.chunks:
        wrong = wrong_numbers(chunk)
        if len(wrong):
            fault, where = number_fault(chunk, int(wrong[0]), name), describe(first + int(wrong[0]))
            remedy = f"; {REMEDY}" if options.lengths_column is None else ""
            raise SourceError(f"{where}: {fault.message}{remedy}")
        parts.append(as_numpy(chunk).astype(np.int32))
        first += len(chunk)
    return np.concatenate(parts)


def plan_whole(segments: Segments, values: DocumentValues, options: RowOptions, *, rows_per_shard: int) -> WholePlan:
    """Plan rows with groups or under limits; raise a SourceError if a document takes too much."""
    if options.limit:
        return _plan_under_limits(segments, values, options, rows_per_shard)
    assert values.groups is not None
    return _plan_groups(segments, values.groups, options, rows_per_shard)


def _plan_groups(segments: Segments, groups: NDArray[np.int32], options: RowOptions, rows_per_shard: int) -> WholePlan:
    """Plan rows with documents of one group only."""
    solve = partial(solve_histogram, options)
    placed = pack_by_group(segments, groups, solve, max_segments=options.max_segments, seed=options.seed)
    rows = len(placed)
    totals = PlanTotals.of(
        segments.account,
        max_len=options.max_len,
        segments=len(placed.values),
        rows=rows,
        pool_rows=rows,
        lower_bound=least_rows(segments, groups, options),
        groups=group_totals(groups, solve(segments.histogram).packs),
    )
    return WholePlan(placed=placed, segments=segments, rows_per_shard=rows_per_shard, totals=totals)


def group_totals(groups: NDArray[np.int32], rows_ungrouped: int) -> GroupTotals:
    """Count groups; `rows_ungrouped` is the number of rows that the documents take if groups are ignored."""
    return GroupTotals(
        groups=int(np.count_nonzero(np.bincount(groups[groups != NO_GROUP]))),
        documents_without=int(np.count_nonzero(groups == NO_GROUP)),
        rows_ungrouped=rows_ungrouped,
    )


def _plan_under_limits(
    segments: Segments, values: DocumentValues, options: RowOptions, rows_per_shard: int
) -> WholePlan:
    """Plan rows in which tokens and further columns stay within their limits; no document may be split."""
    numbers = segments.numbers()
    pieces = segments.locate(numbers)
    documents = pieces["document"]
    taken = {name: values.limits[name][documents] for name in options.limits}
    _refuse_above(taken, documents, options, values.describe)
    demands = np.stack([extents_of(segments.tokens[numbers], segments.align), *taken.values()])
    capacities = np.array([options.max_len, *options.limits.values()], np.int64)
    del pieces, documents, taken
    placed = pack_vectors(demands, capacities, max_segments=options.max_segments, seed=options.seed)
    totals = PlanTotals.of(
        segments.account,
        max_len=options.max_len,
        segments=len(numbers),
        rows=len(placed),
        pool_rows=0,
        lower_bound=max(
            lower_bound(segments.histogram, options.max_segments), int(vector_bounds(demands, capacities).max())
        ),
    )
    placed = Rows(values=numbers[placed.values], row_starts=placed.row_starts)
    return WholePlan(placed=placed, segments=segments, rows_per_shard=rows_per_shard, totals=totals)


def _refuse_above(
    taken: Mapping[str, NDArray[np.int32]],
    documents: NDArray[np.int64],
    options: RowOptions,
    describe: Callable[[int], str],
) -> None:
    """Raise a SourceError if a document exceeds a limit; `taken` has the values of `documents`, by column."""
    for name, most in options.limits.items():
        above = np.flatnonzero(taken[name] > most)
        if len(above):
            first = above[0]
            raise SourceError(
                f"{describe(int(documents[first]))} has {name} {taken[name][first]:,}, and a row may have {most:,} "
                f"(documents with more: {len(above):,}): raise --limit, or leave them out"
            )
