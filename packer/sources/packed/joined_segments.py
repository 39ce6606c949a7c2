"""Join the pieces of documents that were split over rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.options import PackOptions
from packer.sources.documents import DocumentError
from packer.sources.packed.segment_index import SortedSegments


class JoinedSegments(NamedTuple):
    """Documents put together from segments: each token is taken from the first segment that has it.

    Of the segments [0, 6) and [4, 10) of a document, the first gives 6 tokens and the second 4, from its third on. A
    repeated token has its label in the earlier segment, where it is trained.
    """

    lengths: NDArray[np.int64]  # (documents,) tokens of each document, 0 if it has no segment
    ends: NDArray[np.int64]  # (documents,) tokens of all documents up to its end
    firsts: NDArray[np.int64]  # (documents,) first segment of each document, -1 if it has none
    rows: NDArray[np.int64]  # (segments,) document of each segment, counted from 0
    new_places: NDArray[np.int64]  # (segments,) row * max_len + offset of the first token that is taken
    new_lengths: NDArray[np.int64]  # (segments,) tokens that are taken


def join_segments(segments: SortedSegments, documents: range, options: PackOptions) -> JoinedSegments:
    """Join segments to documents.

    Args:
        segments: all segments of the documents.
        documents: numbers of the documents.
        options: options of the packed dataset.

    Raises:
        DocumentError: tokens between two segments of a document, or before the first, are in no row; or more tokens
            are in two of them than pieces overlap.
    """
    of, starts, lengths = segments.documents, segments.starts, segments.lengths
    ends = starts + lengths
    is_first = np.diff(of, prepend=-1) != 0
    # A document that was truncated at the left begins with the first token that was kept.
    is_left = options.long == "truncate" and options.truncate_side == "left"
    covered = np.where(is_first, starts if is_left else 0, np.concatenate([[0], ends[:-1]]))
    rows = (of - documents.start) // documents.step
    wrong = np.flatnonzero((starts > covered) | (starts < covered - options.overlap) | (ends <= covered))
    if len(wrong):
        raise _fault(int(rows[wrong[0]]), int(covered[wrong[0]]), int(starts[wrong[0]]), options)
    skipped = covered - starts
    of_documents = np.bincount(rows, lengths - skipped, minlength=len(documents)).astype(np.int64)  # exact below 2**53
    firsts = np.full(len(documents), -1, np.int64)
    firsts[rows[is_first]] = np.flatnonzero(is_first)
    return JoinedSegments(
        lengths=of_documents,
        ends=np.cumsum(of_documents),
        firsts=firsts,
        rows=rows,
        new_places=segments.places + skipped,
        new_lengths=lengths - skipped,
    )


def _fault(row: int, covered: int, start: int, options: PackOptions) -> DocumentError:
    """Return the error for a document whose tokens from `covered` to `start` are missing, or repeated."""
    if start <= covered:
        return DocumentError(row, "it is in the rows more than once: check them with `packer verify`")
    if options.untrained == "drop":
        return DocumentError(
            row,
            f"its tokens {covered:,} to {start - 1:,} were left out by --untrained drop, so it cannot be joined: "
            "pack its source again",
        )
    return DocumentError(
        row, f"its tokens {covered:,} to {start - 1:,} are in no row: check these with `packer verify`"
    )
