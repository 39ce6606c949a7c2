"""Numba kernels of the long-document policy: count, cut and number the segments of documents."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_helper, jit_if_large
from packer.algorithms.joined_ranges import joined_ranges

BLOCK = 1 << 16
"""Documents that are processed together."""

SPLIT, TRUNCATE, DROP = range(3)
"""Policies for documents longer than max_len."""


class Cutting(NamedTuple):
    """Treatment of documents longer than a row."""

    max_len: int  # tokens of a row, and of a head
    policy: int  # SPLIT, TRUNCATE or DROP
    stride: int  # tokens from the start of a head to that of the next piece


class SplitDocuments(NamedTuple):
    """Pieces of split documents, as in the fields of `Segments`."""

    tails: NDArray[np.int32]  # (documents,) tokens in the tail of each document
    cut_documents: NDArray[np.int64]  # (documents cut,) documents whose tail does not start at 0
    tail_starts: NDArray[np.int32]  # (documents cut,) first tokens of these tails
    head_documents: NDArray[np.int64]  # (heads,) document of each head
    head_starts: NDArray[np.int32]  # (heads,) first token of each head


@jit_helper
def extent_of(tokens: int, align: int) -> Any:
    """Return the extent of a segment: its tokens, rounded up to a multiple of `align`."""
    if align == 1:  # a division takes as long as the rest of a pass over lengths
        return np.int64(tokens)
    return (np.int64(tokens) + align - 1) // align * align


@jit_helper
def heads_of_length(length: int, max_len: int, stride: int) -> Any:
    """Return the number of heads of a split document: of 9 tokens with max_len 4, 2 at stride 4 and 5 at stride 1."""
    return (np.int64(length) - max_len + stride - 1) // stride if length > max_len else np.int64(0)


@jit_if_large
def survey(
    lengths: NDArray[np.int32],
    first_block: int,
    last_block: int,
    cutting: Cutting,
    out_histogram: NDArray[np.int64],
    out_heads: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Count the segments of the documents in blocks first_block to last_block - 1.

    Args:
        lengths: (documents,) tokens of each document.
        first_block: first block of BLOCK documents.
        last_block: block after the last.
        cutting: treatment of documents longer than a row.
        out_histogram: (max_len + 1,) tails of every length are added, and empty documents at 0.
        out_heads: (blocks,) the number of heads in each of these blocks is written.

    Returns:
        The numbers of long documents, of tokens in them, and of empty documents.
    """
    max_len, policy, stride = cutting
    empty = -out_histogram[0]
    long_documents = 0
    long_tokens = 0
    for block in range(first_block, last_block):
        heads = np.int64(0)
        for document in range(block * BLOCK, min((block + 1) * BLOCK, len(lengths))):
            length = lengths[document]
            if length <= max_len:
                out_histogram[length] += 1
                continue
            long_documents += 1
            long_tokens += length
            if policy == SPLIT:
                pieces = heads_of_length(length, max_len, stride)
                out_histogram[length - pieces * stride] += 1
                heads += pieces
            elif policy == TRUNCATE:
                out_histogram[max_len] += 1
        out_heads[block] = heads
    empty += out_histogram[0]
    return long_documents, long_tokens, empty


def fill_pieces(lengths: NDArray[np.int32], cutting: Cutting, out: SplitDocuments) -> None:
    """Write the pieces of split documents: a head every `stride` tokens, then the tail.

    Args:
        lengths: (documents,) tokens of each document.
        cutting: how documents are split.
        out: pieces; `tails` equals `lengths` at first, and is changed for documents that are cut.
    """
    max_len, _, stride = cutting
    tails, cut_documents, tail_starts, head_documents, head_starts = out
    cut_documents[:] = np.flatnonzero(lengths > max_len)
    heads = (lengths[cut_documents].astype(np.int64) - max_len + stride - 1) // stride
    tail_starts[:] = heads * stride
    tails[cut_documents] -= tail_starts
    head_documents[:] = np.repeat(cut_documents, heads)
    head_starts[:] = joined_ranges(np.zeros_like(heads), heads) * stride


@jit_if_large
def piece_extents(
    tails: NDArray[np.int32],
    head_documents: NDArray[np.int64],
    head_lengths: NDArray[np.int32],
    align: int,
    out: NDArray[np.int32],
) -> None:
    """Write the extent of every piece in source order: the heads of a document, then its tail, 0 for an empty tail."""
    piece = 0
    head = 0
    for document in range(len(tails)):
        while head < len(head_documents) and head_documents[head] == document:
            out[piece] = extent_of(head_lengths[head], align)
            head += 1
            piece += 1
        out[piece] = extent_of(tails[document], align)
        piece += 1


@jit_if_large
def number_pieces(tails: NDArray[np.int32], head_documents: NDArray[np.int64], out: NDArray[np.uint32]) -> None:
    """Write the numbers of all segments in source order: the heads of a document, then its tail."""
    piece = 0
    head = 0
    for document in range(len(tails)):
        while head < len(head_documents) and head_documents[head] == document:
            out[piece] = len(tails) + head
            head += 1
            piece += 1
        if tails[document] > 0:
            out[piece] = document
            piece += 1


@jit_if_large
def choose_cuts(
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int64],
    starts: NDArray[np.int32],
    max_len: int,
    out_counts: NDArray[np.int64],
    out_cuts: NDArray[np.int32],
) -> tuple[int, int]:
    """Kernel of `cutting.cuts_between`; return the number of cuts and the first document that cannot be cut, or -1."""
    used = 0
    for document in range(len(lengths)):
        begin = np.int64(0)
        last = np.int64(0)  # last position that fits
        before = np.int64(0)
        for i in range(offsets[document], offsets[document + 1] + 1):
            place = np.int64(starts[i]) if i < offsets[document + 1] else np.int64(lengths[document])
            if place < before or place > lengths[document]:
                return used, document
            before = place
            if place - begin > max_len:
                if last == begin or place - last > max_len:
                    return used, document
                out_cuts[used] = last
                out_counts[document] += 1
                used += 1
                begin = last
            last = place
    return used, -1
