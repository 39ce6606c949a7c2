"""Rows for encoders, which see both ways: masks, token types, and where each segment is pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.dataset import NO_LOSS
from packer.loader.masking import MaskedLM, mask_tokens
from packer.loader.segments import (
    boundaries_of,
    check_column,
    copy_rows,
    document_keys,
    restart_positions,
    segment_values,
    weights_of,
)
from packer.shards.columns import PADDING

if TYPE_CHECKING:
    from packer.loader.formats import FormatOptions, Rows

TOKEN_TYPES = "token_type_ids"


def encoder_batch(rows: Rows, options: FormatOptions) -> dict[str, Any]:
    """Rows as they are [B, L], for BERT and its like, with a mask of each row's segments; see `collate`."""
    lengths = np.concatenate([row["seq_lengths"] for row in rows], dtype=np.int64)
    doc_ids = np.concatenate([document_keys(row) for row in rows], dtype=np.int64)
    boundaries = boundaries_of(lengths)
    shape = len(rows), len(rows[0]["input_ids"])
    places = [shape[1]] * len(rows)
    input_ids = np.empty(shape[0] * shape[1], np.int64)
    copy_rows("input_ids", rows, places, input_ids)
    numbers = np.concatenate([np.arange(1, len(row["doc_ids"]) + 1) for row in rows])
    segment_ids = np.where(doc_ids == PADDING, 0, numbers).astype(np.int32).repeat(lengths).reshape(shape)
    batch: dict[str, Any] = {
        "input_ids": input_ids.reshape(shape),
        "position_ids": (restart_positions(lengths) + options.position_offset).reshape(shape),
        "attention_mask": _attention_mask(segment_ids, additive=options.additive_mask),
    }
    if options.mlm is not None:
        hidden, labels = mask_segments(rows, input_ids, lengths, doc_ids, mlm=options.mlm, epoch=options.epoch)
        batch |= {"input_ids": hidden.reshape(shape), "labels": labels.reshape(shape)}
    types = [TOKEN_TYPES] if TOKEN_TYPES in rows[0] else []
    for name in dict.fromkeys([*types, *options.keep_tokens]):
        batch[name] = token_values(name, rows, places, len(input_ids)).reshape(shape)
    if options.loss_weights is not None:
        if "labels" not in batch:
            raise PackerError('loss_weights need labels: give mlm, or keep_tokens=["labels"] for those on disk')
        weights = weights_of(batch["labels"].reshape(-1), lengths, doc_ids, per=options.loss_weights)
        batch["loss_weights"] = weights.reshape(shape)
    batch["segments"] = {
        "segment_ids": segment_ids,
        **segments_of(rows, boundaries, doc_ids, options.keep or ()),
    }
    return batch


def _attention_mask(segment_ids: NDArray[np.int32], *, additive: bool) -> NDArray[Any]:
    """[B, 1, L, L]: which token (row) sees which (column); padding sees padding, for a softmax over nothing is NaN.

    Example: [1, 1, 2, 0] -> [[T, T, -, -], [T, T, -, -], [-, -, T, -], [-, -, -, T]].
    """
    few = segment_ids.astype(np.min_scalar_type(int(segment_ids.max(initial=0))))  # L * L comparisons: of bytes
    mask = few[:, None, :, None] == few[:, None, None, :]
    return np.where(mask, np.float32(0), np.finfo(np.float32).min) if additive else np.asarray(mask)


def mask_segments(
    rows: Rows,
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    doc_ids: NDArray[np.int64],
    *,
    mlm: MaskedLM,
    epoch: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask the tokens of a batch; (input_ids, labels), see `mask_tokens`. Segments of padding may be anywhere."""
    doc_starts = np.zeros(len(lengths), np.int64)
    doc_starts[doc_ids != PADDING] = segment_values("doc_starts", rows)
    return mask_tokens(input_ids, lengths, doc_ids, doc_starts, mlm=mlm, epoch=epoch)


def segments_of(
    rows: Rows, boundaries: NDArray[np.int64], doc_ids: NDArray[np.int64], keep: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """What is known of each segment, shape (segments,), padding left out: where it begins, its document, columns."""
    real = doc_ids != PADDING
    found = {"pooling_positions": boundaries[:-1][real], "doc_ids": segment_values("doc_ids", rows)}
    return found | {name: segment_values(name, rows) for name in keep}


def token_values(
    name: str, rows: Sequence[Mapping[str, NDArray[Any]]], ends: Sequence[int], total: int
) -> NDArray[Any]:
    """The first `ends[r]` values of a token column of every row r end to end, then padding; whole numbers as int64."""
    check_column(name, rows)
    dtype = rows[0][name].dtype
    fill = NO_LOSS if name == "labels" else 0
    values = np.full(total, fill, np.int64 if np.issubdtype(dtype, np.integer) else dtype)
    copy_rows(name, rows, ends, values[: sum(ends)])
    return values
