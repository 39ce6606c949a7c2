"""Plan rows with groups of documents, or with limits besides tokens. The whole plan is held in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound, vector_bounds
from packer.algorithms.index_arrays import extents_of, sorted_indices
from packer.algorithms.jit import jit
from packer.algorithms.open_packs import COUNT, SEGMENTS, OpenPacks, detach, next_key, no_packs, push
from packer.algorithms.patterns import Patterns, Rows
from packer.arrow import as_arrow, as_numpy
from packer.engines.checkpoints import Checkpoint, make_checkpoint
from packer.errors import SourceError
from packer.json_records import GroupTotals, PlanTotals
from packer.options import PackOptions
from packer.plan.rows import Planning, collected_rows, even_cuts, located, solve_histogram, sorted_by_extent
from packer.plan.segments import Segments
from packer.plan.vector_packing import pack_vectors
from packer.shards.located_rows import LocatedRows
from packer.shards.row_checks import NO_GROUP, Chunks, group_codes, group_values
from packer.sources.column_types import number_fault, wrong_numbers
from packer.sources.source import Documents


@dataclass(frozen=True, kw_only=True, slots=True)
class WholePlan:
    """Rows of all shards."""

    placed: Rows
    """Segment numbers of the rows of all shards, shard by shard."""

    segments: Segments
    totals: PlanTotals

    shard_starts: NDArray[np.int64]
    """First row of each shard, plus the number of rows; shape (shards + 1,)."""

    def rows(self, shard: int) -> LocatedRows:
        """Locate the rows of a shard."""
        return located(self.placed.part(*self.shard_starts[shard : shard + 2].tolist()), self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentValues:
    """Values that decide which documents may share a row, in packing order."""

    groups: NDArray[np.int32] | None = None
    """Group of each document, NO_GROUP for none; shape (documents,). None if rows are not grouped."""

    limits: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """Amount of each limited column that each document takes, by column; shape (documents,)."""

    describe: Callable[[int], str] = "document {:,}".format
    """Function that names a document in messages."""


def plan_whole(planning: Planning, values_of: Callable[[], DocumentValues]) -> WholePlan:
    """Plan rows with groups or under limits. The whole plan is saved as one checkpoint and then mapped.

    Raises a SourceError if a document exceeds a limit.
    """
    options = planning.reader.options
    segments = planning.reader.all_segments()

    def make() -> Checkpoint:
        place = _place_under_limits if options.limit else _place_groups
        placed, totals = place(segments, values_of(), options)
        arrays = {"row_starts": placed.row_starts, "slots": placed.values}
        return Checkpoint(facts={"totals": totals.to_dict()}, arrays=arrays)

    checkpoint = make_checkpoint(planning.checkpoints, "plan", make, planning.engine, lasting=True)
    placed = Rows(values=checkpoint.arrays["slots"], row_starts=checkpoint.arrays["row_starts"])
    return WholePlan(
        placed=placed,
        segments=segments,
        shard_starts=even_cuts(len(placed), planning.rows_per_shard),
        totals=PlanTotals.from_dict(checkpoint.facts["totals"]),
    )


def document_values(documents: Documents, extra: Mapping[str, Chunks], options: PackOptions) -> DocumentValues:
    """Read the groups of documents and their values for limits. Raises a SourceError if values cannot be used."""
    return DocumentValues(
        groups=None if options.group_by is None else _groups(extra[options.group_by], options.group_by),
        limits={name: _limited(extra[name], name, documents) for name in options.limits},
        describe=documents.describe,
    )


def _groups(column: Chunks, name: str) -> NDArray[np.int32]:
    """Return the group of each document. Documents with equal values form a group; null means no group."""
    codes = group_codes(group_values(column, name))
    if codes.max(initial=NO_GROUP) == NO_GROUP:
        raise SourceError(f"column '{name}' is null in every document; name another with --group-by")
    return codes


def _limited(column: Chunks, name: str, documents: Documents) -> NDArray[np.int32]:
    """Return the value of each document for a limit, shape (documents,); 0 for rejected documents."""
    parts, first = [np.zeros(0, np.int32)], 0
    for chunk in column.chunks:
        wrong = wrong_numbers(chunk)
        unfit = np.setdiff1d(wrong + first, documents.source.rejections.documents)
        if len(unfit):
            fault = number_fault(chunk, int(unfit[0]) - first, name)
            raise SourceError(f"{documents.describe(int(unfit[0]))}: {fault.message}")
        right = np.setdiff1d(np.arange(len(chunk)), wrong)
        parts.append(np.zeros(len(chunk), np.int32))
        if len(right):
            parts[-1][right] = as_numpy(chunk.take(as_arrow(right)))
        first += len(chunk)
    return np.concatenate(parts)


def _place_groups(segments: Segments, values: DocumentValues, options: PackOptions) -> tuple[Rows, PlanTotals]:
    """Place the documents of each group in separate rows."""
    groups, solve = values.groups, partial(solve_histogram, options)
    assert groups is not None
    placed = pack_by_group(segments, groups, solve, max_segments=options.max_segments, seed=options.seed)
    return placed, PlanTotals.of(
        segments.account,
        max_len=options.max_len,
        segments=len(placed.values),
        rows=len(placed),
        lower_bound=together_bound(segments, groups, options.max_segments),
        groups=group_totals(groups, solve(segments.histogram).packs),
    )


def group_totals(groups: NDArray[np.int32], rows_ungrouped: int) -> GroupTotals:
    """Count groups. `rows_ungrouped` is the number of rows if groups were ignored."""
    return GroupTotals(
        groups=int(np.count_nonzero(np.bincount(groups[groups != NO_GROUP]))),
        documents_without=int(np.count_nonzero(groups == NO_GROUP)),
        rows_ungrouped=rows_ungrouped,
    )


def _place_under_limits(segments: Segments, values: DocumentValues, options: PackOptions) -> tuple[Rows, PlanTotals]:
    """Place whole documents so that tokens and limited columns stay within their limits in each row."""
    numbers = segments.numbers()
    documents = segments.locate(numbers)["document"]
    taken = {name: values.limits[name][documents] for name in options.limits}
    _refuse_above(taken, documents, options, values.describe)
    demands = np.stack([extents_of(segments.tokens[numbers], segments.align), *taken.values()])
    capacities = np.array([options.max_len, *options.limits.values()], np.int64)
    del documents, taken
    placed = pack_vectors(demands, capacities, max_segments=options.max_segments, seed=options.seed)
    totals = PlanTotals.of(
        segments.account,
        max_len=options.max_len,
        segments=len(numbers),
        rows=len(placed),
        lower_bound=max(
            lower_bound(segments.histogram, options.max_segments), int(vector_bounds(demands, capacities).max())
        ),
    )
    return Rows(values=numbers[placed.values], row_starts=placed.row_starts), totals


def _refuse_above(
    taken: Mapping[str, NDArray[np.int32]],
    documents: NDArray[np.int64],
    options: PackOptions,
    describe: Callable[[int], str],
) -> None:
    """Raise a SourceError if a document exceeds a limit. `taken` has the values of `documents`, by column."""
    for name, most in options.limits.items():
        above = np.flatnonzero(taken[name] > most)
        if len(above):
            first = above[0]
            raise SourceError(
                f"{describe(int(documents[first]))} has {name} {taken[name][first]:,}, and a row may have {most:,} "
                f"(documents with more: {len(above):,}): raise --limit, or leave them out"
            )


MOST_SOLVED = 16
"""The chosen algorithm packs this many of the largest groups. One compiled pass packs all others by best fit."""


def pack_by_group(
    segments: Segments,
    groups: NDArray[np.int32],
    solve: Callable[[NDArray[np.int64]], Patterns],
    *,
    max_segments: int | None,
    seed: int,
) -> Rows:
    """Pack every group on its own, so that no row holds segments of two groups.

    Documents without a group (NO_GROUP in `groups`, shape (documents,)) share rows only with each other. `solve` packs
    the histograms of the MOST_SOLVED largest groups. The rows of all groups are put in random order.
    """
    max_len = segments.max_len
    grouped = by_group(segments.extents(), groups_of_numbers(segments, groups), max_len, seed)
    sizes = np.diff(grouped.starts)
    solved = np.argsort(-sizes, kind="stable")[:MOST_SOLVED]
    is_solved = np.zeros(len(sizes), np.bool_)
    is_solved[solved] = True
    limit = max_len if max_segments is None else min(max_segments, max_len)
    rows = np.empty_like(grouped.numbers)
    most = int(sizes[~is_solved].max(initial=0))
    open_rows = no_packs(np.zeros((most, 4), np.int64), max_len + 1)
    packs = pack_groups(grouped, is_solved, max_len, limit, open_rows, rows)
    for group in solved:
        first, last = int(grouped.starts[group]), int(grouped.starts[group + 1])
        if first == last:
            continue
        patterns = solve(np.bincount(grouped.extents[grouped.numbers[first:last]], minlength=max_len + 1))
        # The group and its patterns have the same segments, both with the longest first.
        followed = patterns.rows()
        row_of = np.repeat(np.arange(packs, packs + len(followed)), np.diff(followed.row_starts))
        rows[first:last] = row_of[sorted_indices(max_len - followed.values, max_len + 1)[1]]
        packs += patterns.packs
    return collected_rows(grouped.numbers, rows, packs, seed=seed)


def by_group(extents: NDArray[np.int32], groups: NDArray[np.int32], max_len: int, seed: int) -> GroupedSegments:
    """Sort segments by group, within a group by decreasing extent, and equal extents at random.

    `extents` (0: leave out) and `groups` (NO_GROUP: none) have the shape (segment numbers,).
    """
    by_extent, numbers = sorted_by_extent(extents, max_len, seed=seed)
    numbers = numbers[by_extent[1] :][::-1]
    none = int(groups.max(initial=NO_GROUP)) + 1
    of_numbers = groups[numbers]
    of_numbers[of_numbers == NO_GROUP] = none
    starts, order = sorted_indices(of_numbers, none + 1)
    return GroupedSegments(numbers=numbers[order], starts=starts, groups=groups, extents=extents)


def groups_of_numbers(segments: Segments, groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the group of every segment number: int32, shape (count,)."""
    return np.concatenate([groups, groups[segments.heads]]) if len(segments.heads) else groups


