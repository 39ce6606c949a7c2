"""Numba kernels that derive padding, labels and positions from the layout of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit


class RowLayout(NamedTuple):
    """Where segments stand in rows that follow each other; row r is values r * max_len to (r + 1) * max_len - 1."""

    places: NDArray[np.int64]  # (segments,) where each segment begins, counted from the first row
    lengths: NDArray[np.int64]  # (segments,) its tokens
    extents: NDArray[np.int64]  # (segments,) the place it takes
    ends: NDArray[np.int64]  # (rows,) where the extents of each row end, counted from the row's begin


@jit
def fill_gaps(layout: RowLayout, max_len: int, value: int, out: NDArray[np.int32]) -> None:
    """Write `value` wherever a row has no token: after the tokens of each segment, and after the last segment.

    Args:
        layout: where the segments stand.
        max_len: tokens and padding of a row.
        value: the padding token, or "no loss".
        out: flat int32 array, C-contiguous.
    """
    places, lengths, extents, ends = layout
    for s in range(len(places)):
        for i in range(places[s] + lengths[s], places[s] + extents[s]):
            out[i] = value
    for r in range(len(ends)):
        for i in range(r * max_len + ends[r], (r + 1) * max_len):
            out[i] = value


@jit
def mask_context(places: NDArray[np.int64], context: NDArray[np.int64], no_loss: int, out: NDArray[np.int32]) -> None:
    """Set "no loss" at the head of every segment: its first token, and the tokens it repeats from the previous piece.

    Labels are stored unshifted, and every trainer predicts token t from the tokens before it in the row. So the label
    of a segment's first token would be predicted from the document before it.

    Args:
        places: (segments,) where each segment begins in `out`.
        context: (segments,) tokens without loss at the head of each.
        no_loss: the label to write.
        out: flat int32 labels, C-contiguous.
    """
    for s in range(len(places)):
        for i in range(places[s], places[s] + context[s]):
            out[i] = no_loss


@jit
def count_trained(places: NDArray[np.int64], extents: NDArray[np.int64], labels: NDArray[np.int32]) -> tuple[int, int]:
    """Count trained tokens, and segments without any.

    Args:
        places: (segments,) where each segment begins in `labels`.
        extents: (segments,) the place it takes.
        labels: flat int32, negative where there is no loss.
    """
    tokens = 0
    without = 0
    for s in range(len(places)):
        own = labels[places[s] : places[s] + extents[s]]
        trained = np.int32(0)
        for i in range(len(own)):  # from 0, so that the compiler sees no negative index, and takes eight at a time
            trained += np.int32(own[i] >= 0)
        tokens += trained
        without += trained == 0
    return tokens, without


@jit
def any_trained(
    places: NDArray[np.int64], lengths: NDArray[np.int64], labels: NDArray[np.int32], out: NDArray[np.bool_]
) -> None:
    """Write whether any token of each segment is trained.

    Args:
        places: (segments,) where each segment begins in `labels`.
        lengths: (segments,) its tokens.
        labels: flat int32, negative where there is no loss.
        out: (segments,) whether any token of each is trained.
    """
    for s in range(len(places)):
        own = labels[places[s] : places[s] + lengths[s]]
        found = False
        for i in range(len(own)):
            found |= own[i] >= 0
        out[s] = found


@jit
def restart_positions(places: NDArray[np.int64], ends: NDArray[np.int64], max_len: int, out: NDArray[np.int32]) -> None:
    """Number the tokens of every segment from 0, and the padding of every row, too.

    Example: max_len 6, places [0, 2, 6], ends [5, 3] -> out [0, 1, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2].

    Args:
        places: (segments,) where each segment begins in `out`; the first segment of a row begins the row.
        ends: (rows,) where the extents of each row end, counted from the row's begin.
        max_len: tokens and padding of a row.
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
