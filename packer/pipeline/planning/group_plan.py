"""Plan rows in which groups of documents are kept together or apart; the whole plan is held in memory."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.facts import GroupTotals, PlanTotals
from packer.options import PackOptions
from packer.pipeline.apply_options import solve_histogram
from packer.pipeline.segments.packable_segments import account_of, items_and_groups, least_rows
from packer.plan import (
    NO_GROUP,
    Plan,
    Segments,
    apart_bound,
    deal,
    deal_together,
    keep_apart,
    with_both_of_each,
)


def plan_groups(
    segments: Segments, groups: NDArray[np.int32], options: PackOptions, *, rows_per_shard: int
) -> tuple[Plan, PlanTotals]:
    """Plan rows with documents of one group only (together), or with at most one document of each group (apart).

    Args:
        segments: segments of all documents.
        groups: (documents,) group of each document, NO_GROUP for none.
        options: options of the pack.
        rows_per_shard: largest number of rows of a shard.

    Returns:
        The plan and its totals for the manifest.
    """
    items, of_items = items_and_groups(segments, groups, options)
    assert of_items is not None
    patterns = solve_histogram(options, items.histogram)
    plan = _dealt(items, of_items, patterns, options, rows_per_shard=rows_per_shard)
    proved = patterns.lower_bound if options.group_mode == "apart" else 0
    if options.pairs:
        plan = with_both_of_each(plan, segments)
    totals = PlanTotals.of(
        account_of(segments, options),
        max_len=options.max_len,
        segments=len(plan.slots),
        packs=plan.packs,
        pool_packs=plan.pool_packs,
        lower_bound=max(proved, least_rows(items, of_items, options)),
        groups=group_totals(groups, patterns.packs),
    )
    return plan, totals


def _dealt(
    items: Segments,
    groups: NDArray[np.int32],
    patterns: Patterns,
    options: PackOptions,
    *,
    rows_per_shard: int,
) -> Plan:
    """Deal items, segments or pairs, to rows so that groups stay together or apart."""
    if options.group_mode == "together":
        return deal_together(
            items,
            groups,
            partial(solve_histogram, options),
            max_segments=options.max_items,
            rows_per_shard=rows_per_shard,
            seed=options.seed,
        )
    plan = deal(items, patterns, rows_per_shard=rows_per_shard, seed=options.seed)
    return keep_apart(
        plan,
        items,
        groups,
        least=apart_bound(items, groups),
        max_segments=options.max_items,
        rows_per_shard=rows_per_shard,
        seed=options.seed,
    )


def group_totals(groups: NDArray[np.int32], packs_ungrouped: int) -> GroupTotals:
    """Count groups; `packs_ungrouped` is the number of rows that the documents take if groups are ignored."""
    return GroupTotals(
        groups=int(np.count_nonzero(np.bincount(groups[groups != NO_GROUP]))),
        documents_without=int(np.count_nonzero(groups == NO_GROUP)),
        packs_ungrouped=packs_ungrouped,
    )
