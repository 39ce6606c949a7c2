"""Order algorithms: fill one row after another with documents in source order."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large


class OpenRow(NamedTuple):
    """The row that the next segment may go into. The default means that there is none yet."""

    room: int = 0
    """Number of tokens that still fit."""

    segments: int = 0
    """Number of segments in it."""


class OrderedRows(NamedTuple):
    """Rows of consecutive segments. A document with k cuts has k + 1 segments; a document without tokens has none.

    Documents of 3, 0, 9 and 2 tokens by next fit in rows of 4:

        segments  3 | 4 | 4 | 1 2      OrderedRows(row_starts=[0, 1, 2, 3, 5], cut_documents=[2, 2], cut_starts=[4, 8])
                                                   row_documents=[0, 2, 2, 2], row_offsets=[0, 0, 4, 8]

    Documents can be arranged in several parts if each part gets the open row of the previous part. The segments before
    row_starts[0] then belong to that row.
    """

    row_starts: NDArray[np.int64]
    """Shape (packs + 1,): row r has the segments row_starts[r] to row_starts[r + 1] - 1, numbered in source order."""

    row_documents: NDArray[np.int64]
    """Shape (packs,): document of the first segment of each row."""

    row_offsets: NDArray[np.int32]
    """Shape (packs,): index of the row's first token in that document."""

    cut_documents: NDArray[np.int64]
    """Shape (cuts,), ascending: document of each cut."""

    cut_starts: NDArray[np.int32]
    """Shape (cuts,): index in that document of the first token after the cut."""

    open_row: OpenRow
    """The last row, into which the next document may go."""

    @property
    def packs(self) -> int:
        """Number of rows that begin in this part."""
        return len(self.row_documents)

    @property
    def segments(self) -> int:
        """Number of segments, including segments that were added to the previous open row."""
        return int(self.row_starts[-1])


def sequential(
    lengths: NDArray[np.int32], max_len: int, max_segments: int | None = None, open_row: OpenRow | None = None
) -> OrderedRows:
    """Next fit: put each document into the open row, or into a new row if it does not fit.

    Only documents longer than max_len are cut, after every max_len tokens. lengths: number of tokens of each document
    to place (0 for none), shape (documents,). open_row: the row that earlier documents left open.
    """
    return _arrange(lengths, max_len, max_segments, open_row, least=max_len)


def wrapped(
    lengths: NDArray[np.int32], max_len: int, max_segments: int | None = None, open_row: OpenRow | None = None
) -> OrderedRows:
    """Concatenate and cut: fill each row to max_len and cut the document that crosses its end.

    A row also ends when it has `max_segments` segments. See `sequential` for the other arguments.
    """
    return _arrange(lengths, max_len, max_segments, open_row, least=1)


def _arrange(
    lengths: NDArray[np.int32], max_len: int, max_segments: int | None, open_row: OpenRow | None, *, least: int
) -> OrderedRows:
    """Walk twice: first to count rows and cuts, then to fill arrays of exactly that size."""
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
    """Return (rows, cuts, segments, (room, segments) of the open row).

    Rows and cuts are also written to `out` as far as its arrays reach. `out.open_row` is the row that earlier documents
    left open.

    A row takes the next segment if it has fewer than `limit` segments, and room for `least` tokens or for the rest of
    the document. `least` is the only difference between next fit (max_len) and wrapping (1).
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
