"""Rows or raw examples to one batch of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.dataset import NO_LOSS, PackedDataset
from packer.loader.draws import check_range
from packer.loader.formats import Format, FormatOptions, flat_arrays, make_batch
from packer.loader.inputs import examples_as_arrays, rows_as_arrays
from packer.loader.masking import MaskedLM
from packer.loader.sampler import BatchSampler
from packer.loader.segments import LossWeights
from packer.loader.static import StaticShape

Tensors = Literal["torch", "numpy"]


def collate(
    rows: Sequence[Mapping[str, NDArray[Any]]],
    *,
    format: Format = "hf",
    static: StaticShape | None = None,
    loss_weights: LossWeights | None = None,
    mlm: MaskedLM | None = None,
    epoch: int | None = None,
    keep: Sequence[str] | None = None,
    keep_tokens: Sequence[str] = (),
    position_offset: int = 0,
    additive_mask: bool = False,
    tensors: Tensors = "torch",
) -> Any:
    """Make one batch of rows, as a trainer reads it; a `collate_fn` for DataLoader.

    B is the number of rows, L is max_len and T the tokens of the batch. Labels that were not written are made from
    the boundaries. What a trainer shifts by itself is not shifted here, and the reverse.

    `hf`, for Hugging Face models: one sequence of the real tokens, padding left out. The keys are those of
    transformers' DataCollatorWithFlattening, plus `use_cache`:

        input_ids, labels, position_ids   int64, shape (1, T); labels are -100 at every segment's first token
        seq_idx                           int32, shape (1, T): number of the segment each token belongs to
        cu_seq_lens_q, cu_seq_lens_k      int32, shape (segments + 1,): where segments begin, then T
        max_length_q, max_length_k        int: tokens of the longest segment
        use_cache                         False: with a cache transformers stops looking for packed sequences

    There is no attention_mask on purpose: even one of all ones switches packing off.

    `hf_rows`, for Hugging Face models with sdpa or eager attention (flash attention takes B = 1): `input_ids`,
    `labels`, `position_ids`, int64, shape (B, L), and `use_cache`. Padding is a segment of its own.

    `encoder`, for Hugging Face encoders with sdpa attention: rows as they are, each token attending to its segment.

        input_ids, position_ids   int64, shape (B, L); positions restart with every segment, padding included
        attention_mask            bool, shape (B, 1, L, L): True where two tokens are of one segment, or both padding
        token_type_ids            int64, shape (B, L); where the dataset has them
        labels                    int64, shape (B, L); with `mlm`, not shifted
        segments                  a dict of what is known of each segment; take it out before the model gets the rest:
          segment_ids             int32, shape (B, L): number of the segment in its row, from 1; 0 is padding
          pooling_positions       int64, shape (segments,): the first token of each, in the rows laid end to end
          doc_ids, `keep`         shape (segments,): the document of each, and the columns that `keep` names

    So `hidden.flatten(0, 1)[segments["pooling_positions"]]` is what a pooler or a head gets, (segments, hidden); the
    `pooler_output` of a Hugging Face model is that of each row's first segment alone. Encoders without an absolute
    mask of their own (ModernBERT has sliding windows, which a mask replaces) take `hf`, by `packer.attention.use`.

    `trl`: a list of B examples `input_ids`, `labels` (int64 arrays, shape (L,), whatever `tensors` says) and
    `seq_lengths` (list), which TRL's DataCollatorForLanguageModeling(padding_free=True) makes a batch of.

    `torchtitan`: `({"input", "positions"}, labels)`, int64, shape (B, L); labels are shifted.

    `torchtune`: a list of B examples `tokens`, `labels`, `input_pos` (shape (L,)) and `seq_lens` (shape (segments,)),
    int64, which torchtune's padded_collate_packed makes a batch of.

    `megatron`: the fields of Megatron-LM's SFT dataset in a micro-batch of 1: `tokens`, `labels` (shifted; -100
    where there is no loss) and `position_ids`, int64, shape (1, B * L); `loss_mask`, float32, of the same shape;
    `cu_seqlens`, int32, shape (1, segments + 1); `max_seqlen`, int32, shape (1,).

    `segment_ids`, for MaxText and JAX (with `tensors="numpy"`): `inputs`, `inputs_position`, `inputs_segmentation`,
    `targets`, `targets_position`, `targets_segmentation`, int32, shape (B, L). Segments count from 1 in every row,
    0 is padding, and in `targets_segmentation` whatever has no loss; targets are shifted.

    Args:
        rows: of a PackedDataset, at least one; or the same as mappings of lists or CPU tensors.
        format: one of the above.
        static: for `hf` and `megatron`, the shape that all batches get, from `static_shape`, so that torch.compile
            compiles once: `hf` is filled with padding up to T tokens, cu_seqlens with repeats of T (segments of no
            tokens), and max_length is max_len.
        loss_weights: for `hf`, `hf_rows`, `encoder` and `megatron`, add `loss_weights`, float64 and aligned with the
            labels, for a mean per "sequence" or "document" instead of per token; see `causal_lm_loss`. Take the key
            out before the rest goes to the model.
        mlm: for `hf` and `encoder`, mask tokens; the labels are the tokens that were masked.
        epoch: of the masks; by default that of the BatchSampler the rows were drawn by, and 0 for other samplers.
        keep: for `hf` and `encoder`, names of segment columns to add to `segments`; `hf` has that key where `keep` is
            not None, without `segment_ids`. Text and lists are numpy arrays of objects whatever `tensors` says.
        keep_tokens: for `hf` and `encoder`, names of token columns to add; "labels" with `encoder` for those on disk.
        position_offset: for `hf` and `encoder`, the position of every segment's first token; 2 for RoBERTa, which
            counts from the padding's id plus 1.
        additive_mask: for `encoder`, attention_mask in float32, 0 where two tokens see each other and the least number
            elsewhere. **For eager attention**, which adds a mask of bool and so lets documents see each other.
        tensors: "torch", or "numpy" for arrays.

    Warns:
        UserWarning: a batch for Hugging Face models trains no token. Their loss, a mean, is NaN for it, unless it is
            handed `num_items_in_batch`.

    Raises:
        PackerError: there are no rows, or they are not as described; the format is unknown or does not have what is
            asked for, a column is not there, the batch does not fit `static`, a token is not in the vocabulary of
            `mlm`, the epoch is not in 0..2^64-1, or tensors are asked for and torch is not installed.
    """
    epoch = (getattr(rows, "epoch", None) or 0) if epoch is None else epoch
    check_range("epoch", epoch)
    options = FormatOptions(
        static=static,
        loss_weights=loss_weights,
        mlm=mlm,
        epoch=epoch,
        keep=keep,
        keep_tokens=tuple(keep_tokens),
        position_offset=position_offset,
        additive_mask=additive_mask,
    )
    batch = make_batch(rows_as_arrays(rows), format=format, options=options)
    if format in ("hf", "hf_rows"):
        _warn_if_nothing_is_trained(batch["labels"])
    return batch if format == "trl" else _as(tensors, batch)


def flatten(examples: Sequence[Mapping[str, Any]], *, tensors: Tensors = "torch") -> dict[str, Any]:
    """Flatten raw tokenized examples to one sequence; what DataCollatorWithFlattening does, as a `collate_fn`.

    This is packing at the size of a mini-batch: a step sees the documents that it saw with padding, so that nothing
    else of a training run changes (Kundu et al., arXiv 2407.09105). Keys, values and types are those of
    `DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)`, plus `use_cache=False`: as
    `collate` gives in the format `hf`.

    Args:
        examples: mappings with `input_ids`, and `labels` in all of them or in none; lists, arrays or CPU tensors of one
            dimension. Other keys, as attention_mask, are ignored.
        tensors: "torch", or "numpy" for arrays.

    Raises:
        PackerError: there are no examples, one has no tokens, another number of labels than of tokens, or values that
            are not integers in one dimension; or some have labels and others do not.
    """
    tokens, given = examples_as_arrays(examples)
    lengths = np.array([len(ids) for ids in tokens], np.int64)
    input_ids = np.concatenate(tokens).astype(np.int64, copy=False)
    labels = input_ids.copy() if given is None else np.concatenate(given).astype(np.int64, copy=False)
    labels[np.cumsum(lengths) - lengths] = NO_LOSS
    _warn_if_nothing_is_trained(labels)
    batch: dict[str, Any] = _as(tensors, flat_arrays(input_ids, labels, lengths))
    return batch


def batches(
    dataset: PackedDataset,
    *,
    rows: int,
    seed: int | None = 0,
    epoch: int = 0,
    drop_last: bool = False,
    format: Format = "hf",
    static: StaticShape | None = None,
    loss_weights: LossWeights | None = None,
    mlm: MaskedLM | None = None,
    keep: Sequence[str] | None = None,
    keep_tokens: Sequence[str] = (),
    position_offset: int = 0,
    additive_mask: bool = False,
    tensors: Tensors = "torch",
) -> Iterator[Any]:
    """Yield the batches of one epoch, as `collate` makes them, in one process.

    For several ranks, for workers and to resume there is `BatchSampler`; the rows come in the same order.

    Args:
        dataset: from `load`.
        rows: rows of a batch; a row is up to max_len real tokens.
        seed: of the order of rows; None for the order on disk.
        epoch: another epoch is another order under the same seed, and other masks.
        drop_last: leave out a last batch of fewer rows.
        format: as in `collate`.
        static: as in `collate`.
        loss_weights: as in `collate`.
        mlm: as in `collate`.
        keep: as in `collate`.
        keep_tokens: as in `collate`.
        position_offset: as in `collate`.
        additive_mask: as in `collate`.
        tensors: "torch", or "numpy" for arrays.

    Raises:
        PackerError: rows is below 1, or as in `collate`.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch has at least 1")
    sampler = BatchSampler(dataset, global_batch=rows, seed=seed, epoch=epoch, drop_last=drop_last)
    for numbers in sampler:
        yield collate(
            dataset.__getitems__(numbers),
            format=format,
            static=static,
            loss_weights=loss_weights,
            mlm=mlm,
            epoch=epoch,
            keep=keep,
            keep_tokens=keep_tokens,
            position_offset=position_offset,
            additive_mask=additive_mask,
            tensors=tensors,
        )


def _warn_if_nothing_is_trained(labels: NDArray[Any]) -> None:
    if not (labels != NO_LOSS).any():
        warnings.warn(
            "a batch trains no token, and the loss of a Hugging Face model, which is a mean, is nan for it: hand the "
            "model num_items_in_batch, from packer.num_items_in_batch",
            stacklevel=3,
        )


def _as(tensors: Tensors, batch: Any) -> Any:
    """The batch with its arrays as tensors that share their memory."""
    if tensors == "numpy":
        return batch
    try:
        import torch
    except ImportError as error:
        raise PackerError('torch is not installed: pip install "packer[torch]", or ask for tensors="numpy"') from error

    def convert(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(convert, value))
        if isinstance(value, dict):
            return {name: convert(part) for name, part in value.items()}
        has_dtype = isinstance(value, np.ndarray) and value.dtype != object  # torch has none for text and lists
        return torch.from_numpy(value) if has_dtype else value

    return convert(batch)
