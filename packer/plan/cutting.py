"""Apply the long-document policy: cut documents into segments of at most max_len tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.options.choices import LongPolicy, TruncateSide
from packer.plan.extents import (
    BLOCK,
    DROP,
    SPLIT,
    TRUNCATE,
    Cutting,
    SplitDocuments,
    choose_cuts,
    fill_pieces,
    survey,
)
from packer.plan.segments import Segments
from packer.plan.threads import in_threads

_KERNEL_POLICY = {"split": SPLIT, "truncate": TRUNCATE, "drop": DROP, "error": DROP}


def cut_documents(
    lengths: NDArray[np.int32],
    max_len: int,
    long: LongPolicy,
    *,
    overlap: int = 0,
    truncate_side: TruncateSide = "right",
    align: int = 1,
    threads: int = 1,
    first_document: int = 0,
) -> Segments:
    """Apply the long-document policy.

    `split` cuts a document every max_len tokens; with `overlap`, every piece except the first repeats that many tokens
    of the piece before it. `truncate` keeps max_len tokens, the last ones if `truncate_side`, the side that is cut off,
    is left. `drop` leaves long documents out. Every policy leaves out empty documents.

    Args:
        lengths: (documents,) tokens of each document.
        max_len: length of a row.
        long: long-document policy.
        overlap: tokens that a piece repeats, 0 to max_len - 1.
        truncate_side: left or right.
        align: extents are rounded up to a multiple of this divisor of max_len.
        threads: number of threads that read the lengths.
        first_document: number of the first of these documents in the source, for the error message.

    Raises:
        SourceError: `long` is "error" and a document is longer than max_len.
    """
    assert 0 <= overlap < max_len
    assert max_len % align == 0
    blocks = -(-len(lengths) // BLOCK)
    block_heads = np.zeros(blocks, np.int64)
    bounds = [blocks * task // threads for task in range(threads + 1)]
    cutting = Cutting(max_len=max_len, policy=_KERNEL_POLICY[long], stride=max_len - overlap)

    def surveyed(task: int) -> tuple[NDArray[np.int64], tuple[int, int, int]]:
        counted = np.zeros(max_len + 1, np.int64)
        first, last = bounds[task], bounds[task + 1]
        facts = survey(lengths, first, last, cutting, counted, block_heads)
        return counted, facts

    parts = in_threads(surveyed, range(threads), threads)
    counts = np.sum([counted for counted, _ in parts], axis=0)
    long_documents, long_tokens, empty_documents = (
        int(sum(facts)) for facts in zip(*(part[1] for part in parts), strict=True)
    )
    if long == "error" and long_documents:
        first = int(np.argmax(lengths > max_len))
        raise SourceError(
            f"document {first_document + first} has {lengths[first]:,} tokens and max_len is {max_len:,} "
            f"({long_documents:,} documents are longer); choose --long split, truncate or drop"
        )
    heads = int(block_heads.sum())
    tails, cut, tail_starts = lengths, np.empty(0, np.int64), np.empty(0, np.int32)
    head_documents, head_starts = np.empty(heads, np.int64), np.empty(heads, np.int32)
    if long_documents and long == "split":
        tails = lengths.copy()
        cut, tail_starts = np.empty(long_documents, np.int64), np.empty(long_documents, np.int32)
        out = SplitDocuments(tails, cut, tail_starts, head_documents, head_starts)
        fill_pieces(lengths, cutting, out)
    elif long_documents and long == "truncate":
        tails = np.minimum(lengths, max_len)
        if truncate_side == "left":
            cut = np.flatnonzero(lengths > max_len)
            tail_starts = lengths[cut] - np.int32(max_len)
    elif long_documents:
        tails = np.where(lengths > max_len, np.int32(0), lengths)
    counts[0] = 0
    counts[max_len] += heads
    histogram = counts
    if align > 1:
        histogram = np.zeros(max_len + 1, np.int64)
        np.add.at(histogram, -(-np.arange(max_len + 1) // align) * align, counts)
    return Segments(
        lengths=lengths,
        max_len=max_len,
        long=long,
        overlap=overlap if long == "split" else 0,
        align=align,
        tails=tails,
        cut_documents=cut,
        tail_starts=tail_starts,
        head_documents=head_documents,
        head_starts=head_starts,
        head_lengths=np.full(heads, max_len, np.int32),
        histogram=histogram,
        tokens=int(counts @ np.arange(max_len + 1)),
        repeated=overlap * heads,
        long_documents=long_documents,
        long_tokens=long_tokens,
        empty_documents=empty_documents,
        truncated_tokens=long_tokens - max_len * long_documents if long == "truncate" else 0,
    )


def cuts_between(
    lengths: NDArray[np.int32], offsets: NDArray[np.int64], starts: NDArray[np.int32], max_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Cut documents at allowed positions only, each piece as long as max_len allows.

    Example: length 9, allowed positions [2, 3, 6], max_len 4 -> cuts at 3 and 6.

    Args:
        lengths: (documents,) tokens of each document.
        offsets: (documents + 1,) document i may be cut at starts[offsets[i]:offsets[i + 1]].
        starts: (positions,) tokens before which a document may be cut, ascending within a document, 0 to its length.
        max_len: largest number of tokens in a piece.

    Returns:
        The number of cuts of each document, int64; the positions of the cuts, int32; and the first document whose
        allowed positions do not ascend or are too far apart, or -1.
    """
    counts = np.zeros(len(lengths), np.int64)
    cuts = np.empty(len(starts), np.int32)
    used, wrong = choose_cuts(lengths, offsets, starts, max_len, counts, cuts)
    return counts, cuts[:used].copy(), int(wrong)
