"""Rows in the order of the source: what an order algorithm gives, as a plan."""

from __future__ import annotations

import numpy as np

from packer.algorithms.sequential import OrderedRows
from packer.plan.deal import Plan
from packer.plan.segments import Segments


def plan_in_order(segments: Segments, rows: OrderedRows, *, rows_per_shard: int) -> Plan:
    """Turn rows into a plan that keeps their order and that of the segments in each; nothing is drawn.

    Args:
        segments: the documents, cut where the rows cut them.
        rows: what an order algorithm gave.
        rows_per_shard: the most rows of a shard.
    """
    packs = len(rows.row_starts) - 1
    return Plan(
        shard_rows=np.array([*range(0, packs, rows_per_shard), packs], np.int64),
        row_starts=rows.row_starts,
        slots=segments.numbers_in_order(),
        pool_packs=0,
    )
