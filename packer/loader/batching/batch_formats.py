"""Batch formats: one function per trainer that turns rows into its batch, and `FORMATS`, which names them.

The keyword arguments of a function are the options of `collate` that its format supports.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.batching.batch_shape import StaticShape, pad_cu_seqlens, pad_segments
from packer.loader.batching.token_masking import MaskedLM, mask_tokens
from packer.loader.row_segments import (
    LossWeights,
    Rows,
    all_segments,
    check_column,
    copy_token_column,
    cu_seqlens_of,
    labels_from_tokens,
    real_segments,
    restart_positions,
    segment_values,
    shift_left,
    token_loss_weights,
)
from packer.shards.row_format import PADDING

TOKEN_TYPES = "token_type_ids"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """Whole rows stacked, padding included."""

    input_ids: NDArray[np.int32]
    """Shape (rows, max_len)."""

    labels: NDArray[np.int32]
    """Shape (rows, max_len); not shifted."""

    position_ids: NDArray[np.int64]
    """Shape (rows, max_len); restarts at 0 with every segment, including a padding tail."""

    lengths: NDArray[np.int64]
    """Shape (segments,): segment lengths of all rows in order, padding tails included; they sum to rows * max_len."""

    doc_ids: NDArray[np.int64]
    """Shape (segments,): document of each segment; -1 for a padding tail."""

    numbers: NDArray[np.int64]
    """Shape (segments,): number of the segment in its row, from 1; 0 for a padding tail."""


def make_batch(rows: Rows, *, format: str, epoch: int = 0, **options: Any) -> Any:
    """Return a batch of NumPy arrays in one of `FORMATS`; `collate` documents their keys and options.

    An option that is None is not set.

    Raises:
        PackerError: the format is unknown, or does not support an option or these rows.
    """
    if format not in FORMATS:
        raise PackerError(f"format is {format!r}: choose one of {', '.join(FORMATS)}")
    supported = _options_of(FORMATS[format])
    given = {name: value for name, value in options.items() if value is not None}
    for name in [name for name in given if name not in supported]:
        formats = " or ".join(other for other, make in FORMATS.items() if name in _options_of(make))
        raise PackerError(f"format {format} does not support {name}: leave it out, or choose {formats}")
    _check_options(format, rows, **given)
    if "epoch" in supported:
        given["epoch"] = epoch
    return FORMATS[format](rows, **given)


def _check_options(
    format: str,
    rows: Rows,
    *,
    loss_weights: str | None = None,
    mlm: MaskedLM | None = None,
    keep_tokens: Sequence[str] = (),
    **others: Any,
) -> None:
    """Check the values of options, and that they do not exclude each other."""
    if loss_weights not in (None, "sequence", "document"):
        raise PackerError(
            f"loss_weights is {loss_weights!r}: choose sequence or document, or None for the mean over tokens"
        )
    if mlm is not None and "labels" in keep_tokens:
        raise PackerError("keep_tokens has labels, which mlm replaces: leave one of the two out")
    if (format == "encoder" or mlm is not None) and "seq_tokens" in rows[0]:
        raise PackerError(
            "the rows are aligned, and an encoder would attend to the padding inside segments: pack without --align"
        )


@cache
def _options_of(make: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the options that a batch format supports: all its arguments after the rows."""
    return frozenset(list(inspect.signature(make).parameters)[1:])


def hf_batch(
    rows: Rows,
    *,
    static: StaticShape | None = None,
    loss_weights: LossWeights | None = None,
    mlm: MaskedLM | None = None,
    epoch: int = 0,
    keep: Sequence[str] | None = None,
    keep_tokens: Sequence[str] = (),
    position_offset: int = 0,
) -> dict[str, Any]:
    """Return one sequence of the real tokens, (1, T), for Hugging Face models."""
    lengths, doc_ids, counts = real_segments(rows)
    if not len(lengths):  # padding alone is kept, because a model cannot run on no tokens
        counts = [len(row["input_ids"]) for row in rows]
        lengths, doc_ids = np.array(counts, np.int64), np.full(len(rows), PADDING, np.int64)
    tokens = int(lengths.sum())
    if static is not None:
        lengths, doc_ids = pad_segments(lengths, doc_ids, static)
    total = int(lengths.sum())
    input_ids = np.empty(total, np.int64)
    copy_token_column("input_ids", rows, counts, input_ids[:tokens])
    if static is not None:
        input_ids[tokens:] = static.pad_id
    if mlm is not None:
        input_ids, labels = _masked_tokens(rows, input_ids, lengths, doc_ids, mlm=mlm, epoch=epoch)
    elif "labels" in rows[0]:
        labels = _token_values("labels", rows, counts, total)
    else:  # packed with --no-labels
        labels = labels_from_tokens(input_ids, lengths, doc_ids)
    batch = flat_batch(input_ids, labels, lengths, static)
    if loss_weights is not None:
        batch["loss_weights"] = token_loss_weights(labels, lengths, doc_ids, per=loss_weights)[None]
    if position_offset:
        batch["position_ids"] += position_offset
    for name in keep_tokens:
        batch[name] = _token_values(name, rows, counts, total)[None]
    if keep is not None:
        batch["segments"] = _kept_segments(rows, lengths, doc_ids, keep)
    return batch


