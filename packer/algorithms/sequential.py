"""Order algorithms: documents in source order -> rows, one after the other, without sorting."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderedRows:
    """Rows of consecutive pieces. A document that is not cut is one piece; one with k cuts is k + 1 in a row.

    Documents of 3, 0, 9 and 2 tokens in rows of 4, cut no oftener than that demands; 0 tokens make no piece:

        pieces  3 | 4 | 4 | 1 2        OrderedRows(row_starts=[0, 1, 2, 3, 5], cut_documents=[2, 2], cut_starts=[4, 8])
    """

    row_starts: NDArray[np.int64]
    """Shape (packs + 1,): row r holds the pieces row_starts[r] to row_starts[r + 1] - 1, numbered in source order."""

    cut_documents: NDArray[np.int64]
    """Shape (cuts,), ascending: the document that each cut goes through."""

    cut_starts: NDArray[np.int32]
    """Shape (cuts,): where in that document the piece after the cut begins."""

    @property
    def packs(self) -> int:
        """The number of rows."""
        return len(self.row_starts) - 1

    @property
    def max_segments(self) -> int:
        """Pieces in the row that has most; 0 when there is none."""
        return int(np.diff(self.row_starts).max(initial=0))

    def piece_lengths(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """Tokens of every piece, shape (row_starts[-1],), from the lengths that were arranged."""
        pieces = np.empty(int(self.row_starts[-1]), np.int32)
        filled = _piece_lengths(lengths, self.cut_documents, self.cut_starts, pieces)
        assert filled == len(pieces)
        return pieces


def sequential(lengths: NDArray[np.int32], max_len: int, max_segments: int | None = None) -> OrderedRows:
    """Next fit: each document goes into the open row, or closes it and opens the next.

    Documents longer than max_len are cut every max_len tokens, no oftener. `lengths` are the tokens placed of each
    document, shape (documents,); 0 where none are.
    """
    return _arrange(lengths, max_len, max_segments, least=max_len)


def wrapped(lengths: NDArray[np.int32], max_len: int, max_segments: int | None = None) -> OrderedRows:
    """Concatenate and cut: each row is filled to max_len by cutting the document that crosses its end.

    With `max_segments` a row that holds that many pieces ends there. `lengths` as for `sequential`.
    """
    return _arrange(lengths, max_len, max_segments, least=1)


def _arrange(lengths: NDArray[np.int32], max_len: int, max_segments: int | None, *, least: int) -> OrderedRows:
    """Walk twice: the first time to count, so that the result is all that is allocated."""
    assert lengths.dtype == np.int32
    assert lengths.ndim == 1
    assert max_len >= 1
    assert max_segments is None or max_segments >= 1
    limit = max_len if max_segments is None else min(max_segments, max_len)
    none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)
    rows, cuts, pieces = _walk(lengths, max_len, limit, least, *none)
    row_starts = np.empty(rows + 1, np.int64)
    cut_documents, cut_starts = np.empty(cuts, np.int64), np.empty(cuts, np.int32)
    _walk(lengths, max_len, limit, least, row_starts, cut_documents, cut_starts)
    row_starts[rows] = pieces
    return OrderedRows(row_starts=row_starts, cut_documents=cut_documents, cut_starts=cut_starts)


@jit
def _walk(
    lengths: NDArray[np.int32],
    max_len: int,
    limit: int,
    least: int,
    out_row_starts: NDArray[np.int64],
    out_cut_documents: NDArray[np.int64],
    out_cut_starts: NDArray[np.int32],
) -> tuple[int, int, int]:
    """Count (rows, cuts, pieces), and write down those that the `out` arrays have room for.

    A row takes the next piece while it has fewer than `limit` and room for `least` tokens, or for all that is left of
    the document. Next fit and wrapping differ in that alone: `least` is max_len, or 1.
    """
    rows, cuts, pieces = 0, 0, 0
    room, segments = 0, 0  # of the open row; there is none yet
    for document in range(len(lengths)):
        length = np.int64(lengths[document])
        left = length
        while left > 0:
            if room < min(left, least) or segments == limit:
                if rows < len(out_row_starts):
                    out_row_starts[rows] = pieces
                rows += 1
                room, segments = max_len, 0
            if left < length:
                if cuts < len(out_cut_documents):
                    out_cut_documents[cuts] = document
                    out_cut_starts[cuts] = length - left
                cuts += 1
            taken = min(left, room)
            left -= taken
            room -= taken
            segments += 1
            pieces += 1
    return rows, cuts, pieces


@jit
def _piece_lengths(
    lengths: NDArray[np.int32],
    cut_documents: NDArray[np.int64],
    cut_starts: NDArray[np.int32],
    out: NDArray[np.int32],
) -> int:
    """Write the tokens of every piece; give how many pieces there are."""
    pieces, cut = 0, 0
    for document in range(len(lengths)):
        begin = np.int64(0)
        while cut < len(cut_documents) and cut_documents[cut] == document:
            out[pieces] = cut_starts[cut] - begin
            begin = np.int64(cut_starts[cut])
            pieces += 1
            cut += 1
        if lengths[document] > 0:
            out[pieces] = lengths[document] - begin
            pieces += 1
    return pieces
