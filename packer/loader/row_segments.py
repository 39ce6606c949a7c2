"""Arrays derived from segment boundaries: positions, labels, loss weights and document keys, for rows end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.shards.row_format import PADDING

LossWeights = Literal["sequence", "document"]
Rows = Sequence[Mapping[str, NDArray[Any]]]
"""Rows of a batch; each maps column names to arrays, as `PackedDataset` returns them."""


def cu_seqlens_of(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the cumulative segment lengths, shape (segments + 1,), starting at 0: [3, 1] -> [0, 3, 4]."""
    cu_seqlens = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=cu_seqlens[1:])
    return cu_seqlens


def restart_positions(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Number the tokens of each segment from 0: [3, 1, 2] -> [0, 1, 2, 0, 0, 1]."""
    starts = cu_seqlens_of(lengths)[:-1].repeat(lengths)
    return np.subtract(np.arange(len(starts)), starts, out=starts)


def copy_token_column(name: str, rows: Rows, counts: Sequence[int], out: NDArray[Any]) -> None:
    """Copy the first `counts[r]` values of token column `name` of each row r into `out`, end to end."""
    place = 0
    for row, count in zip(rows, counts, strict=True):
        out[place : place + count] = row[name][:count]
        place += count


def document_keys(row: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return one key per segment that identifies its document, shape (segments,); -1 for padding.

    The key is `doc_ids`, except in a mixture: there doc_ids restart with every source, and each repetition of a
    document counts as a document of its own. Keys are unique below 2^40 documents, 2^12 sources and 2^11 repetitions.
    """
    doc_ids: NDArray[np.int64] = row["doc_ids"]
    if "source_ids" not in row:
        return doc_ids
    keys = doc_ids + (row["source_ids"].astype(np.int64) << 40) + (row["copy"].astype(np.int64) << 52)
    return np.where(doc_ids == PADDING, PADDING, keys)


def all_segments(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (lengths, document_keys, numbers) of the segments of all rows, padding tails included.

    Each has the shape (segments,). Numbers count from 1 within each row and are 0 for padding.
    """
    lengths = np.concatenate([row["seq_lengths"] for row in rows], dtype=np.int64)
    keys = np.concatenate([document_keys(row) for row in rows], dtype=np.int64)
    numbers = np.concatenate([np.arange(1, len(row["doc_ids"]) + 1) for row in rows])
    return lengths, keys, np.where(keys == PADDING, 0, numbers)


def real_segments(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """Return (lengths, document_keys, tokens) of all rows without their padding tails.

    Lengths and keys have the shape (segments,); tokens has one count per row, of the tokens before its padding tail.
    """
    lengths, keys, tokens = [], [], []
    for row in rows:
        row_lengths, row_keys, row_tokens = row["seq_lengths"], document_keys(row), len(row["input_ids"])
        if row_keys[-1] == PADDING:
            row_tokens -= int(row_lengths[-1])
            row_lengths, row_keys = row_lengths[:-1], row_keys[:-1]
        lengths.append(row_lengths)
        keys.append(row_keys)
        tokens.append(row_tokens)
    return np.concatenate(lengths, dtype=np.int64), np.concatenate(keys, dtype=np.int64), tokens


def segment_values(name: str, rows: Rows) -> NDArray[Any]:
    """Return segment column `name` of all rows end to end, without the values of padding tails.

    Raises:
        PackerError: the rows have no such column.
    """
    check_column(name, rows)
    parts = [row[name][: len(row[name]) - (row["doc_ids"][-1] == PADDING)] for row in rows]
    values: NDArray[Any]
    is_masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
    values = np.ma.concatenate(parts) if is_masked else np.concatenate(parts)  # type: ignore[no-untyped-call]
    if values.dtype.kind == "f" and any(part.dtype.kind in "iu" for part in parts):  # lists of int64 and of uint64
        values = np.concatenate([part.astype(object) for part in parts])
    return values


def check_column(name: str, rows: Rows) -> None:
    """Check that the rows have column `name`.

    Raises:
        PackerError: they do not.
    """
    if name not in rows[0]:
        raise PackerError(
            f"the rows have no column {name}, only {', '.join(rows[0])}: pack with it, or do not ask for it"
        )


def labels_from_tokens(input_ids: NDArray[Any], lengths: NDArray[np.int64], doc_ids: NDArray[np.int64]) -> NDArray[Any]:
    """Return labels for a dataset without a `labels` column, shape (T,), not shifted.

    Labels equal the tokens, except that padding and the first token of each segment are -100: a first token would
    be predicted from the last token of the document before it.

    Args:
        input_ids: (T,) tokens.
        lengths: (segments,) segment lengths, which sum to T.
        doc_ids: (segments,) document of each segment; -1 for padding.
    """
    labels: NDArray[Any] = input_ids.copy()
    labels[np.cumsum(lengths) - lengths] = NO_LOSS
    labels[np.repeat(doc_ids == PADDING, lengths)] = NO_LOSS
    return labels


def shift_left(values: NDArray[Any], fill: float) -> NDArray[Any]:
    """Move values one place to the left along the last axis, so that each token has the label of its successor.

    For trainers that do not shift labels themselves. With `fill` -100, [-100, 5, 6] -> [5, 6, -100].
    """
    out = np.empty_like(values)
    out[..., :-1] = values[..., 1:]
    out[..., -1] = fill
    return out


def token_loss_weights(
    labels: NDArray[Any], lengths: NDArray[np.integer[Any]], doc_ids: NDArray[np.int64], *, per: LossWeights
) -> NDArray[np.float64]:
    """Return the weight of each token in a mean over sequences or documents: 1 / trained tokens in the same one.

    A token is trained if its label is not -100; other tokens have weight 0. The weights of a sequence therefore sum
    to 1, or to 0 if none of its tokens is trained, and the sum of all weights is the number of sequences with a
    trained token. `(weights * cross_entropy).sum() / weights.sum()` is the mean over sequences of the mean over their
    tokens: the loss of the unpacked batch with each sequence averaged separately, as in Krell et al. (arXiv
        2107.02027).

    Example: labels [-100, 5, 6, -100, 7] and lengths [3, 2] -> [0, 1/2, 1/2, 0, 1].

    Args:
        labels: (T,) labels, not shifted.
        lengths: (segments,) segment lengths, which sum to T.
        doc_ids: (segments,) document of each segment; -1 for padding.
        per: "sequence" averages each segment separately; "document" averages all pieces of a split document in this
            batch together. Pieces in other batches are not taken into account.
    """
    trained = labels != NO_LOSS
    starts = np.cumsum(lengths) - lengths
    counts = np.add.reduceat(trained, starts, dtype=np.int64)
    if per == "document":
        _, documents = np.unique(doc_ids, return_inverse=True)
        counts = np.bincount(documents, weights=counts)[documents]
    weights = np.zeros(len(labels), np.float64)
    np.divide(1.0, np.repeat(counts, lengths), out=weights, where=trained)
    return weights
