"""Apply the options of a pack to lengths, histograms and columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms import Algorithm, get_algorithm
from packer.algorithms.patterns import Patterns
from packer.arrow import is_numeric
from packer.errors import SourceError
from packer.options import PackOptions
from packer.plan.cutting import cut_documents, cut_pairs
from packer.plan.segments import Segments
from packer.shards.row_format import RowFormat


def row_format_of(options: PackOptions, extra: Mapping[str, pa.ChunkedArray]) -> RowFormat:
    """Return the format of the rows.

    Args:
        options: options of the pack.
        extra: columns of the source, among them those to keep.

    Raises:
        SourceError: a kept column of lists does not hold numbers of whole bytes.
    """
    kept_tokens = {name: extra[name].type.value_type for name in options.keep_tokens}
    for name, value_type in kept_tokens.items():
        if pa.types.is_null(value_type):  # every list is empty
            kept_tokens[name] = pa.int8()
        elif not is_numeric(value_type):
            raise SourceError(f"column '{name}' holds lists of {value_type}: save it as int8")
    kept = {name: extra[name].type for name in options.kept}
    return RowFormat.of(options).keeping(kept, kept_tokens)


def cut_lengths_of(options: PackOptions, lengths: NDArray[np.int32], *, first_document: int = 0) -> Segments:
    """Cut documents, or pairs of them, into segments; see `cut_documents` and `cut_pairs`.

    Args:
        options: options of the pack.
        lengths: (documents,) tokens of each document.
        first_document: number of the first of these documents in the source, for messages.

    Raises:
        SourceError: `long` is "error", or "split" with limits or pairs, and a document or pair is longer than max_len.
    """
    if options.limit and options.long in ("split", "error"):
        _refuse_long(options, lengths, first_document)
    if options.pairs:
        return cut_pairs(
            lengths,
            options.max_len,
            options.long,
            truncate_side=options.truncate_side,
            align=options.align,
            first_document=first_document,
        )
    return cut_documents(
        lengths,
        options.max_len,
        options.long,
        overlap=options.overlap,
        truncate_side=options.truncate_side,
        align=options.align,
        first_document=first_document,
    )


def _refuse_long(options: PackOptions, lengths: NDArray[np.int32], first_document: int) -> None:
    """Raise a SourceError if a document is longer than a row: what it takes of a limit cannot be split."""
    is_long = lengths > options.max_len
    if is_long.any():
        first = int(is_long.argmax())
        raise SourceError(
            f"document {first_document + first} has {lengths[first]:,} tokens and max_len is {options.max_len:,} "
            f"({is_long.sum():,} documents are longer); with --limit none is split: "
            "choose --long drop or truncate"
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
