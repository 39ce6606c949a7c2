"""Plan rows in which groups of documents are kept together or apart; the whole plan is held in memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Patterns
from packer.facts import GroupTotals, PlanTotals
from packer.options import PackOptions
from packer.pipeline.apply_options import solve_histogram
from packer.pipeline.segments.packable_segments import account_of, items_and_groups, least_rows
from packer.plan.apart import keep_apart
from packer.plan.groups import NO_GROUP, apart_bound, deal_together
from packer.plan.items import with_both_of_each
from packer.plan.segments import Segments
from packer.plan.whole_plan import Plan, deal

FEW_SEGMENTS = 1 << 17
"""Most segments for which `auto` keeps groups apart in the rows of several algorithms, to save single rows."""


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
    least, seed = apart_bound(items, groups), options.seed

    def apart(patterns: Patterns) -> Plan:
        plan = deal(items, patterns, rows_per_shard=rows_per_shard, seed=seed)
        return keep_apart(
            plan,
            items,
            groups,
            least=least,
            max_segments=options.max_items,
            rows_per_shard=rows_per_shard,
            seed=seed,
        )

    plan = apart(patterns)
    if options.algorithm == "auto" and len(plan.slots) <= FEW_SEGMENTS:
        # Which patterns can be kept apart in the fewest rows is a matter of chance.
        for name in ("ffd", "bfd"):
            if plan.packs > max(least, patterns.lower_bound):
                other = apart(solve_histogram(replace(options, algorithm=name), items.histogram))
                plan = min(plan, other, key=attrgetter("packs"))
    return plan


def group_totals(groups: NDArray[np.int32], packs_ungrouped: int) -> GroupTotals:
    """Count groups; `packs_ungrouped` is the number of rows that the documents take if groups are ignored."""
    return GroupTotals(
        groups=int(np.count_nonzero(np.bincount(groups[groups != NO_GROUP]))),
        documents_without=int(np.count_nonzero(groups == NO_GROUP)),
        packs_ungrouped=packs_ungrouped,
    )
