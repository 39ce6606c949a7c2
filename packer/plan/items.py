"""Preference pairs: documents 2i and 2i + 1 are one item, whose extent is the sum of both extents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.options.choices import LongPolicy, TruncateSide
from packer.plan.cutting import cut_documents
from packer.plan.segments import Segments
from packer.plan.whole_plan import Plan


def cut_pairs(
    lengths: NDArray[np.int32],
    max_len: int,
    long: LongPolicy,
    *,
    truncate_side: TruncateSide = "right",
    align: int = 1,
    threads: int = 1,
    first_document: int = 0,
) -> Segments:
    """Apply the long-document policy to pairs; a pair is long if the extents of both sides together exceed max_len.

    `truncate` keeps up to half a row of each side, and more of the longer side if the shorter one leaves room; `drop`
    leaves both sides out. Every policy leaves out pairs with an empty side; the other side is counted as unpaired.

    Args:
        lengths: (2 * pairs,) tokens of each document; documents 2i and 2i + 1 are a pair.
        max_len: length of a row, at least 2 * align.
        long: long-document policy; pairs are never split, so that "split" is "error".
        truncate_side: left or right, the side that is cut off.
        align: extents are rounded up to a multiple of this divisor of max_len.
        threads: number of threads that read the lengths.
        first_document: number of the first of these documents in the source, for the error message.

    Raises:
        SourceError: `long` is "split" or "error", and a pair is longer than max_len.
    """
    assert len(lengths) % 2 == 0
    assert max_len >= 2 * align
    pairs = lengths.reshape(-1, 2)
    extents = -(-pairs.astype(np.int64) // align) * align
    places = extents.sum(axis=1)
    is_whole = np.minimum(pairs[:, 0], pairs[:, 1]) > 0
    is_long = is_whole & (places > max_len)
    if long in ("split", "error") and is_long.any():
        first = int(np.argmax(is_long))
        raise SourceError(
            f"pair {first_document // 2 + first} takes {places[first]:,} tokens and max_len is {max_len:,} "
            f"({np.count_nonzero(is_long):,} pairs are longer), and pairs are never split: "
            "choose --long truncate or drop"
        )
    tails = np.where(is_whole[:, None], pairs, np.int32(0))
    if long == "truncate":
        half = max_len // 2 // align * align
        others = extents[:, ::-1]
        room = np.where(others <= half, max_len - others, half)
        tails[is_long] = np.minimum(tails, room)[is_long]
    else:
        tails[is_long] = 0
    tails = tails.reshape(-1)
    is_cut = (tails < lengths) & (tails > 0)
    was_long = is_cut if long == "truncate" else np.repeat(is_long, 2)
    unpaired = (lengths > 0) & np.repeat(~is_whole, 2)
    cut = np.flatnonzero(is_cut) if truncate_side == "left" else np.empty(0, np.int64)
    # Start from empty documents; `counted` counts the segments set here.
    empty = cut_documents(np.zeros_like(lengths), max_len, "drop", align=align, threads=threads)
    return replace(
        empty,
        lengths=lengths,
        long=long,
        tails=tails,
        cut_documents=cut,
        tail_starts=lengths[cut] - tails[cut],
        long_documents=int(np.count_nonzero(was_long)),
        long_tokens=int(lengths[was_long].sum(dtype=np.int64)),
        empty_documents=int(np.count_nonzero(lengths == 0)),
        unpaired_documents=int(np.count_nonzero(unpaired)),
        unpaired_tokens=int(lengths[unpaired].sum(dtype=np.int64)),
        truncated_tokens=int((lengths - tails)[is_cut].sum(dtype=np.int64)),
    ).counted()


def items_of(segments: Segments) -> Segments:
    """Return pairs as one segment each, with the extent of both sides; these are dealt to rows."""
    places = segments.extents_of(segments.tails.astype(np.int64)).reshape(-1, 2).sum(axis=1)
    return cut_documents(places.astype(np.int32), segments.max_len, "error")


def with_both_of_each(plan: Plan, segments: Segments) -> Plan:
    """Convert a plan of pairs to one of documents: pair i becomes documents 2i and 2i + 1, side by side."""
    slots: NDArray[Any] = np.repeat(plan.slots.astype(np.uint32 if segments.count < 2**32 else np.int64), 2)
    slots *= 2
    slots[1::2] += 1
    return replace(plan, row_starts=plan.row_starts * 2, slots=slots)
