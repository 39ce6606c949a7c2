"""Segments to a plan, and the account of every document and token."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.algorithms.bounds import lower_bound
from packer.errors import SourceError
from packer.options import PackOptions
from packer.plan import LONG_POLICIES, Plan, Segments, deal
from packer.progress import Progress
from packer.shards.columns import row_bytes


def segment_histogram(segments: Segments) -> NDArray[np.int64]:
    """Count the segments of every extent: int64, shape (max_len + 1,).

    Raises:
        SourceError: there is none.
    """
    histogram = segments.histogram()
    if not histogram.any():
        raise SourceError(
            f"nothing to pack: of {segments.documents:,} documents, {segments.empty_documents:,} are empty and "
            f"{segments.long_documents:,} longer than max_len {segments.max_len:,} (--long {segments.long}); "
            "check the source, --max-len and --long"
        )
    return histogram


def make_plan(segments: Segments, options: PackOptions, progress: Progress) -> tuple[Plan, dict[str, Any]]:
    """Return the plan, and the totals of the manifest: every document and token accounted for.

    Raises:
        SourceError: no document is left to pack.
    """
    histogram = segment_histogram(segments)
    patterns = get_algorithm(options.algorithm).solve(histogram, options.max_segments)
    rows_per_shard = max(1, options.shard_size // row_bytes(options.max_len, options.token_columns))
    plan = deal(segments, patterns, rows_per_shard=rows_per_shard, seed=options.seed, progress=progress)
    return plan, _totals(segments, plan, histogram, options)


def _totals(segments: Segments, plan: Plan, histogram: NDArray[np.int64], options: PackOptions) -> dict[str, Any]:
    packs = len(plan.row_starts) - 1
    tokens = int(segments.lengths.sum(dtype=np.int64))
    packed = int(histogram @ np.arange(len(histogram)))
    long = {policy: segments.long_documents if segments.long == policy else 0 for policy in LONG_POLICIES}
    dropped = segments.long_tokens if segments.long == "drop" else 0
    return {
        "documents": segments.documents,
        "documents_split": long["split"],
        "documents_truncated": long["truncate"],
        "documents_dropped": {"empty": segments.empty_documents, "too_long": long["drop"]},
        "tokens": tokens,
        "tokens_packed": packed,
        "tokens_repeated": 0,
        "tokens_truncated": tokens - packed - dropped,
        "tokens_dropped": {"too_long": dropped},
        "segments": len(plan.slots),
        "packs": packs,
        "pool_packs": plan.pool_packs,
        "lower_bound": lower_bound(histogram, options.max_segments),
        "efficiency": packed / (packs * options.max_len),
    }