def together_bound(segments: Segments, groups: NDArray[np.int32], max_segments: int | None) -> int:
    """Return a lower bound on the rows if no row has segments of two groups: the sum of the groups' bounds.

    The bound of a group is the largest of three numbers: its tokens / max_len, its segments / `max_segments`, and its
    number of segments longer than half a row.
    """
    limit = segments.max_len if max_segments is None else min(max_segments, segments.max_len)
    extents = segments.extents()
    is_placed = extents > 0
    extents, of_segments = extents[is_placed], groups_of_numbers(segments, groups)[is_placed] - NO_GROUP
    tokens = np.bincount(of_segments, extents).astype(np.int64)  # sums below 2**53 are exact
    large = np.bincount(of_segments[2 * extents.astype(np.int64) > segments.max_len], minlength=len(tokens))
    number = np.bincount(of_segments)
    return int(np.maximum(np.maximum(-(-tokens // segments.max_len), -(-number // limit)), large).sum())


class GroupedSegments(NamedTuple):
    """Segments sorted by group, within a group by decreasing extent; a named tuple of arrays for the kernels.

    Example: groups [1, 0, -1, 1] and extents [3, 5, 2, 4] of segments 0 to 3 give numbers [1, 3, 0, 2] and starts [0,
    1, 3, 4].
    """

    numbers: NDArray[Any]  # (segments,) segment numbers, uint32 or int64
    starts: NDArray[np.int64]  # (groups + 2,) group g is numbers[starts[g]:starts[g + 1]]; the last is without a group
    groups: NDArray[np.int32]  # (segment numbers,) group of each segment, -1 for none
    extents: NDArray[np.int32]  # (segment numbers,) extent of each segment, 0 if it is not in `numbers`


@jit
def pack_groups(
    grouped: GroupedSegments,
    is_left_out: NDArray[np.bool_],
    max_len: int,
    limit: int,
    open_rows: OpenPacks,
    out_rows: NDArray[Any],
) -> int:
    """Pack every group on its own by best-fit decreasing. Write the row of each segment, and return the number of rows.

    Segments without a group are one more group. Groups in `is_left_out`, shape (groups + 1,), are packed elsewhere. No
    row has more than `limit` segments. `open_rows` is empty on entry and on return; its capacity is the number of
    segments of the largest group packed here.
    """
    numbers, starts, _, extents = grouped
    rows = np.int64(0)
    for group in range(len(starts) - 1):
        if is_left_out[group]:
            continue
        first_row = rows
        for i in range(starts[group], starts[group + 1]):
            extent = np.int64(extents[numbers[i]])
            room = next_key(open_rows, extent)
            if room <= max_len:
                row = detach(open_rows, room, 1, 0)
                open_rows.groups[row, SEGMENTS] += 1
            else:
                room = max_len
                row = rows - first_row
                open_rows.groups[row, COUNT] = 1
                open_rows.groups[row, SEGMENTS] = 1
                rows += 1
            out_rows[i] = first_row + row
            if room > extent and open_rows.groups[row, SEGMENTS] < limit:
                push(open_rows, room - extent, row)
        room = next_key(open_rows, 0)
        while room <= max_len:
            detach(open_rows, room, 1, 0)
            room = next_key(open_rows, room)
    return int(rows)
