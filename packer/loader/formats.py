"""Rows as the batches that trainers read: one function per format, and one dict of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.dataset import NO_LOSS
from packer.loader.encoders import encoder_batch, mask_segments, segments_of, token_values
from packer.loader.masking import MaskedLM
from packer.loader.segments import (
    LossWeights,
    boundaries_of,
    copy_rows,
    document_keys,
    labels_of_tokens,
    real_segments,
    restart_positions,
    shifted,
    weights_of,
)
from packer.loader.static import StaticShape, pad_boundaries, pad_segments
from packer.shards.columns import PADDING

Format = Literal["hf", "hf_rows", "encoder", "trl", "torchtitan", "torchtune", "megatron", "segment_ids"]
Rows = Sequence[Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatOptions:
    """What a batch has beyond its format."""

    static: StaticShape | None = None
    """The shape that all batches get; for `hf` and `megatron`."""

    loss_weights: LossWeights | None = None
    """Add the key `loss_weights`; for `hf`, `hf_rows`, `encoder` and `megatron`."""

    mlm: MaskedLM | None = None
    """Mask tokens, and train on these; for `hf` and `encoder`."""

    epoch: int = 0
    """Of the masks."""

    keep: Sequence[str] | None = None
    """Add the key `segments` with these segment columns; for `hf` and `encoder`, which has the key anyway."""

    keep_tokens: Sequence[str] = ()
    """Add these token columns; for `hf` and `encoder`."""

    position_offset: int = 0
    """Position of every segment's first token; for `hf` and `encoder`."""

    additive_mask: bool = False
    """`attention_mask` in float32, to be added; for `encoder`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """Rows one below the other, padding included; every row is tiled by its segments."""

    input_ids: NDArray[np.int32]
    """Shape (rows, max_len)."""

    labels: NDArray[np.int32]
    """Shape (rows, max_len); not shifted."""

    position_ids: NDArray[np.int64]
    """Shape (rows, max_len); restarts at 0 with every segment, a padding tail included."""

    lengths: NDArray[np.int64]
    """Shape (segments,): extents of all rows in order, padding tails included; they sum to rows * max_len."""

    doc_ids: NDArray[np.int64]
    """Shape (segments,): -1 for a padding tail."""

    segments: NDArray[np.int64]
    """Shape (segments,): number of the segment in its row, from 1; 0 for a padding tail."""


def hf_batch(rows: Rows, options: FormatOptions) -> dict[str, Any]:
    """One sequence of real tokens [1, T], for Hugging Face models; see `collate`."""
    lengths, doc_ids, ends = real_segments(rows)
    if not len(lengths):  # padding alone: a model cannot run on no tokens
        ends = [len(row["input_ids"]) for row in rows]
        lengths, doc_ids = np.array(ends, np.int64), np.full(len(rows), PADDING, np.int64)
    tokens = int(lengths.sum())
    if options.static is not None:
        lengths, doc_ids = pad_segments(lengths, doc_ids, options.static)
    boundaries = boundaries_of(lengths)
    total = int(boundaries[-1])
    input_ids = np.empty(total, np.int64)
    copy_rows("input_ids", rows, ends, input_ids[:tokens])
    if options.static is not None:
        input_ids[tokens:] = options.static.pad_id
    if options.mlm is not None:
        input_ids, labels = mask_segments(rows, input_ids, lengths, doc_ids, mlm=options.mlm, epoch=options.epoch)
    elif "labels" in rows[0]:
        labels = np.empty(total, np.int64)
        copy_rows("labels", rows, ends, labels[:tokens])
        labels[tokens:] = NO_LOSS
    else:  # packed with --no-labels
        labels = labels_of_tokens(input_ids, boundaries[:-1])
        labels[np.repeat(doc_ids == PADDING, lengths)] = NO_LOSS
    batch = flat_arrays(input_ids, labels, lengths, options.static)
    if options.loss_weights is not None:
        batch["loss_weights"] = weights_of(labels, lengths, doc_ids, per=options.loss_weights)[None]
    if options.position_offset:
        batch["position_ids"] += options.position_offset
    for name in options.keep_tokens:
        batch[name] = token_values(name, rows, ends, total)[None]
    if options.keep is not None:
        batch["segments"] = segments_of(rows, boundaries, doc_ids, options.keep)
    return batch


def flat_arrays(
    input_ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    lengths: NDArray[np.int64],
    static: StaticShape | None = None,
) -> dict[str, Any]:
    """The keys of DataCollatorWithFlattening, and `use_cache`, for segments that lie end to end."""
    boundaries = pad_boundaries(boundaries_of(lengths), static).astype(np.int32)
    longest = int(lengths.max()) if static is None else static.max_len
    return {
        "input_ids": input_ids[None],
        "labels": labels[None],
        "position_ids": restart_positions(lengths)[None],
        "seq_idx": np.arange(len(lengths), dtype=np.int32).repeat(lengths)[None],
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries.copy(),
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }


def hf_rows_batch(rows: Rows, options: FormatOptions) -> dict[str, Any]:
    """Rows as they are [B, L], for Hugging Face models that find boundaries in `position_ids`."""
    grid = _grid(rows)
    batch = {
        "input_ids": grid.input_ids.astype(np.int64),
        "labels": grid.labels.astype(np.int64),
        "position_ids": grid.position_ids,
        "use_cache": False,
    }
    return _with_weights(batch, grid, options, grid.labels.shape, shift=False)


def trl_batch(rows: Rows, options: FormatOptions) -> list[dict[str, Any]]:
    """Examples for TRL's own collator, which flattens them by `seq_lengths`."""
    grid = _grid(rows)
    return [
        {
            "input_ids": grid.input_ids[number].astype(np.int64),
            "labels": grid.labels[number].astype(np.int64),
            "seq_lengths": row["seq_lengths"].tolist(),
        }
        for number, row in enumerate(rows)
    ]