def flat_batch(
    input_ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    lengths: NDArray[np.int64],
    static: StaticShape | None = None,
) -> dict[str, Any]:
    """Return the keys of DataCollatorWithFlattening, and `use_cache`, for segments that lie end to end.

    Args:
        input_ids: (T,) tokens.
        labels: (T,) labels, not shifted.
        lengths: (segments,) segment lengths, which sum to T.
        static: shape whose segments `cu_seq_lens_q` and `cu_seq_lens_k` are padded to.
    """
    cu_seqlens = pad_cu_seqlens(cu_seqlens_of(lengths), static).astype(np.int32)
    longest = int(lengths.max()) if static is None else static.max_len
    return {
        "input_ids": input_ids[None],
        "labels": labels[None],
        "position_ids": restart_positions(lengths)[None],
        "seq_idx": np.arange(len(lengths), dtype=np.int32).repeat(lengths)[None],
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens.copy(),
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }


def hf_rows_batch(rows: Rows, *, loss_weights: LossWeights | None = None) -> dict[str, Any]:
    """Return whole rows, (B, L), for Hugging Face models that find segment boundaries in `position_ids`."""
    grid = _grid(rows)
    batch = {
        "input_ids": grid.input_ids.astype(np.int64),
        "labels": grid.labels.astype(np.int64),
        "position_ids": grid.position_ids,
        "use_cache": False,
    }
    if loss_weights is not None:
        batch["loss_weights"] = _loss_weights(grid, loss_weights).reshape(grid.labels.shape)
    return batch


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
        masked, labels = _masked_tokens(rows, input_ids, lengths, doc_ids, mlm=mlm, epoch=epoch)
        batch["input_ids"], batch["labels"] = masked.reshape(shape), labels.reshape(shape)
    types = [TOKEN_TYPES] if TOKEN_TYPES in rows[0] else []
    for name in dict.fromkeys([*types, *keep_tokens]):
        batch[name] = _token_values(name, rows, counts, len(input_ids)).reshape(shape)
    if loss_weights is not None:
        if "labels" not in batch:
            raise PackerError('loss_weights need labels: pass mlm, or keep_tokens=["labels"] for those on disk')
        weights = token_loss_weights(batch["labels"].reshape(-1), lengths, doc_ids, per=loss_weights)
        batch["loss_weights"] = weights.reshape(shape)
    batch["segments"] = {"segment_ids": segment_ids}
    batch["segments"].update(_kept_segments(rows, lengths, doc_ids, keep))
    return batch


def trl_batch(rows: Rows) -> list[dict[str, Any]]:
    """Return examples for TRL's own collator, which flattens them by `seq_lengths`."""
    grid = _grid(rows)
    return [
        {
            "input_ids": grid.input_ids[number].astype(np.int64),
            "labels": grid.labels[number].astype(np.int64),
            "seq_lengths": row["seq_lengths"].tolist(),
        }
        for number, row in enumerate(rows)
    ]


def torchtitan_batch(rows: Rows) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Return (inputs, labels), (B, L), as torchtitan's training step unpacks them; labels are shifted."""
    grid = _grid(rows)
    inputs = {"input": grid.input_ids.astype(np.int64), "positions": grid.position_ids}
    return inputs, shift_left(grid.labels.astype(np.int64), NO_LOSS)


def torchtune_batch(rows: Rows) -> list[dict[str, Any]]:
    """Return examples as torchtune's PackedDataset does, for padded_collate_packed; its recipes shift the labels."""
    grid = _grid(rows)
    return [
        {
            "tokens": grid.input_ids[number].astype(np.int64),
            "labels": grid.labels[number].astype(np.int64),
            "input_pos": grid.position_ids[number],
            "seq_lens": row["seq_lengths"].astype(np.int64),
        }
        for number, row in enumerate(rows)
    ]


