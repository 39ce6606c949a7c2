"""Segments to a plan, and the account of every document and token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.algorithms.bounds import cut_bound, lower_bound
from packer.algorithms.sequential import OrderedRows
from packer.errors import SourceError
from packer.options import PackOptions
from packer.pipeline.turns import split_at_turns
from packer.pipeline.untrained import without_untrained
from packer.plan import LONG_POLICIES, Plan, Segments, deal, plan_in_order
from packer.progress import Progress, silent
from packer.sources import TokenTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Documents as the long-document policy cuts them, and as an order algorithm does, where one was asked for."""

    whole: Segments
    """What the policy makes of the documents."""

    policy: Segments
    """What of that is to be packed; an order algorithm may cut it elsewhere."""

    segments: Segments
    """What is placed in rows."""

    rows: OrderedRows | None
    """The rows of an order algorithm; None where a histogram algorithm packs."""

    keeps_whole: bool
    """Whether documents are cut only where max_len demands it."""

    def lower_bound(self, max_segments: int | None, proven: int = 0) -> int:
        """Packs that no packing goes below: the best bound that is cheap, or `proven`, what a solver has shown."""
        if not self.keeps_whole:
            return cut_bound(self.policy.histogram, max_segments)
        return max(proven, lower_bound(self.policy.histogram, max_segments))


def cut_by_policy(
    lengths: NDArray[np.int32], options: PackOptions, *, table: TokenTable | None = None, threads: int = 1
) -> tuple[Segments, Segments]:
    """Cut documents where the long-document policy does; what that gives, and what of it is to be packed.

    Args:
        lengths: (documents,) tokens of each.
        options: say how.
        table: the documents, by which those of which nothing is trained are found; None where it is not asked.
        threads: to look through the lengths with.

    Raises:
        SourceError: the policy is "error" and a document is longer than max_len; or nothing is left to pack.
    """
    policy = options.cut(lengths, threads=threads)
    if table is not None:
        policy = split_at_turns(policy, table, options)
    segments = policy if table is None else without_untrained(policy, table, options)
    if not segments.histogram.any() and policy.histogram.any():
        raise SourceError(f"nothing to pack: of {segments.documents:,} documents nothing is trained; check the labels")
    if not segments.histogram.any():
        raise SourceError(
            f"nothing to pack: of {segments.documents:,} documents, {segments.empty_documents:,} are empty and "
            f"{segments.long_documents:,} longer than max_len {segments.max_len:,} (--long {segments.long}); "
            "check the source, --max-len and --long"
        )
    return policy, segments


def cut_lengths(
    lengths: NDArray[np.int32], options: PackOptions, *, table: TokenTable | None = None, threads: int = 1
) -> Cut:
    """Cut documents where the long-document policy does, and where an order algorithm does.

    Arguments as of `cut_by_policy`.

    Raises:
        SourceError: as `cut_by_policy`.
    """
    whole, policy = cut_by_policy(lengths, options, table=table, threads=threads)
    algorithm = get_algorithm(options.algorithm)
    if not isinstance(algorithm, OrderAlgorithm):
        return Cut(whole=whole, policy=policy, segments=policy, rows=None, keeps_whole=True)
    if algorithm.keeps_whole:
        rows = algorithm.arrange(policy.extents_in_order(), options.max_len, options.max_segments)
        return Cut(whole=whole, policy=policy, segments=policy, rows=rows, keeps_whole=True)
    rows = algorithm.arrange(policy.kept_lengths(0, policy.documents), options.max_len, options.max_segments)
    segments = policy.cut_at(rows.cut_documents, rows.cut_starts)
    return Cut(whole=whole, policy=policy, segments=segments, rows=rows, keeps_whole=False)


def make_plan(
    cut: Cut, options: PackOptions, *, threads: int = 1, progress: Progress = silent
) -> tuple[Plan, dict[str, Any]]:
    """Return the plan, and the totals of the manifest: every document and token accounted for.

    Args:
        cut: what is to be placed.
        options: what shapes the bytes.
        threads: to plan with; the plan is the same for any number.
        progress: told of "plan" in segments.
    """
    rows_per_shard = max(1, options.shard_size // options.row_format.row_bytes)
    if cut.rows is not None:
        plan = plan_in_order(cut.segments, cut.rows, rows_per_shard=rows_per_shard)
        return plan, _totals(cut, plan, cut.lower_bound(options.max_segments), options)
    patterns = options.solve(cut.policy.histogram)
    plan = deal(
        cut.segments,
        patterns,
        rows_per_shard=rows_per_shard,
        seed=options.seed,
        threads=threads,
        progress=progress,
    )
    bound = cut.lower_bound(options.max_segments, patterns.lower_bound)
    return plan, _totals(cut, plan, bound, options)


def _totals(cut: Cut, plan: Plan, bound: int, options: PackOptions) -> dict[str, Any]:
    segments = cut.segments
    packs = len(plan.row_starts) - 1
    tokens = int(segments.lengths.sum(dtype=np.int64))
    is_first = np.diff(segments.head_documents, prepend=-1) > 0
    long = {policy: segments.long_documents if segments.long == policy else 0 for policy in LONG_POLICIES}
    once = segments.tokens - segments.repeated
    documents_dropped = {"empty": segments.empty_documents, "too_long": long["drop"]}
    tokens_dropped = {"too_long": segments.long_tokens if segments.long == "drop" else 0}
    if options.untrained == "drop":
        documents_dropped["untrained"] = cut.whole.documents_placed - segments.documents_placed
        tokens_dropped["untrained"] = cut.whole.tokens - cut.whole.repeated - once
    return {
        "documents": segments.documents,
        "documents_split": int(np.count_nonzero(is_first)),
        "documents_truncated": long["truncate"],
        "documents_dropped": documents_dropped,
        "tokens": tokens,
        "tokens_packed": segments.tokens,
        "tokens_repeated": segments.repeated,
        "tokens_truncated": tokens - once - sum(tokens_dropped.values()),
        "tokens_dropped": tokens_dropped,
        "segments": len(plan.slots),
        "packs": packs,
        "pool_packs": plan.pool_packs,
        "lower_bound": bound,
        "efficiency": segments.tokens / (packs * options.max_len),
    }
