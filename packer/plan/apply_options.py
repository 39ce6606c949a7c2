"""Apply the options of a pack to lengths and histograms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import Algorithm, get_algorithm
from packer.algorithms.patterns import Patterns
from packer.errors import SourceError
from packer.options import PackOptions
from packer.plan.cutting import cut_documents, cut_pairs
from packer.plan.segments import Segments, extents_of


def cut_lengths_of(options: PackOptions, lengths: NDArray[np.int32], *, first_document: int = 0) -> Segments:
    """Cut documents, or pairs of them, into segments; see `cut_documents` and `cut_pairs`.

    Args:
        options: options of the pack.
        lengths: (documents,) tokens of each document.
        first_document: number of the first of these documents in the source, for messages.

    Raises:
        SourceError: `long` is "error", or "split" with limits or pairs, and a document or pair is longer than max_len.
    """
    _refuse_long(options, lengths, first_document)
    if options.pairs:
        side = options.truncate_side
        return cut_pairs(lengths, options.max_len, options.long, truncate_side=side, align=options.align)
    return cut_documents(
        lengths,
        options.max_len,
        options.long,
        overlap=options.overlap,
        truncate_side=options.truncate_side,
        align=options.align,
    )


def _refuse_long(options: PackOptions, lengths: NDArray[np.int32], first_document: int) -> None:
    """Raise a SourceError if a document or a pair is longer than a row, and the options do not say how to cut it."""
    may_split = not (options.limit or options.pairs)
    if options.long not in ("split", "error") or (options.long == "split" and may_split):
        return
    taken: NDArray[np.int64] = lengths.astype(np.int64)
    if options.pairs:
        sides = extents_of(taken.reshape(-1, 2), options.align)
        taken = np.where(sides.min(axis=1) > 0, sides.sum(axis=1), 0)
    is_long = taken > options.max_len
    if not is_long.any():
        return
    first, count = int(is_long.argmax()), np.count_nonzero(is_long)
    if options.pairs:
        raise SourceError(
            f"pair {first_document // 2 + first} takes {taken[first]:,} tokens and max_len is {options.max_len:,} "
            f"({count:,} pairs are longer), and pairs are never split: choose --long truncate or drop"
        )
    remedy = (
        "; choose --long split, truncate or drop"
        if may_split
        else ("; with --limit none is split: choose --long drop or truncate")
    )
    raise SourceError(
        f"document {first_document + first} has {taken[first]:,} tokens and max_len is {options.max_len:,} "
        f"({count:,} documents are longer){remedy}"
    )


def kept_lengths_of(options: PackOptions, lengths: NDArray[np.int32], first_document: int = 0) -> NDArray[np.int32]:
    """Count the tokens of each document that reach the rows, each token once: int32, shape (documents,).

    Args:
        options: options of the pack.
        lengths: (documents,) tokens of each document.
        first_document: number of the first of these documents in the source, for messages.

    Raises:
        SourceError: `long` is "error" and a document is longer than max_len.
    """
    kept = lengths
    if options.long == "truncate":
        kept = np.minimum(lengths, np.int32(options.max_len))
    elif options.long == "drop":
        kept = np.where(lengths > options.max_len, np.int32(0), lengths)
    elif options.long == "error":
        cut_lengths_of(options, lengths, first_document=first_document)
    return kept


def solve_histogram(options: PackOptions, histogram: NDArray[np.int64]) -> Patterns:
    """Pack a histogram, int64 of shape (max_len + 1,), with the algorithm in the options."""
    algorithm = get_algorithm(options.algorithm)
    assert isinstance(algorithm, Algorithm)
    limits = {"gap": options.gap, "seconds": options.time_limit}
    set_limits = {name: limit for name, limit in limits.items() if limit is not None}
    return algorithm.solve(histogram, options.max_items, **set_limits)