def torchtitan_batch(rows: Rows, options: FormatOptions) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """(inputs, labels) as torchtitan's training step unpacks them; labels are shifted."""
    grid = _grid(rows)
    inputs = {"input": grid.input_ids.astype(np.int64), "positions": grid.position_ids}
    return inputs, shifted(grid.labels.astype(np.int64), NO_LOSS)


def torchtune_batch(rows: Rows, options: FormatOptions) -> list[dict[str, Any]]:
    """Examples for torchtune's padded_collate_packed, as its PackedDataset gives them; its recipes shift the labels."""
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


def megatron_batch(rows: Rows, options: FormatOptions) -> dict[str, Any]:
    """A micro-batch of one packed sequence [1, B * L], as Megatron-LM's SFT dataset gives; labels are shifted."""
    grid = _grid(rows)
    labels = shifted(grid.labels.reshape(1, -1).astype(np.int64), NO_LOSS)
    static = options.static
    longest = int(grid.lengths.max()) if static is None else static.max_len
    batch = {
        "tokens": grid.input_ids.reshape(1, -1).astype(np.int64),
        "labels": labels,
        "loss_mask": (labels != NO_LOSS).astype(np.float32),
        "position_ids": grid.position_ids.reshape(1, -1),
        "cu_seqlens": pad_boundaries(boundaries_of(grid.lengths), static).astype(np.int32)[None],
        "max_seqlen": np.array([longest], np.int32),
    }
    return _with_weights(batch, grid, options, (1, -1), shift=True)


def segment_ids_batch(rows: Rows, options: FormatOptions) -> dict[str, Any]:
    """Rows [B, L] with numbered segments, for MaxText and JAX; targets are shifted, and 0 in a segmentation is padding.

    `targets_segmentation` is 0 wherever there is no loss: MaxText takes its loss mask from there.
    """
    grid = _grid(rows)
    segmentation = np.repeat(grid.segments, grid.lengths).astype(np.int32).reshape(grid.labels.shape)
    positions = np.where(segmentation, grid.position_ids, 0).astype(np.int32)
    labels = shifted(grid.labels, NO_LOSS)
    trained = labels != NO_LOSS
    return {
        "inputs": grid.input_ids,
        "inputs_position": positions,
        "inputs_segmentation": segmentation,
        "targets": np.where(trained, labels, 0).astype(np.int32),
        "targets_position": positions.copy(),
        "targets_segmentation": np.where(trained, segmentation, 0).astype(np.int32),
    }