def megatron_batch(
    rows: Rows, *, static: StaticShape | None = None, loss_weights: LossWeights | None = None
) -> dict[str, Any]:
    """Return a micro-batch of one packed sequence, (1, B * L), as Megatron-LM's SFT dataset; labels are shifted."""
    grid = _grid(rows)
    labels = shift_left(grid.labels.reshape(1, -1).astype(np.int64), NO_LOSS)
    longest = int(grid.lengths.max()) if static is None else static.max_len
    batch = {
        "tokens": grid.input_ids.reshape(1, -1).astype(np.int64),
        "labels": labels,
        "loss_mask": (labels != NO_LOSS).astype(np.float32),
        "position_ids": grid.position_ids.reshape(1, -1),
        "cu_seqlens": pad_cu_seqlens(cu_seqlens_of(grid.lengths), static).astype(np.int32)[None],
        "max_seqlen": np.array([longest], np.int32),
    }
    if loss_weights is not None:
        batch["loss_weights"] = shift_left(_loss_weights(grid, loss_weights)[None], 0.0)
    return batch


def segment_ids_batch(rows: Rows) -> dict[str, Any]:
    """Return whole rows, (B, L), with numbered segments, for MaxText and JAX; targets are shifted.

    `targets_segmentation` is 0 wherever there is no loss, because MaxText derives its loss mask from it.
    """
    grid = _grid(rows)
    segmentation = np.repeat(grid.numbers, grid.lengths).astype(np.int32).reshape(grid.labels.shape)
    positions = np.where(segmentation, grid.position_ids, 0).astype(np.int32)
    labels = shift_left(grid.labels, NO_LOSS)
    trained = labels != NO_LOSS
    return {
        "inputs": grid.input_ids,
        "inputs_position": positions,
        "inputs_segmentation": segmentation,
        "targets": np.where(trained, labels, 0).astype(np.int32),
        "targets_position": positions.copy(),
        "targets_segmentation": np.where(trained, segmentation, 0).astype(np.int32),
    }


FORMATS: dict[str, Callable[..., Any]] = {
    "hf": hf_batch,
    "hf_rows": hf_rows_batch,
    "encoder": encoder_batch,
    "trl": trl_batch,
    "torchtitan": torchtitan_batch,
    "torchtune": torchtune_batch,
    "megatron": megatron_batch,
    "segment_ids": segment_ids_batch,
}


def _grid(rows: Rows) -> _Grid:
    lengths, doc_ids, numbers = all_segments(rows)
    input_ids = np.stack([row["input_ids"] for row in rows]).astype(np.int32, copy=False)
    if "labels" in rows[0]:
        labels = np.stack([row["labels"] for row in rows]).astype(np.int32, copy=False)
    else:  # packed with --no-labels
        labels = labels_from_tokens(input_ids.reshape(-1), lengths, doc_ids).reshape(input_ids.shape)
    return _Grid(
        input_ids=input_ids,
        labels=labels,
        position_ids=restart_positions(lengths).reshape(input_ids.shape),
        lengths=lengths,
        doc_ids=doc_ids,
        numbers=numbers,
    )


def _loss_weights(grid: _Grid, per: LossWeights) -> NDArray[np.float64]:
    return token_loss_weights(grid.labels.reshape(-1), grid.lengths, grid.doc_ids, per=per)


def _attention_mask(segment_ids: NDArray[np.int32], *, additive: bool) -> NDArray[Any]:
    """Return the mask, shape (B, 1, L, L): True where the query (row) and the key (column) share a segment.

    Padding attends to padding, because a softmax over nothing is NaN.

    Example: [1, 1, 2, 0] -> [[T, T, -, -], [T, T, -, -], [-, -, T, -], [-, -, -, T]].
    """
    # L * L comparisons are fastest on the smallest dtype
    small = segment_ids.astype(np.min_scalar_type(int(segment_ids.max(initial=0))))
    mask = small[:, None, :, None] == small[:, None, None, :]
    return np.where(mask, np.float32(0), np.finfo(np.float32).min) if additive else np.asarray(mask)


def _masked_tokens(
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


def _kept_segments(
    rows: Rows, lengths: NDArray[np.int64], doc_ids: NDArray[np.int64], keep: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Return `pooling_positions`, `doc_ids` and the `keep` columns, one value per segment, padding left out."""
    starts = cu_seqlens_of(lengths)[:-1]
    found = {"pooling_positions": starts[doc_ids != PADDING], "doc_ids": segment_values("doc_ids", rows)}
    return found | {name: segment_values(name, rows) for name in keep}


def _token_values(name: str, rows: Rows, counts: Sequence[int], total: int) -> NDArray[Any]:
    """Return the first `counts[r]` values of a token column of each row r end to end, padded to (total,).

    Integers become int64. Padding is -100 for `labels`, otherwise 0.
    """
    check_column(name, rows)
    dtype = rows[0][name].dtype
    fill = NO_LOSS if name == "labels" else 0
    values = np.full(total, fill, np.int64 if np.issubdtype(dtype, np.integer) else dtype)
    copy_token_column(name, rows, counts, values[: sum(counts)])
    return values
