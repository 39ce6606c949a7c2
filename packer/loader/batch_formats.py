"""Batch formats: one function per trainer that turns rows into its batch, and `FORMATS`, which names them.

The keyword arguments of a function are the options of `collate` that its format supports.

Below, B is the number of rows, L is max_len and T the number of tokens in the batch. If the dataset has no labels, they
are derived from its segment boundaries. Labels are shifted only for trainers that do not shift them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS, TREE_INPUT_IDS, input_ids_in
from packer.errors import PackerError
from packer.loader.row_order import check_range
from packer.loader.row_segments import (
    LossWeights,
    Rows,
    RowTokens,
    StaticShape,
    cu_seqlens_of,
    mtp_labels,
    restart_positions,
    shift_left,
    token_loss_weights,
)
from packer.loader.token_masking import MaskedLM, mask_tokens
from packer.loader.tree_nodes import Nodes
from packer.shards.row_format import PADDING

TOKEN_TYPES = "token_type_ids"


def make_batch(rows: Rows, *, format: str, epoch: int = 0, **options: Any) -> Any:
    """Return a batch of NumPy arrays in one of `FORMATS`, whose functions document their keys.

    An option that is None is not set.

    Raises:
        PackerError: the format is unknown, or does not support an option or these rows; or the epoch is out of range.
    """
    check_range("epoch", epoch)
    if format not in FORMATS:
        raise PackerError(f"format is {format!r}: choose one of {', '.join(FORMATS)}")
    supported = _options_of(FORMATS[format])
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in supported:
            formats = " or ".join(other for other, make in FORMATS.items() if name in _options_of(make))
            raise PackerError(f"format {format} does not support {name}: leave it out, or choose {formats}")
        if name in ("keep", "keep_tokens") and isinstance(value, str):  # a list of letters
            raise PackerError(f"{name} is {value!r}: pass a list of columns, as in [{value!r}]")
    if "mlm" in given and "labels" in given.get("keep_tokens", ()):
        raise PackerError("keep_tokens has labels, which mlm replaces: leave one of the two out")
    if "mlm" in given and "mtp" in given:
        raise PackerError("mtp predicts tokens further ahead, which mlm shows to the model: leave one of the two out")
    if (format == "encoder" or "mlm" in given) and "seq_tokens" in rows[0]:
        raise PackerError(
            "the rows are aligned, and an encoder would attend to the padding inside segments: pack without --align"
        )
    if TREE_INPUT_IDS in rows[0] and format != "tree":
        raise PackerError(
            f"the rows hold trees (--pairs, --share-prefixes), whose branches would see each other in format {format}: "
            "choose format tree"
        )
    if "epoch" in supported:
        given["epoch"] = epoch
    return FORMATS[format](rows, **given)


@cache
def _options_of(make: Callable[..., object]) -> frozenset[str]:
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
    mtp: int = 0,
) -> dict[str, Any]:
    """Return one sequence of the real tokens, without padding, for Hugging Face models.

    The keys are those of transformers' DataCollatorWithFlattening, plus `use_cache`:

        input_ids, labels, position_ids   int64, shape (1, T); labels are -100 at the first token of every segment
        seq_idx                           int32, shape (1, T): number of the token's segment
        cu_seq_lens_q, cu_seq_lens_k      int32, shape (segments + 1,): index of each segment's first token, then T
        max_length_q, max_length_k        int: tokens in the longest segment
        use_cache                         False: with a cache, transformers ignores packed sequences

    There is no attention_mask, because even a mask of ones disables packed attention in transformers.

    With `mtp`, `mtp_labels`, int64, shape (1, mtp, T), are the targets of extra heads. Those of depth d, from 1, are
    `mtp_labels[:, d - 1]`: at place i, token i + 1 + d, or -100 where that is no trained token of the same segment.

    Unless `keep` is None, `segments` is a key as in `encoder_batch`, without `segment_ids`. With `static`, segments of
    padding fill the batch up to its tokens and segments, and max_length is max_len.
    """
    tokens = RowTokens.real(rows).padded(static)
    input_ids = tokens.column("input_ids", np.int64, padding=0 if static is None else static.pad_id)
    if mlm is None:
        labels = tokens.labels(input_ids)
    else:
        input_ids, labels = _masked_tokens(tokens, input_ids, mlm, epoch)
    cu_seqlens = cu_seqlens_of(tokens.lengths).astype(np.int32)
    longest = int(tokens.lengths.max()) if static is None else static.max_len
    batch: dict[str, Any] = {
        "input_ids": input_ids[None],
        "labels": labels[None],
        "position_ids": restart_positions(tokens.lengths)[None],
        "seq_idx": np.arange(len(tokens.lengths), dtype=np.int32).repeat(tokens.lengths)[None],
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens.copy(),
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
    if loss_weights is not None:
        batch["loss_weights"] = _loss_weights(tokens, batch["labels"], loss_weights)
    if position_offset:
        batch["position_ids"] += position_offset
    if mtp:
        batch["mtp_labels"] = mtp_labels(batch["labels"], tokens.lengths, depths=mtp)
    for name in keep_tokens:
        batch[name] = _kept_tokens(tokens, name)[None]
    if keep is not None:
        batch["segments"] = _kept_segments(tokens, keep)
    return batch


def hf_rows_batch(rows: Rows, *, loss_weights: LossWeights | None = None, mtp: int = 0) -> dict[str, Any]:
    """Return whole rows for Hugging Face models with sdpa or eager attention (flash attention requires B = 1).

    `input_ids`, `labels` and `position_ids`, int64, shape (B, L), and `use_cache`. Models find the segments in the
    positions; padding is a segment of its own. With `mtp`, `mtp_labels`, shape (B, mtp, L), as in `hf_batch`.
    """
    tokens, input_ids, labels, position_ids = _whole_rows(rows)
    batch = {"input_ids": input_ids, "labels": labels, "position_ids": position_ids, "use_cache": False}
    if loss_weights is not None:
        batch["loss_weights"] = _loss_weights(tokens, labels, loss_weights)
    if mtp:
        batch["mtp_labels"] = mtp_labels(labels, tokens.lengths, depths=mtp)
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
    """Return whole rows in which each token attends to its segment, for Hugging Face encoders with sdpa attention.

        input_ids, position_ids   int64, shape (B, L); positions restart with every segment, including padding
        attention_mask            bool, shape (B, 1, L, L): True if both tokens are in one segment, or both padding
        token_type_ids            int64, shape (B, L); if the dataset has them
        labels                    int64, shape (B, L); with `mlm`, not shifted
        segments                  dict with one value per segment; remove it before calling the model:
          segment_ids             int32, shape (B, L): number of the segment in its row, from 1; 0 for padding
          pooling_positions       int64, shape (segments,): first token of each segment, in the rows laid end to end
          doc_ids, `keep`         shape (segments,): document of each segment, and the columns in `keep`

    `hidden.flatten(0, 1)[segments["pooling_positions"]]`, (segments, hidden), is the input for a pooler or a head; the
    `pooler_output` of a Hugging Face model belongs to the first segment of each row only. For encoders with masks of
    their own (ModernBERT has sliding windows, which a mask would replace), use `hf` and `packer.attention.use`.

    With `additive_mask`, the mask is float32: 0 where tokens attend to each other, elsewhere the lowest number.

    Raises:
        PackerError: `loss_weights` are asked for without labels, or a kept column does not exist.
    """
    tokens = RowTokens.whole(rows)
    shape = len(rows), -1
    input_ids = tokens.column("input_ids", np.int64)
    segment_ids = tokens.segment_ids().reshape(shape)
    batch: dict[str, Any] = {
        "input_ids": input_ids.reshape(shape),
        "position_ids": (restart_positions(tokens.lengths) + position_offset).reshape(shape),
        "attention_mask": _attention_mask(segment_ids, additive=additive_mask),
    }
    if mlm is not None:
        masked, labels = _masked_tokens(tokens, input_ids, mlm, epoch)
        batch["input_ids"], batch["labels"] = masked.reshape(shape), labels.reshape(shape)
    types = [TOKEN_TYPES] if TOKEN_TYPES in rows[0] else []
    for name in dict.fromkeys([*types, *keep_tokens]):
        values = _kept_tokens(tokens, name)
        batch[name] = values.reshape(len(rows), -1, *values.shape[1:])
    if loss_weights is not None:
        if "labels" not in batch:
            raise PackerError('loss_weights need labels: pass mlm, or keep_tokens=["labels"] for those on disk')
        batch["loss_weights"] = _loss_weights(tokens, batch["labels"], loss_weights)
    batch["segments"] = {"segment_ids": segment_ids, **_kept_segments(tokens, keep)}
    return batch


def trl_batch(rows: Rows) -> list[dict[str, Any]]:
    """Return B examples for TRL's DataCollatorForLanguageModeling(padding_free=True).

    `input_ids` and `labels`, int64 arrays of shape (L,) whatever `tensors` is, and `seq_lengths`, a list.
    """
    _, input_ids, labels, _ = _whole_rows(rows)
    lengths = [row["seq_lengths"].tolist() for row in rows]
    return _examples(input_ids=input_ids, labels=labels, seq_lengths=lengths)


def torchtitan_batch(rows: Rows, *, padding_mask: bool = False) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Return `({"input", "positions"}, labels)`, int64, shape (B, L), as torchtitan's training step unpacks them.

    Labels are shifted. `padding_mask` adds a key of that name to the dict: bool, shape (B, L), True for padding. The
    trainer passes it to the model, so versions up to 0.3, whose models do not take it, fail.
    """
    tokens, input_ids, labels, position_ids = _whole_rows(rows)
    inputs: dict[str, Any] = {"input": input_ids, "positions": position_ids}
    if padding_mask:
        inputs["padding_mask"] = tokens.padding().reshape(input_ids.shape)
    return inputs, shift_left(labels, NO_LOSS)