FORMATS: dict[str, Callable[[Rows, FormatOptions], Any]] = {
    "hf": hf_batch,
    "hf_rows": hf_rows_batch,
    "encoder": encoder_batch,
    "trl": trl_batch,
    "torchtitan": torchtitan_batch,
    "torchtune": torchtune_batch,
    "megatron": megatron_batch,
    "segment_ids": segment_ids_batch,
}

_HAVE_STATIC = ("hf", "megatron")  # the others have one shape anyway
_HAVE_WEIGHTS = ("hf", "hf_rows", "encoder", "megatron")  # the others' losses have no place for them
_ENCODERS = ("hf", "encoder")
_OF_ENCODERS = {"mlm": None, "keep": None, "keep_tokens": (), "position_offset": 0}


def make_batch(rows: Rows, *, format: str, options: FormatOptions) -> Any:
    """Make a batch of numpy arrays.

    Raises:
        PackerError: the format is unknown, or does not have what is asked for.
    """
    if format not in FORMATS:
        raise PackerError(f"format is {format!r}: choose one of {', '.join(FORMATS)}")
    if options.static is not None and format not in _HAVE_STATIC:
        raise PackerError(f"static is for {' and '.join(_HAVE_STATIC)}: {format} has one shape, leave it out")
    if options.loss_weights is not None and format not in _HAVE_WEIGHTS:
        raise PackerError(f"loss_weights are for {', '.join(_HAVE_WEIGHTS)}: {format} has no place for them")
    if options.loss_weights not in (None, "sequence", "document"):
        raise PackerError(
            f"loss_weights is {options.loss_weights!r}: choose sequence or document, or None for the token mean"
        )
    for name, plain in _OF_ENCODERS.items() if format not in _ENCODERS else ():
        if getattr(options, name) != plain:
            raise PackerError(f"{name} is for {' and '.join(_ENCODERS)}: {format} has no place for it, leave it out")
    if options.additive_mask and format != "encoder":
        raise PackerError(f"additive_mask is for encoder: {format} has no mask, leave it out")
    if (format == "encoder" or options.mlm is not None) and "seq_tokens" in rows[0]:
        raise PackerError(
            "the rows are aligned, and an encoder would see the padding inside its segments: pack without --align"
        )
    if options.mlm is not None and "labels" in options.keep_tokens:
        raise PackerError("keep_tokens names labels, and those of mlm take their place: leave one of them out")
    return FORMATS[format](rows, options)


def _grid(rows: Rows) -> _Grid:
    lengths = np.concatenate([row["seq_lengths"] for row in rows], dtype=np.int64)
    doc_ids = np.concatenate([document_keys(row) for row in rows], dtype=np.int64)
    input_ids = np.stack([row["input_ids"] for row in rows]).astype(np.int32, copy=False)
    if "labels" in rows[0]:
        labels = np.stack([row["labels"] for row in rows]).astype(np.int32, copy=False)
    else:  # packed with --no-labels
        labels = labels_of_tokens(input_ids.reshape(-1), boundaries_of(lengths)[:-1])
        labels[np.repeat(doc_ids == PADDING, lengths)] = NO_LOSS
        labels = labels.reshape(input_ids.shape)
    numbers = np.concatenate([np.arange(1, len(row["doc_ids"]) + 1) for row in rows])
    return _Grid(
        input_ids=input_ids,
        labels=labels,
        position_ids=restart_positions(lengths).reshape(input_ids.shape),
        lengths=lengths,
        doc_ids=doc_ids,
        segments=np.where(doc_ids == PADDING, 0, numbers),
    )


def _with_weights(
    batch: dict[str, Any], grid: _Grid, options: FormatOptions, shape: tuple[int, ...], *, shift: bool
) -> dict[str, Any]:
    if options.loss_weights is None:
        return batch
    weights = weights_of(grid.labels.reshape(-1), grid.lengths, grid.doc_ids, per=options.loss_weights).reshape(shape)
    return {**batch, "loss_weights": shifted(weights, 0.0) if shift else weights}
