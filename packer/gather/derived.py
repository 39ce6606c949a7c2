"""Numba kernels that derive padding, labels and positions from the layout of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges
from packer.algorithms.jit import jit_if_large


class RowLayout(NamedTuple):
    """Positions of segments in consecutive rows; row r is values r * max_len to (r + 1) * max_len - 1."""

    places: NDArray[np.int64]  # (segments,) position of the first token, counted from the first row
    lengths: NDArray[np.int64]  # (segments,) number of tokens
    extents: NDArray[np.int64]  # (segments,) number of positions it takes, alignment included
    ends: NDArray[np.int64]  # (rows,) end of the last extent, counted from the start of the row


@jit_if_large
def fill_gaps(layout: RowLayout, max_len: int, value: int, out: NDArray[np.int32]) -> None:
    """Write `value` wherever a row has no token: after the tokens of each segment, and after the last segment.

    Args:
        layout: positions of the segments.
        max_len: length of a row, padding included.
        value: the padding token, or the label for no loss.
        out: flat int32 array, C-contiguous.
    """
    places, lengths, extents, ends = layout
    for s in range(len(places)):
        for i in range(places[s] + lengths[s], places[s] + extents[s]):
            out[i] = value
    for r in range(len(ends)):
        for i in range(r * max_len + ends[r], (r + 1) * max_len):
            out[i] = value


def mask_context(places: NDArray[np.int64], context: NDArray[np.int64], no_loss: int, out: NDArray[np.int32]) -> None:
    """Exclude the head of every segment from loss: its first token, and tokens repeated from the previous piece.

    Labels are stored unshifted, and trainers predict token t from the tokens before it in the row. The label of the
    first token of a segment would thus be predicted from another document.

    Args:
        places: (segments,) position of each segment in `out`.
        context: (segments,) number of tokens without loss at its head.
        no_loss: label to write.
        out: flat int32 labels, C-contiguous.
    """
    out[joined_ranges(places, context)] = no_loss


@jit_if_large
def count_trained(places: NDArray[np.int64], extents: NDArray[np.int64], labels: NDArray[np.int32]) -> tuple[int, int]:
    """Count the trained tokens and the untrained segments.

    Args:
        places: (segments,) position of each segment in `labels`.
        extents: (segments,) number of positions it takes, alignment included.
        labels: flat int32, negative where there is no loss.

    Returns:
        Trained tokens, and segments without any.
    """
    tokens = 0
    without = 0
    for s in range(len(places)):
        own = labels[places[s] : places[s] + extents[s]]
        trained = np.int32(0)
        for i in range(len(own)):  # from 0, so that the compiler rules out negative indices and vectorizes
            trained += np.int32(own[i] >= 0)
        tokens += trained
        without += trained == 0
    return tokens, without


@jit_if_large
def any_trained(
    places: NDArray[np.int64], lengths: NDArray[np.int64], labels: NDArray[np.int32], out: NDArray[np.bool_]
) -> None:
    """Find the segments with at least one trained token.

    Args:
        places: (segments,) position of each segment in `labels`.
        lengths: (segments,) number of its tokens.
        labels: flat int32, negative where there is no loss.
        out: (segments,) receives whether the segment has a trained token.
    """
    for s in range(len(places)):
        own = labels[places[s] : places[s] + lengths[s]]
        found = False
        for i in range(len(own)):
            found |= own[i] >= 0
        out[s] = found


@jit_if_large
def restart_positions(places: NDArray[np.int64], ends: NDArray[np.int64], max_len: int, out: NDArray[np.int32]) -> None:
    """Number the tokens of every segment from 0, and likewise the padding of every row.

    Example: max_len 6, places [0, 2, 6], ends [5, 3] -> out [0, 1, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2].

    Args:
        places: (segments,) position of each segment in `out`; the first segment of a row is at its start.
        ends: (rows,) end of the last extent, counted from the start of the row.
        max_len: length of a row, padding included.
        out: flat int32 array, C-contiguous.
    """
    for s in range(len(places)):
        row = places[s] // max_len
        end = row * max_len + ends[row]
        if s + 1 < len(places) and places[s + 1] < end:
            end = places[s + 1]
        for i in range(places[s], end):
            out[i] = i - places[s]
    for r in range(len(ends)):
        tail = r * max_len + ends[r]
        for i in range(tail, (r + 1) * max_len):
            out[i] = i - tail