def torchtune_batch(rows: Rows) -> list[dict[str, Any]]:
    """Return B examples as torchtune's PackedDataset does, for padded_collate_packed; its recipes shift the labels.

    `tokens`, `labels` and `input_pos`, shape (L,), and `seq_lens`, shape (segments,), int64.
    """
    _, input_ids, labels, position_ids = _whole_rows(rows)
    lengths = [row["seq_lengths"].astype(np.int64) for row in rows]
    return _examples(tokens=input_ids, labels=labels, input_pos=position_ids, seq_lens=lengths)


def megatron_batch(
    rows: Rows,
    *,
    static: StaticShape | None = None,
    loss_weights: LossWeights | None = None,
    padding_mask: bool = False,
    mtp: int = 0,
) -> dict[str, Any]:
    """Return the fields of Megatron-LM's SFT dataset in a micro-batch of one packed sequence.

    `tokens`, `labels` (shifted; -100 for no loss) and `position_ids`, int64, shape (1, B * L); `loss_mask`, float32, of
    the same shape; `cu_seqlens`, int32, shape (1, segments + 1); `max_seqlen`, int32, shape (1,). With `static`,
    segments of padding fill the sequence up to its tokens and segments, and max_seqlen is max_len. `padding_mask` adds
    a key of that name for `GPTModel.forward`: bool, shape (1, B * L), True for padding. With `mtp`, `mtp_labels`, shape
    (1, mtp, B * L), as in `hf_batch`.
    """
    tokens = RowTokens.whole(rows).padded(static)
    input_ids = tokens.column("input_ids", np.int64, padding=0 if static is None else static.pad_id)
    labels = tokens.labels(input_ids)[None]
    shifted = shift_left(labels, NO_LOSS)
    longest = int(tokens.lengths.max()) if static is None else static.max_len
    batch = {
        "tokens": input_ids[None],
        "labels": shifted,
        "loss_mask": (shifted != NO_LOSS).astype(np.float32),
        "position_ids": restart_positions(tokens.lengths)[None],
        "cu_seqlens": cu_seqlens_of(tokens.lengths).astype(np.int32)[None],
        "max_seqlen": np.array([longest], np.int32),
    }
    if loss_weights is not None:
        batch["loss_weights"] = shift_left(_loss_weights(tokens, labels, loss_weights), 0.0)
    if padding_mask:
        batch["padding_mask"] = tokens.padding()[None]
    if mtp:
        batch["mtp_labels"] = mtp_labels(labels, tokens.lengths, depths=mtp)
    return batch


