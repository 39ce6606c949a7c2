"""Fixed batch shapes, with which torch.compile compiles a training step once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.dataset import PackedDataset
from packer.loader.row_segments import RowTokens
from packer.shards.row_format import PADDING

_REMEDY = "call static_shape(dataset, rows=...) with the number of rows per batch"


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticShape:
    """Shape that every batch is padded to; `static_shape` computes the smallest one that fits a dataset."""

    tokens: int
    """Tokens per batch (T), padding included."""

    segments: int
    """Segments per batch, padding included; `cu_seqlens` has one element more."""

    max_len: int
    """Value of `max_length` in every batch, and the largest number of tokens in a segment of padding."""

    pad_id: int
    """Token id of the padding."""


def static_shape(dataset: PackedDataset, *, rows: int) -> StaticShape:
    """Return the smallest shape that fits any batch of `rows` rows of a dataset.

    T is rows * max_len; the number of segments is that of the rows with the most segments. Reads the segment
    boundaries of all rows once, and no tokens.

    Args:
        dataset: dataset from `load`.
        rows: rows per batch, at least 1.

    Raises:
        PackerError: rows is below 1.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch needs at least 1")
    counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(offsets) for offsets, _, _ in dataset.segments())])
    most = np.sort(counts)[-rows:]
    return StaticShape(
        tokens=rows * dataset.max_len,
        segments=int(most.sum()) + rows - len(most),
        max_len=dataset.max_len,
        pad_id=dataset.pad_id,
    )


def pad_tokens(tokens: RowTokens, static: StaticShape | None) -> RowTokens:
    """Append segments of padding, of at most `static.max_len` tokens each, up to `static.tokens`.

    Without a shape, do nothing. Example: with tokens 12 and max_len 4, lengths [3, 2] -> [3, 2, 4, 3].
    """
    if static is None:
        return tokens
    count = int(tokens.lengths.sum())
    missing = static.tokens - count
    if missing < 0:
        raise PackerError(f"a batch has {count:,} tokens, the static shape only {static.tokens:,}: {_REMEDY}")
    pieces = np.full(-(-missing // static.max_len), static.max_len, np.int64)
    if len(pieces):
        pieces[-1] = missing - static.max_len * (len(pieces) - 1)
    return replace(
        tokens,
        lengths=np.concatenate([tokens.lengths, pieces]),
        doc_ids=np.concatenate([tokens.doc_ids, np.full(len(pieces), PADDING, np.int64)]),
    )


def pad_cu_seqlens(cu_seqlens: NDArray[np.int64], static: StaticShape | None) -> NDArray[np.int64]:
    """Append empty segments, as repeats of the last element, up to `static.segments`; without a shape, do nothing.

    Example: with segments 4, [0, 3, 12] -> [0, 3, 12, 12, 12].
    """
    if static is None:
        return cu_seqlens
    missing = static.segments + 1 - len(cu_seqlens)
    if missing < 0:
        segments = len(cu_seqlens) - 1
        raise PackerError(f"a batch has {segments:,} segments, the static shape only {static.segments:,}: {_REMEDY}")
    return np.concatenate([cu_seqlens, np.full(missing, cu_seqlens[-1])])
