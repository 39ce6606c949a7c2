"""Segments to a plan, and the account of every document and token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.algorithms.bounds import cut_bound, lower_bound
from packer.algorithms.patterns import Patterns
from packer.algorithms.sequential import OrderedRows
from packer.errors import SourceError
from packer.options import PackOptions
from packer.pipeline.turns import split_at_turns
from packer.pipeline.untrained import without_untrained
from packer.plan import (
    NO_GROUP,
    Account,
    Plan,
    Segments,
    apart_bound,
    deal,
    deal_together,
    items_of,
    keep_apart,
    plan_in_order,
    together_bound,
    with_both_of_each,
)
from packer.progress import Progress, silent
from packer.sources import TokenTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Documents as the long-document policy cuts them, and as an order algorithm does, where one was asked for."""

    policy: Segments
    """What the policy makes of the documents, untrained segments removed; an order algorithm may cut it elsewhere."""

    segments: Segments
    """What is placed in rows."""

    items: Segments
    """What is dealt: the segments, or pairs of them as one."""

    rows: OrderedRows | None
    """The rows of an order algorithm; None where a histogram algorithm packs."""

    keeps_whole: bool
    """Whether documents are cut only where max_len demands it."""

    def lower_bound(self, max_items: int | None, proven: int = 0) -> int:
        """Packs that no packing goes below: the best bound that is cheap, or `proven`, what a solver has shown."""
        if not self.keeps_whole:
            return cut_bound(self.policy.histogram, max_items)
        return max(proven, lower_bound(self.items.histogram, max_items))


def cut_by_policy(
    lengths: NDArray[np.int32],
    options: PackOptions,
    *,
    table: TokenTable | None = None,
    describe: Callable[[int], str] = "document {:,}".format,
    threads: int = 1,
) -> Segments:
    """Cut documents where the long-document policy does, and return the segments that are to be packed.

    Args:
        lengths: (documents,) tokens of each.
        options: say how.
        table: the documents, by which those of which nothing is trained are found; None where it is not asked.
        describe: names a document for a message.
        threads: to look through the lengths with.

    Raises:
        SourceError: the policy is "error" and a document is longer than max_len; or nothing is left to pack.
    """
    policy = options.cut(lengths, threads=threads)
    if table is not None:
        policy = split_at_turns(policy, table, options, describe)
    segments = policy if table is None else without_untrained(policy, table, options, describe)
    if not segments.histogram.any():
        raise nothing_to_pack(account_of(segments, options), options)
    return segments


def cut_lengths(
    lengths: NDArray[np.int32],
    options: PackOptions,
    *,
    table: TokenTable | None = None,
    describe: Callable[[int], str] = "document {:,}".format,
    threads: int = 1,
) -> Cut:
    """Cut documents where the long-document policy does, and where an order algorithm does.

    Arguments as of `cut_by_policy`.

    Raises:
        SourceError: as `cut_by_policy`.
    """
    policy = cut_by_policy(lengths, options, table=table, describe=describe, threads=threads)
    items = items_of(policy) if options.pairs else policy
    algorithm = get_algorithm(options.algorithm)
    if not isinstance(algorithm, OrderAlgorithm):
        return Cut(policy=policy, segments=policy, items=items, rows=None, keeps_whole=True)
    if algorithm.keeps_whole:
        rows = algorithm.arrange(items.extents_in_order(), options.max_len, options.max_items)
        return Cut(policy=policy, segments=policy, items=items, rows=rows, keeps_whole=True)
    rows = algorithm.arrange(policy.kept_lengths(0, policy.documents), options.max_len, options.max_segments)
    segments = policy.cut_at(rows.cut_documents, rows.cut_starts)
    return Cut(policy=policy, segments=segments, items=segments, rows=rows, keeps_whole=False)


def make_plan(
    cut: Cut,
    options: PackOptions,
    *,
    row_bytes: int,
    groups: NDArray[np.int32] | None = None,
    progress: Progress = silent,
) -> tuple[Plan, dict[str, Any]]:
    """Return the plan, and the totals of the manifest: every document and token accounted for.

    Args:
        cut: what is to be placed.
        options: what shapes the bytes.
        row_bytes: bytes of a row, so that shards are no larger than they should be.
        groups: (documents,) the group of each, NO_GROUP for none, where `options.group_by` asks for it.
        progress: told of "plan" in segments.
    """
    rows_per_shard = max(1, options.shard_size // row_bytes)
    of_items = groups[::2] if groups is not None and options.pairs else groups
    packs = None
    if cut.rows is not None:
        plan = plan_in_order(cut.items, cut.rows, rows_per_shard=rows_per_shard)
        bound = cut.lower_bound(options.max_items)
    else:
        patterns = options.solve(cut.items.histogram)
        packs = patterns.packs
        bound = cut.lower_bound(options.max_items, patterns.lower_bound)
        plan, bound = _dealt(cut.items, patterns, bound, options, rows_per_shard, of_items, progress)
    if options.pairs:
        plan = with_both_of_each(plan, cut.segments)
    totals = _totals(cut.segments, plan, bound, options)
    return plan, totals if groups is None else {**totals, "groups": group_facts(groups, packs)}


def _dealt(
    items: Segments,
    patterns: Patterns,
    bound: int,
    options: PackOptions,
    rows_per_shard: int,
    groups: NDArray[np.int32] | None,
    progress: Progress,
) -> tuple[Plan, int]:
    """Deal items to rows as groups ask for it; return the plan and packs that it cannot go below."""
    if groups is not None and options.group_mode == "together":
        together = deal_together(
            items,
            groups,
            options.solve,
            max_segments=options.max_items,
            rows_per_shard=rows_per_shard,
            seed=options.seed,
        )
        return together, together_bound(items, groups, options.max_items)
    plan = deal(items, patterns, rows_per_shard=rows_per_shard, seed=options.seed)
    if groups is None:
        return plan, bound
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
    return apart, max(bound, least)


def group_facts(groups: NDArray[np.int32], packs: int | None) -> dict[str, Any]:
    """What the manifest says of groups; `packs` is what they would be without."""
    return {
        "groups": int(np.count_nonzero(np.bincount(groups[groups != NO_GROUP]))),
        "documents_without": int(np.count_nonzero(groups == NO_GROUP)),
        "packs_ungrouped": packs,
    }


def account_of(segments: Segments, options: PackOptions) -> Account:
    """Count what these options made of the documents of these segments."""
    return Account.of(segments, pairs=options.pairs, drops_untrained=options.untrained == "drop")


def nothing_to_pack(account: Account, options: PackOptions) -> SourceError:
    """Say why no segment is left."""
    dropped = account.documents_dropped
    if dropped.get("untrained"):
        return SourceError(f"nothing to pack: of {account.documents:,} documents nothing is trained; check the labels")
    return SourceError(
        f"nothing to pack: of {account.documents:,} documents, {dropped['empty']:,} are empty and "
        f"{dropped['too_long']:,} longer than max_len {options.max_len:,} (--long {options.long}); "
        "check the source, --max-len and --long"
    )


def _totals(segments: Segments, plan: Plan, bound: int, options: PackOptions) -> dict[str, Any]:
    packs = len(plan.row_starts) - 1
    return {
        **asdict(account_of(segments, options)),
        "segments": len(plan.slots),
        "packs": packs,
        "pool_packs": plan.pool_packs,
        "lower_bound": bound,
        "efficiency": segments.tokens / (packs * options.max_len),
    }