def segment_ids_batch(rows: Rows) -> dict[str, Any]:
    """Return whole rows with numbered segments, for MaxText and JAX (with `tensors="numpy"`).

    `inputs`, `inputs_position`, `inputs_segmentation`, `targets`, `targets_position`, `targets_segmentation`, int32,
    shape (B, L). Segments count from 1 in every row; 0 is padding, and in `targets_segmentation` any token without
    loss, because MaxText derives its loss mask from it. Targets are shifted.
    """
    tokens, input_ids, labels, position_ids = _whole_rows(rows, np.int32)
    segmentation = tokens.segment_ids().reshape(input_ids.shape)
    positions = np.where(segmentation, position_ids, 0).astype(np.int32)
    targets = shift_left(labels, NO_LOSS)
    trained = targets != NO_LOSS
    return {
        "inputs": input_ids,
        "inputs_position": positions,
        "inputs_segmentation": segmentation,
        "targets": np.where(trained, targets, 0).astype(np.int32),
        "targets_position": positions.copy(),
        "targets_segmentation": np.where(trained, segmentation, 0).astype(np.int32),
    }


def tree_batch(
    rows: Rows,
    *,
    static: StaticShape | None = None,
    loss_weights: LossWeights | None = None,
    keep: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return one sequence of the real tokens of rows that may hold trees, for `attention.use`.

        input_ids, labels, position_ids   int64, shape (1, T); labels are -100 at the first token of every branch
        tree                              int32, shape (2, T): for each token k, the place u so that the tokens from k
                                          to u - 1 see it; and its position, which continues that of its beginning
        use_cache                         False

    For other attention, `packer.attention.block_mask(batch["tree"])` is a mask for FlexAttention, and `dense_mask` one
    for sdpa. Weights of the loss are those of the separate documents. Unless `keep` is None, `segments` is a key as in
    `encoder_batch`, without `segment_ids`, and has the number of each token's segment, from 0, and of its document in
    the record (0 is the chosen answer of a pair): `segment_of_token` and `answer_of_token`, int64, shape (T,); the
    latter is -1 for padding. With `static`, the batch is padded to T tokens.
    """
    tokens = RowTokens.real(rows).padded(static)
    name = input_ids_in(rows[0])
    input_ids = tokens.column(name, np.int64, padding=0 if static is None else static.pad_id)
    labels, nodes = tokens.labels(input_ids), Nodes.of(tokens)
    positions = nodes.positions()
    batch: dict[str, Any] = {
        "input_ids": input_ids[None],
        "labels": labels[None],
        "position_ids": positions[None],
        "tree": np.stack([nodes.visible_until(), positions]).astype(np.int32),
        "use_cache": False,
    }
    if loss_weights is not None:
        batch["loss_weights"] = nodes.loss_weights(labels, tokens.doc_ids, per=loss_weights)[None]
    if keep is not None:
        of_tokens = {"segment_of_token": nodes.segments, "answer_of_token": nodes.answers}
        of_tokens = {name: values.repeat(nodes.lengths) for name, values in of_tokens.items()}
        batch["segments"] = {**_kept_segments(tokens, keep), **of_tokens}
    return batch


FORMATS: dict[str, Callable[..., Any]] = {
    "hf": hf_batch,
    "hf_rows": hf_rows_batch,
    "encoder": encoder_batch,
    "trl": trl_batch,
    "torchtitan": torchtitan_batch,
    "torchtune": torchtune_batch,
    "megatron": megatron_batch,
    "segment_ids": segment_ids_batch,
    "tree": tree_batch,
}


def _whole_rows(
    rows: Rows, dtype: type[np.integer[Any]] = np.int64
) -> tuple[RowTokens, NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Return (tokens, input_ids, labels, position_ids) of whole rows; the last three have the shape (B, L)."""
    tokens, shape = RowTokens.whole(rows), (len(rows), -1)
    input_ids = tokens.column("input_ids", dtype)
    labels = tokens.labels(input_ids)
    return tokens, input_ids.reshape(shape), labels.reshape(shape), restart_positions(tokens.lengths).reshape(shape)


def _examples(**columns: Sequence[object] | NDArray[Any]) -> list[dict[str, Any]]:
    """Return one dict per row, given a value per row for each name."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _loss_weights(tokens: RowTokens, labels: NDArray[Any], per: LossWeights) -> NDArray[np.float64]:
    """Return the weights of labels, in their shape."""
    weights = token_loss_weights(labels.reshape(-1), tokens.lengths, tokens.doc_ids, per=per)
    return weights.reshape(labels.shape)


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
    tokens: RowTokens, input_ids: NDArray[np.int64], mlm: MaskedLM, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask the tokens of a batch and return (input_ids, labels), as `mask_tokens` does."""
    doc_starts = np.zeros(len(tokens.lengths), np.int64)
    doc_starts[tokens.doc_ids != PADDING] = tokens.segment_column("doc_starts")
    return mask_tokens(input_ids, tokens.lengths, tokens.doc_ids, doc_starts, mlm=mlm, epoch=epoch)


def _kept_tokens(tokens: RowTokens, name: str) -> NDArray[Any]:
    """Return a token column that was asked for by name; padding is -100 for labels, otherwise 0."""
    return tokens.column(name, padding=NO_LOSS if name == "labels" else 0)


def _kept_segments(tokens: RowTokens, keep: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return `pooling_positions`, `doc_ids` and the `keep` columns, one value per segment, padding left out."""
    starts = cu_seqlens_of(tokens.lengths)[:-1]
    found = {"pooling_positions": starts[tokens.doc_ids != PADDING], "doc_ids": tokens.segment_column("doc_ids")}
    return found | {name: tokens.segment_column(name) for name in keep}
