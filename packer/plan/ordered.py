"""Rows in the order of the source: what an order algorithm gives, as a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.algorithms.sequential import OrderedRows
from packer.plan.deal import Plan
from packer.plan.extents import kept
from packer.plan.segments import Segments


def plan_in_order(segments: Segments, rows: OrderedRows, *, rows_per_shard: int) -> Plan:
    """Turn rows into a plan that keeps their order and that of the segments in each; nothing is drawn.

    Args:
        segments: the documents, cut where the rows cut them.
        rows: what an order algorithm gave.
        rows_per_shard: the most rows of a shard.
    """
    packs = len(rows.row_starts) - 1
    slots = np.empty(int(rows.row_starts[-1]), np.uint32 if segments.count < 2**32 else np.int64)
    _number_pieces(segments.lengths, segments.max_len, segments.keep, segments.head_documents, slots)
    return Plan(
        shard_rows=np.array([*range(0, packs, rows_per_shard), packs], np.int64),
        row_starts=rows.row_starts,
        slots=slots,
        pool_packs=0,
    )


@jit
def _number_pieces(
    lengths: NDArray[np.int32],
    max_len: int,
    keep: int,
    head_documents: NDArray[np.int64],
    out_slots: NDArray[np.uint32],
) -> None:
    """Write the segment numbers of all pieces in source order: the heads of a document, then its tail."""
    piece = 0
    head = 0
    for document in range(len(lengths)):
        while head < len(head_documents) and head_documents[head] == document:
            out_slots[piece] = len(lengths) + head
            head += 1
            piece += 1
        if kept(lengths[document], max_len, keep) > 0:
            out_slots[piece] = document
            piece += 1
