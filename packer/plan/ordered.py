"""Rows in the order of the source: find where a row begins, and make rows again from there.

Every row of an order algorithm begins empty. So the place in the source where a row begins is enough to make this row
and all rows after it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.sequential import OrderedRows
from packer.plan.items import items_of
from packer.plan.pieces import Located
from packer.plan.rows import both_of_each
from packer.plan.segments import Segments


def lengths_to_arrange(items: Segments, *, keeps_whole: bool) -> NDArray[np.int32]:
    """Return the lengths that an order algorithm arranges: int32, 0 for pieces or documents without tokens.

    Args:
        items: segments, or pairs of segments as one.
        keeps_whole: whether the algorithm keeps segments whole. It then arranges the extents of all pieces; otherwise
            the tokens of whole documents, which it cuts itself.
    """
    return items.extents_in_order() if keeps_whole else items.kept_lengths(0, items.documents)


def row_places(
    items: Segments, arranged: OrderedRows, rows: NDArray[np.int64], *, keeps_whole: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find where some rows begin: (items, skipped), each int64, shape (rows,).

    `skipped` is the part of the item that is in earlier rows: a number of pieces if the algorithm keeps them whole,
    otherwise of tokens. Lengths [3, 9] with max_len 4, for example:

        next fit  3 | 4 | 4 | 1    rows begin at (0, 0), (1, 0), (1, 1), (1, 2)
        wrapped   3 1 | 4 | 4      rows begin at (0, 0), (1, 1), (1, 5)

    Args:
        items: the same as for `lengths_to_arrange`.
        arranged: rows that the algorithm made of these lengths.
        rows: numbers of rows in `arranged`.
        keeps_whole: the same as for `lengths_to_arrange`.
    """
    found = arranged.row_documents[rows]
    if not keeps_whole:
        return found, arranged.row_offsets[rows].astype(np.int64)
    heads = items.head_documents
    # Piece i is tail number i - h, or a head of that document, if h heads come earlier.
    earlier = np.searchsorted(heads + np.arange(len(heads)), found)
    numbers = found - earlier
    skipped: NDArray[np.int64] = earlier - np.searchsorted(heads, numbers)
    return numbers, skipped


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderedSegments:
    """Consecutive rows in the order of the source."""

    segments: Segments
    """Documents, cut as they are in the rows."""

    first_document: int
    """Number of the first of these documents in the source."""

    numbers: NDArray[np.uint32] | NDArray[np.int64]
    """Shape (segments in rows,): segment numbers."""

    row_starts: NDArray[np.int64]
    """Shape (rows + 1,): row r holds numbers[row_starts[r]:row_starts[r + 1]]; begins at 0."""

    def located(self, first_row: int, last_row: int) -> Located:
        """Locate the segments of rows first_row..last_row - 1 in the source."""
        row_starts = self.row_starts[first_row : last_row + 1]
        documents, starts, lengths = self.segments.locate(self.numbers[row_starts[0] : row_starts[-1]])
        documents += self.first_document
        return Located(documents=documents, starts=starts, lengths=lengths, row_starts=row_starts - row_starts[0])


def rows_from(
    segments: Segments,
    arrange: Callable[[NDArray[np.int32]], OrderedRows],
    *,
    first_document: int,
    skipped: int,
    rows: int,
    pairs: bool,
    keeps_whole: bool,
) -> OrderedSegments:
    """Make rows again, from the place where the first one begins.

    Args:
        segments: segments of the documents from the one in which the first row begins to the one in which the last
            row ends.
        arrange: order algorithm, with its limits.
        first_document: number of the first of these documents in the source.
        skipped: part of the first document, or pair, that is in earlier rows; see `row_places`.
        rows: number of rows.
        pairs: whether documents are preference pairs.
        keeps_whole: whether the algorithm keeps segments whole.
    """
    items = items_of(segments) if pairs else segments
    lengths = lengths_to_arrange(items, keeps_whole=keeps_whole)
    if keeps_whole:
        arranged = arrange(lengths[skipped:])
        numbers = items.numbers_in_order()[skipped:]  # every piece before the first row has tokens
    else:
        if skipped:
            lengths = lengths.copy()
            lengths[0] -= skipped
        arranged = arrange(lengths)
        cut_documents, cut_starts = arranged.cut_documents, arranged.cut_starts
        if skipped:  # also cut off the piece before the first row
            offsets = np.where(cut_documents == 0, np.int32(skipped), np.int32(0))
            cut_documents = np.concatenate([np.zeros(1, np.int64), cut_documents])
            cut_starts = np.concatenate([np.array([skipped], np.int32), cut_starts + offsets])
        segments = segments.cut_at(cut_documents, cut_starts)
        numbers = segments.numbers_in_order()[int(skipped > 0) :]
    row_starts = arranged.row_starts[: rows + 1]
    numbers = numbers[: row_starts[-1]]
    if pairs:
        numbers, row_starts = both_of_each(numbers), row_starts * 2
    return OrderedSegments(segments=segments, first_document=first_document, numbers=numbers, row_starts=row_starts)
