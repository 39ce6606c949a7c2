"""Order algorithms: documents in source order -> rows, one after the other, without sorting."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large


class OpenRow(NamedTuple):
    """The row that the next segment may go into; by default there is none yet."""

    room: int = 0
    """Tokens that it still takes."""

    segments: int = 0
    """Segments in it."""


class OrderedRows(NamedTuple):
    """Rows of consecutive segments. A document with k cuts is k + 1 segments; one without tokens is none.

    Documents of 3, 0, 9 and 2 tokens by next fit in rows of 4:

        segments  3 | 4 | 4 | 1 2      OrderedRows(row_starts=[0, 1, 2, 3, 5], cut_documents=[2, 2], cut_starts=[4, 8])
                                                   row_documents=[0, 2, 2, 2], row_offsets=[0, 0, 4, 8]

    Documents can be arranged part by part, if each part goes on with the open row of the one before. The segments
    before row_starts[0] then belong to that row.
    """

    row_starts: NDArray[np.int64]
    """Shape (packs + 1,): row r holds the segments row_starts[r] to row_starts[r + 1] - 1, numbered in source order."""

    row_documents: NDArray[np.int64]
    """Shape (packs,): document of the first segment of each row."""

    row_offsets: NDArray[np.int32]
    """Shape (packs,): token of that document at which the row begins."""

    cut_documents: NDArray[np.int64]
    """Shape (cuts,), ascending: the document that each cut goes through."""

    cut_starts: NDArray[np.int32]
    """Shape (cuts,): where in that document the segment after the cut begins."""

    open_row: OpenRow
    """The last row, which the next document may go into."""

    @property
    def packs(self) -> int:
        """The number of rows that begin here."""
        return len(self.row_documents)

    @property
    def segments(self) -> int:
        """The number of segments, including those in the row that was open before."""
        return int(self.row_starts[-1])


def sequential(
    lengths: NDArray[np.int32], max_len: int, max_segments: int | None = None, open_row: OpenRow | None = None
) -> OrderedRows:
    """Next fit: each document goes into the open row, or closes it and opens the next.

    Only documents longer than max_len are cut, every max_len tokens. `lengths` are the tokens placed of each
    document, shape (documents,); 0 where none are. `open_row` is the row that earlier documents left open.
    """
    return _arrange(lengths, max_len, max_segments, open_row, least=max_len)


def wrapped(
    lengths: NDArray[np.int32], max_len: int, max_segments: int | None = None, open_row: OpenRow | None = None
) -> OrderedRows:
    """Concatenate and cut: each row is filled to max_len by cutting the document that crosses its end.

    With `max_segments` a row that holds that many segments ends there. The other arguments are those of `sequential`.
    """
    return _arrange(lengths, max_len, max_segments, open_row, least=1)


def _arrange(
    lengths: NDArray[np.int32], max_len: int, max_segments: int | None, open_row: OpenRow | None, *, least: int
) -> OrderedRows:
    """Walk twice: the first time to count, so that the result is all that is allocated."""
    assert lengths.dtype == np.int32
    assert lengths.ndim == 1
    assert max_len >= 1
    assert max_segments is None or max_segments >= 1
    limit = max_len if max_segments is None else min(max_segments, max_len)
    nothing = _room_for(0, 0, OpenRow() if open_row is None else open_row)
    rows, cuts, segments, _ = _walk(lengths, max_len, limit, least, nothing)
    found = _room_for(rows, cuts, nothing.open_row)
    _, _, _, left_open = _walk(lengths, max_len, limit, least, found)
    found.row_starts[rows] = segments
    return found._replace(open_row=OpenRow(*left_open))


def _room_for(rows: int, cuts: int, open_row: OpenRow) -> OrderedRows:
    return OrderedRows(
        row_starts=np.empty(rows + 1, np.int64),
        row_documents=np.empty(rows, np.int64),
        row_offsets=np.empty(rows, np.int32),
        cut_documents=np.empty(cuts, np.int64),
        cut_starts=np.empty(cuts, np.int32),
        open_row=open_row,
    )


@jit_if_large
def _walk(
    lengths: NDArray[np.int32], max_len: int, limit: int, least: int, out: OrderedRows
) -> tuple[int, int, int, tuple[int, int]]:
    """Count (rows, cuts, segments), and write down those that `out` has room for; the fourth is the row left open.

    `out.open_row` is the one that earlier documents left open.

    A row takes the next segment while it has fewer than `limit` and room for `least` tokens, or for all that is left of
    the document. Next fit and wrapping differ in that alone: `least` is max_len, or 1.
    """
    rows, cuts, segments = 0, 0, 0
    room, held = np.int64(out.open_row.room), np.int64(out.open_row.segments)
    for document in range(len(lengths)):
        length = np.int64(lengths[document])
        left = length
        while left > 0:
            if room < min(left, least) or held == limit:
                if rows < len(out.row_documents):
                    out.row_starts[rows] = segments
                    out.row_documents[rows] = document
                    out.row_offsets[rows] = length - left
                rows += 1
                room, held = np.int64(max_len), np.int64(0)
            if left < length:
                if cuts < len(out.cut_documents):
                    out.cut_documents[cuts] = document
                    out.cut_starts[cuts] = length - left
                cuts += 1
            taken = min(left, room)
            left -= taken
            room -= taken
            held += 1
            segments += 1
    return rows, cuts, segments, (room, held)
