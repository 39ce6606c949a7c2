"""The plan of rows with groups of documents: kept together, or apart. It is held as a whole."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.patterns import Patterns
from packer.facts import GroupTotals, PlanTotals
from packer.options import PackOptions
from packer.pipeline.apply_options import solve_histogram
from packer.pipeline.planning import account_of
from packer.plan import (
    NO_GROUP,
    Plan,
    Segments,
    apart_bound,
    deal,
    deal_together,
    items_of,
    keep_apart,
    together_bound,
    with_both_of_each,
)


def plan_groups(
    segments: Segments, groups: NDArray[np.int32], options: PackOptions, *, rows_per_shard: int
) -> tuple[Plan, PlanTotals]:
    """Plan the rows of all documents, of one group each, or without two of a group.

    Args:
        segments: what the long-document policy makes of the documents.
        groups: (documents,) the group of each, NO_GROUP for none.
        options: what shapes the rows.
        rows_per_shard: the most rows of a shard.

    Returns:
        The plan, and the totals of the manifest: every document and token accounted for.
    """
    items = items_of(segments) if options.pairs else segments
    of_items = groups[::2] if options.pairs else groups
    patterns = solve_histogram(options, items.histogram)
    plan, bound = _dealt(items, of_items, patterns, options, rows_per_shard=rows_per_shard)
    if options.pairs:
        plan = with_both_of_each(plan, segments)
    totals = PlanTotals.of(
        account_of(segments, options),
        max_len=options.max_len,
        segments=len(plan.slots),
        packs=plan.packs,
        pool_packs=plan.pool_packs,
        lower_bound=bound,
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
) -> tuple[Plan, int]:
    """Deal items to rows as groups ask for it; return the plan and packs that it cannot go below."""
    if options.group_mode == "together":
        together = deal_together(
            items,
            groups,
            partial(solve_histogram, options),
            max_segments=options.max_items,
            rows_per_shard=rows_per_shard,
            seed=options.seed,
        )
        return together, together_bound(items, groups, options.max_items)
    plan = deal(items, patterns, rows_per_shard=rows_per_shard, seed=options.seed)
    least = apart_bound(items, groups)
    apart = keep_apart(
        plan,
        items,
        groups,
        least=least,
        max_segments=options.max_items,
        rows_per_shard=rows_per_shard,
        seed=options.seed,
    )
    return apart, max(patterns.lower_bound, lower_bound(items.histogram, options.max_items), least)


def group_totals(groups: NDArray[np.int32], packs_ungrouped: int) -> GroupTotals:
    """Count groups; `packs_ungrouped` is the number of rows without groups."""
    return GroupTotals(
        groups=int(np.count_nonzero(np.bincount(groups[groups != NO_GROUP]))),
        documents_without=int(np.count_nonzero(groups == NO_GROUP)),
        packs_ungrouped=packs_ungrouped,
    )
