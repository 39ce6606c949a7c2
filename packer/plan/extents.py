"""Numba kernels of the long-document policy: what is placed of a document, and where it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit

BLOCK = 1 << 16
"""Documents looked at together."""

KEEP = {"split": 0, "truncate": 1, "drop": 2, "error": 2}
"""What is kept of a document longer than max_len: all of it, its first max_len tokens, nothing."""


@jit
def tail_extent(length: np.int32, max_len: int, keep: int) -> Any:
    """Tokens in the tail of a document: 9 tokens at max_len 4 -> 1 (split), 4 (truncate), 0 (drop)."""
    if length <= max_len:
        return length
    if keep == 0:
        return np.int32((length - 1) % max_len + 1)
    return np.int32(max_len if keep == 1 else 0)


@jit
def kept(length: np.int32, max_len: int, keep: int) -> Any:
    """Tokens that are placed of a document."""
    if length <= max_len or keep == 0:
        return length
    return np.int32(max_len if keep == 1 else 0)


@jit
def survey(
    lengths: NDArray[np.int32],
    first_block: int,
    last_block: int,
    max_len: int,
    keep: int,
    out_histogram: NDArray[np.int64],
    out_tokens: NDArray[np.int64],
    out_heads: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Count what a policy makes of the documents of blocks first_block..last_block-1.

    Args:
        lengths: (documents,)
        first_block: the first block of BLOCK documents.
        last_block: where to end.
        max_len: tokens of a row.
        keep: one of `KEEP`.
        out_histogram: (max_len + 1,) tails of every extent are added, and empty documents at 0.
        out_tokens: (blocks,) tokens placed of each block are set.
        out_heads: (blocks,) heads that each block has are set.

    Returns:
        Long documents, the tokens in them, and empty documents.
    """
    empty = -out_histogram[0]
    long_documents = 0
    long_tokens = 0
    for block in range(first_block, last_block):
        tokens = 0
        heads = 0
        for document in range(block * BLOCK, min((block + 1) * BLOCK, len(lengths))):
            length = lengths[document]
            if length <= max_len:
                out_histogram[length] += 1
                tokens += length
                continue
            long_documents += 1
            long_tokens += length
            tail = tail_extent(length, max_len, keep)
            if tail > 0:
                out_histogram[tail] += 1
                tokens += kept(length, max_len, keep)
            if keep == 0:
                heads += (length - 1) // max_len
        out_tokens[block] = tokens
        out_heads[block] = heads
    empty += out_histogram[0]
    return long_documents, long_tokens, empty


@jit
def fill_heads(
    lengths: NDArray[np.int32],
    block_heads: NDArray[np.int64],
    max_len: int,
    out_documents: NDArray[np.int64],
    out_starts: NDArray[np.int32],
) -> None:
    """Write the document and start of every head, one every max_len tokens before the tail."""
    head = 0
    for block in range(len(block_heads)):
        if block_heads[block] == 0:
            continue
        for document in range(block * BLOCK, min((block + 1) * BLOCK, len(lengths))):
            start = 0
            while start + max_len < lengths[document]:
                out_documents[head] = document
                out_starts[head] = start
                start += max_len
                head += 1


@jit
def share_end(lengths: NDArray[np.int32], first: int, tokens: int, max_len: int, keep: int) -> int:
    """The document after the one with which `tokens` tokens from document `first` on are reached."""
    document = first
    while document < len(lengths):
        tokens -= kept(lengths[document], max_len, keep)
        document += 1
        if tokens <= 0:
            break
    return document
