"""Batches of one shape, so that torch.compile compiles once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.dataset import PackedDataset
from packer.shards.columns import PADDING


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticShape:
    """The shape of every batch; `static_shape` finds the one that holds all batches of a dataset."""

    tokens: int
    """T: tokens of a batch, padding included."""

    segments: int
    """Most segments of a batch, padding included; `cu_seqlens` has one value more."""

    max_len: int
    """What `max_length` says of every batch, and the longest piece of padding, so that positions stay below it."""

    pad_id: int
    """Token id of the padding."""


def static_shape(dataset: PackedDataset, *, rows: int) -> StaticShape:
    """Find the shape that holds any batch of so many rows of a dataset.

    All row boundaries are read once, no token is: T is rows * max_len, and the segments are those of the rows that
    have most.

    Raises:
        PackerError: rows is below 1.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch has at least 1")
    counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(offsets) for offsets, _, _ in dataset.segments())])
    most = np.sort(counts)[-rows:]
    return StaticShape(
        tokens=rows * dataset.max_len,
        segments=int(most.sum()) + rows - len(most),
        max_len=dataset.max_len,
        pad_id=dataset.pad_id,
    )


def pad_segments(
    lengths: NDArray[np.int64], doc_ids: NDArray[np.int64], static: StaticShape
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Append segments of padding of at most max_len tokens each, until `static.tokens` are full.

    Example: tokens 12, max_len 4, lengths [3, 2] -> [3, 2, 4, 3].

    Raises:
        PackerError: the batch has more tokens than the shape.
    """
    tokens = int(lengths.sum())
    left = static.tokens - tokens
    if left < 0:
        raise PackerError(f"a batch has {tokens:,} tokens, the static shape {static.tokens:,}: {_REMEDY}")
    pieces = np.full(-(-left // static.max_len), static.max_len, np.int64)
    if len(pieces):
        pieces[-1] = left - static.max_len * (len(pieces) - 1)
    return np.concatenate([lengths, pieces]), np.concatenate([doc_ids, np.full(len(pieces), PADDING, np.int64)])


def pad_boundaries(boundaries: NDArray[np.int64], static: StaticShape | None) -> NDArray[np.int64]:
    """Append repeats of the last boundary, which are segments of no tokens, up to the shape's number.

    Example: segments 4, boundaries [0, 3, 12] -> [0, 3, 12, 12, 12].

    Raises:
        PackerError: there are more segments than the shape has.
    """
    if static is None:
        return boundaries
    missing = static.segments + 1 - len(boundaries)
    if missing < 0:
        segments = len(boundaries) - 1
        raise PackerError(f"a batch has {segments:,} segments, the static shape {static.segments:,}: {_REMEDY}")
    return np.concatenate([boundaries, np.full(missing, boundaries[-1])])


_REMEDY = "take static_shape(dataset, rows=...) with the rows of a batch"
