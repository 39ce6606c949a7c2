"""Plan rows in which groups of documents are kept together or apart; the whole plan is held in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns, RowExtents
from packer.errors import SourceError
from packer.facts import GroupTotals, PlanTotals
from packer.options import PackOptions
from packer.pipeline.apply_options import solve_histogram
from packer.pipeline.segments.packable_segments import account_of, items_and_groups, least_rows
from packer.plan.apart import keep_apart
from packer.plan.groups import NO_GROUP, apart_bound, deal_together
from packer.plan.rows import PlacedRows, place_rows
from packer.plan.segments import Segments
from packer.plan.whole_plan import WholePlan
from packer.shards.sharing import Chunks, group_codes, group_values

FEW_SEGMENTS = 1 << 17
"""Most segments for which `auto` keeps groups apart in the rows of several algorithms, to save single rows."""


def document_groups(
    extra: Mapping[str, Chunks], lists: NDArray[Any] | None, options: PackOptions
) -> NDArray[np.int32] | None:
    """Return the group of each document: documents with equal values form a group, those with null are in none.

    Args:
        extra: columns of the source, a value per list.
        lists: (documents,) list of each document; None if document i is list i.
        options: options of the pack; `group_by` names the column.

    Returns:
        int32, shape (documents,), 0..groups - 1 or NO_GROUP; None if documents are not grouped.

    Raises:
        SourceError: values of the column cannot be compared, or all of them are null.
    """
    if options.group_by is None:
        return None
    codes = group_codes(group_values(extra[options.group_by], options.group_by))
    if lists is not None:
        codes = codes[lists]
    if codes.max(initial=NO_GROUP) == NO_GROUP:
        raise SourceError(f"column '{options.group_by}' is null in every document; name another with --group-by")
    return codes


def plan_groups(
    segments: Segments, groups: NDArray[np.int32], options: PackOptions, *, rows_per_shard: int
) -> WholePlan:
    """Plan rows with documents of one group only (together), or with at most one document of each group (apart).

    Args:
        segments: segments of all documents.
        groups: (documents,) group of each document, NO_GROUP for none.
        options: options of the pack.
        rows_per_shard: largest number of rows of a shard.
    """
    items, of_items = items_and_groups(segments, groups, options)
    assert of_items is not None
    patterns = solve_histogram(options, items.histogram)
    if options.group_mode == "together":
        solve, proved, are_leftovers = partial(solve_histogram, options), 0, True
        placed = deal_together(items, of_items, solve, max_segments=options.max_items, seed=options.seed)
    else:
        proved = patterns.lower_bound
        placed, are_leftovers = _apart(items, of_items, patterns, options)
    rows = len(placed)
    totals = PlanTotals.of(
        account_of(segments, options),
        max_len=options.max_len,
        segments=len(placed.numbers) * (2 if options.pairs else 1),
        rows=rows,
        pool_rows=rows if are_leftovers or rows > rows_per_shard else 0,
        lower_bound=max(proved, least_rows(items, of_items, options)),
        groups=group_totals(groups, patterns.packs),
    )
    placed = placed.of_pairs() if options.pairs else placed
    return WholePlan(placed=placed, segments=segments, rows_per_shard=rows_per_shard, totals=totals)


def _apart(
    items: Segments, groups: NDArray[np.int32], patterns: Patterns, options: PackOptions
) -> tuple[PlacedRows, bool]:
    """Deal items, segments or pairs, to rows so that groups stay apart; return also whether rows were dissolved."""
    least, extents = apart_bound(items, groups), items.extents_of_numbers()

    def apart(patterns: Patterns) -> tuple[PlacedRows, bool]:
        placed, _ = place_rows(extents, RowExtents.of_patterns(patterns), items.max_len, seed=options.seed)
        kept = keep_apart(placed, items, groups, least=least, max_segments=options.max_items, seed=options.seed)
        return kept, kept is not placed

    best = apart(patterns)
    if options.algorithm == "auto" and len(best[0].numbers) <= FEW_SEGMENTS:
        # Which patterns can be kept apart in the fewest rows is a matter of chance.
        for name in ("ffd", "bfd"):
            if len(best[0]) > max(least, patterns.lower_bound):
                other = apart(solve_histogram(replace(options, algorithm=name), items.histogram))
                best = min(best, other, key=lambda found: len(found[0]))
    return best


def group_totals(groups: NDArray[np.int32], rows_ungrouped: int) -> GroupTotals:
    """Count groups; `rows_ungrouped` is the number of rows that the documents take if groups are ignored."""
    return GroupTotals(
        groups=int(np.count_nonzero(np.bincount(groups[groups != NO_GROUP]))),
        documents_without=int(np.count_nonzero(groups == NO_GROUP)),
        rows_ungrouped=rows_ungrouped,
    )
