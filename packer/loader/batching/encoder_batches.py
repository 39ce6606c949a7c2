"""Batches for bidirectional encoders: block-diagonal attention masks, token types and pooling positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.batching.token_masking import MaskedLM, mask_tokens
from packer.loader.row_segments import (
    LossWeights,
    Rows,
    all_segments,
    check_column,
    copy_token_column,
    cu_seqlens_of,
    restart_positions,
    segment_values,
    token_loss_weights,
)
from packer.shards.row_format import PADDING

TOKEN_TYPES = "token_type_ids"


def encoder_batch(
    rows: Rows,
    *,
    loss_weights: LossWeights | None = None,
    mlm: MaskedLM | None = None,
    epoch: int = 0,
    keep: Sequence[str] = (),
    keep_tokens: Sequence[str] = (),
    position_offset: int = 0,
    additive_mask: bool = False,
) -> dict[str, Any]:
    """Return whole rows, (B, L), with an attention mask of their segments, for BERT and similar models.

    Raises:
        PackerError: `loss_weights` are asked for without labels, or a kept column does not exist.
    """
    lengths, doc_ids, numbers = all_segments(rows)
    shape = len(rows), len(rows[0]["input_ids"])
    counts = [shape[1]] * len(rows)
    input_ids = np.empty(shape[0] * shape[1], np.int64)
    copy_token_column("input_ids", rows, counts, input_ids)
    segment_ids = numbers.astype(np.int32).repeat(lengths).reshape(shape)
    batch: dict[str, Any] = {
        "input_ids": input_ids.reshape(shape),
        "position_ids": (restart_positions(lengths) + position_offset).reshape(shape),
        "attention_mask": _attention_mask(segment_ids, additive=additive_mask),
    }
    if mlm is not None:
        masked, labels = masked_tokens(rows, input_ids, lengths, doc_ids, mlm=mlm, epoch=epoch)
        batch["input_ids"], batch["labels"] = masked.reshape(shape), labels.reshape(shape)
    types = [TOKEN_TYPES] if TOKEN_TYPES in rows[0] else []
    for name in dict.fromkeys([*types, *keep_tokens]):
        batch[name] = token_values(name, rows, counts, len(input_ids)).reshape(shape)
    if loss_weights is not None:
        if "labels" not in batch:
            raise PackerError('loss_weights need labels: pass mlm, or keep_tokens=["labels"] for those on disk')
        weights = token_loss_weights(batch["labels"].reshape(-1), lengths, doc_ids, per=loss_weights)
        batch["loss_weights"] = weights.reshape(shape)
    batch["segments"] = {"segment_ids": segment_ids}
    batch["segments"].update(kept_segments(rows, lengths, doc_ids, keep))
    return batch


def _attention_mask(segment_ids: NDArray[np.int32], *, additive: bool) -> NDArray[Any]:
    """Return the mask, shape (B, 1, L, L): True where the query (row) and the key (column) share a segment.

    Padding attends to padding, because a softmax over nothing is NaN.

    Example: [1, 1, 2, 0] -> [[T, T, -, -], [T, T, -, -], [-, -, T, -], [-, -, -, T]].
    """
    # L * L comparisons are fastest on the smallest dtype
    small = segment_ids.astype(np.min_scalar_type(int(segment_ids.max(initial=0))))
    mask = small[:, None, :, None] == small[:, None, None, :]
    return np.where(mask, np.float32(0), np.finfo(np.float32).min) if additive else np.asarray(mask)


def masked_tokens(
    rows: Rows,
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    doc_ids: NDArray[np.int64],
    *,
    mlm: MaskedLM,
    epoch: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask the tokens of a batch and return (input_ids, labels), as `mask_tokens` does.

    `doc_starts` come from the rows; segments of padding may be anywhere in the batch.
    """
    doc_starts = np.zeros(len(lengths), np.int64)
    doc_starts[doc_ids != PADDING] = segment_values("doc_starts", rows)
    return mask_tokens(input_ids, lengths, doc_ids, doc_starts, mlm=mlm, epoch=epoch)


def kept_segments(
    rows: Rows, lengths: NDArray[np.int64], doc_ids: NDArray[np.int64], keep: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Return `pooling_positions`, `doc_ids` and the `keep` columns, one value per segment, padding left out."""
    starts = cu_seqlens_of(lengths)[:-1]
    found = {"pooling_positions": starts[doc_ids != PADDING], "doc_ids": segment_values("doc_ids", rows)}
    return found | {name: segment_values(name, rows) for name in keep}


def token_values(name: str, rows: Rows, counts: Sequence[int], total: int) -> NDArray[Any]:
    """Return the first `counts[r]` values of a token column of each row r end to end, padded to (total,).

    Integers become int64. Padding is -100 for `labels`, otherwise 0.

    Raises:
        PackerError: the rows have no such column.
    """
    check_column(name, rows)
    dtype = rows[0][name].dtype
    fill = NO_LOSS if name == "labels" else 0
    values = np.full(total, fill, np.int64 if np.issubdtype(dtype, np.integer) else dtype)
    copy_token_column(name, rows, counts, values[: sum(counts)])
    return values
