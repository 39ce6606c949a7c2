"""Batch formats: `FORMATS` maps names to classes. An instance holds options and converts rows to a trainer's batch.

    DataLoader(dataset, batch_size=4, collate_fn=MegatronBatch(mtp=1, padding_mask=True))

`packer.collate(rows, format="megatron", mtp=1)` is the short form. Options have the same meaning in all formats:

    static            shape of all batches, from `static_shape`, so that torch.compile compiles once
    loss_weights      "token": all trained tokens have the same weight in the loss. "document" (a mean loss per
                      document) and "weight" (stored weights) add `loss_weights`, float64 and aligned with the labels,
                      see `causal_lm_loss`; do not pass it to the model. Rows with stored weights need this option
    mtp               number of extra prediction heads; adds `mtp_labels`, which never cross a segment boundary
    padding_mask      adds `padding_mask`, bool, True for padding; the routers of experts use it
    mlm               masks tokens; the labels are the original tokens
    keep              segment columns to add to `segments`. Strings, lists, dates and times stay arrays. Integers and
                      booleans with missing values become masked arrays. Missing floats are NaN
    keep_tokens       token columns to add, with an extra axis for several values; encoders also accept "labels"
    position_offset   position of each segment's first token; 2 for RoBERTa (padding id + 1)
    tensors           "torch", or "numpy" for arrays

Below, B is the number of rows, L is max_len and T the number of tokens in the batch. If the dataset has no labels, they
are derived from its segment boundaries. Labels are shifted only for trainers that do not shift them themselves.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import cu_seqlens_of, restart_positions
from packer.algorithms.permute import MASKS, hashes_of, key_of, mixed_all
from packer.column_names import NO_LOSS, PADDING, TREE_INPUT_IDS
from packer.errors import PackerError
from packer.loader.row_order import check_range
from packer.loader.row_tokens import (
    LossWeights,
    Nodes,
    Rows,
    RowTokens,
    StaticShape,
    Tensors,
    as_tensors,
    attention_mask,
    check_accelerate,
    check_loss_weights,
    rows_as_arrays,
    shift_left,
)

TOKEN_TYPES = "token_type_ids"


@dataclass(frozen=True, kw_only=True)
class BatchFormat(ABC):
    """Options of a batch format. Call it with rows to get their batch, for example as a `collate_fn`."""

    tensors: Tensors = "torch"
    accelerate_divides = True
    """Whether accelerate's context parallelism, if it is on, divides the batch. False if a trainer replaces it."""

    def __post_init__(self) -> None:
        for name in ("keep", "keep_tokens"):
            if isinstance(value := getattr(self, name, None), str):  # a string would be read as a list of letters
                raise PackerError(f"{name} is {value!r}: pass a list of columns, as in [{value!r}]")

    def __call__(self, rows: Sequence[Mapping[str, Any]], *, epoch: int | None = None) -> Any:
        """Return the batch of rows. Masks are drawn for `epoch`, by default the epoch of the sampler, otherwise 0."""
        if epoch is None:
            epoch = getattr(rows, "epoch", None) or 0
        check_range("epoch", epoch)
        if self.accelerate_divides:
            check_accelerate()
        arrays = rows_as_arrays(rows)
        check_loss_weights(getattr(self, "loss_weights", None), arrays)
        if TREE_INPUT_IDS in arrays[0] and not isinstance(self, TreeBatch):
            raise PackerError(
                "the rows hold trees (--pairs, --share-prefixes), whose branches would see each other in any other "
                "format: choose format tree"
            )
        return as_tensors(self.tensors, self._arrays(arrays, epoch))

    @abstractmethod
    def _arrays(self, rows: Rows, epoch: int) -> Any:
        """Return the batch of rows as NumPy arrays."""


@dataclass(frozen=True, kw_only=True)
class ModelBatch(BatchFormat):
    """Options of `HFBatch` and `EncoderBatch`, which can add columns of the rows to the batch."""

    loss_weights: LossWeights | None = None
    mlm: MaskedLM | None = None
    keep: Sequence[str] | None = None
    keep_tokens: Sequence[str] = ()
    position_offset: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mlm is not None and "labels" in self.keep_tokens:
            raise PackerError("keep_tokens has labels, which mlm replaces: leave one of the two out")


@dataclass(frozen=True, kw_only=True)
class HFBatch(ModelBatch):
    """One sequence of the real tokens, without padding, for Hugging Face models.

    transformers' DataCollatorWithFlattening returns the same keys, except for `use_cache`:

        input_ids, labels, position_ids   int64, shape (1, T); labels are -100 at the first token of every segment
        seq_idx                           int32, shape (1, T): number of the token's segment
        cu_seq_lens_q, cu_seq_lens_k      int32, shape (segments + 1,): index of each segment's first token, then T
        max_length_q, max_length_k        int: tokens in the longest segment
        use_cache                         False: with a cache, transformers ignores packed sequences

    There is no attention_mask, because even a mask of ones disables packed attention in transformers.

    With `mtp`, `mtp_labels`, int64, shape (1, mtp, T), are the targets of extra heads. Head d (1, 2, ...) has the
    targets `mtp_labels[:, d - 1]`: at position i, token i + 1 + d, or -100 if that token is untrained or in another
    segment.

    Unless `keep` is None, there is a key `segments` as in `EncoderBatch`, without `segment_ids`. With `static`,
    segments of padding fill the batch up to its tokens and segments, and max_length is max_len.
    """

    static: StaticShape | None = None
    mtp: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mlm is not None and self.mtp:
            raise PackerError("mtp predicts tokens further ahead, which mlm shows to the model: leave one of them out")

    def _arrays(self, rows: Rows, epoch: int) -> dict[str, Any]:
        tokens = RowTokens.real(rows).padded(self.static)
        input_ids = tokens.input_ids()
        if self.mlm is None:
            labels = tokens.labels(input_ids)
        else:
            input_ids, labels = _masked_tokens(tokens, input_ids, self.mlm, epoch)
        cu_seqlens = cu_seqlens_of(tokens.lengths).astype(np.int32)
        batch: dict[str, Any] = {
            "input_ids": input_ids[None],
            "labels": _warned(labels)[None],
            "position_ids": restart_positions(tokens.lengths)[None],
            "seq_idx": np.arange(len(tokens.lengths), dtype=np.int32).repeat(tokens.lengths)[None],
            "cu_seq_lens_q": cu_seqlens,
            "cu_seq_lens_k": cu_seqlens.copy(),
            "max_length_q": tokens.longest,
            "max_length_k": tokens.longest,
            "use_cache": False,
        }
        if self.position_offset:
            batch["position_ids"] += self.position_offset
        batch |= tokens.targets(batch["labels"], self.loss_weights, self.mtp)
        for name in self.keep_tokens:
            batch[name] = _kept_tokens(tokens, name)[None]
        if self.keep is not None:
            batch["segments"] = _kept_segments(tokens, self.keep)
        return batch


@dataclass(frozen=True, kw_only=True)
class HFRows(BatchFormat):
    """Whole rows for Hugging Face models with sdpa or eager attention (flash attention requires B = 1).

        input_ids, labels, position_ids   int64, shape (B, L)
        use_cache                         False
        mtp_labels                        int64, shape (B, mtp, L), as in `HFBatch`; only with `mtp`

    Models derive the segments from the positions; padding is a segment of its own.
    """

    loss_weights: LossWeights | None = None
    mtp: int = 0

    def _arrays(self, rows: Rows, epoch: int) -> dict[str, Any]:
        tokens, input_ids, labels, position_ids = _whole_rows(rows)
        batch = {"input_ids": input_ids, "labels": _warned(labels), "position_ids": position_ids, "use_cache": False}
        return batch | tokens.targets(labels, self.loss_weights, self.mtp)


@dataclass(frozen=True, kw_only=True)
class EncoderBatch(ModelBatch):
    """Whole rows in which each token attends to its segment, for Hugging Face encoders with sdpa attention.

        input_ids, position_ids   int64, shape (B, L); positions restart with every segment, including padding
        attention_mask            bool, shape (B, 1, L, L): True if both tokens are in one segment, or both padding
        token_type_ids            int64, shape (B, L); if the dataset has them
        labels                    int64, shape (B, L); with `mlm`, not shifted
        segments                  dict with one value per segment; remove it before calling the model:
          segment_ids             int32, shape (B, L): number of the segment in its row, from 1; 0 for padding
          pooling_positions       int64, shape (segments,): first token of each segment, in the rows laid end to end
          doc_ids, `keep`         shape (segments,): document of each segment, and the columns in `keep`

    `hidden.flatten(0, 1)[segments["pooling_positions"]]`, (segments, hidden), is the input for a pooler or a head; the
    `pooler_output` of a Hugging Face model belongs to the first segment of each row only. Some encoders build their own
    masks, such as ModernBERT for its sliding windows. This mask would replace them. For these, use `HFBatch` and
    `packer.attention.use`.

    With `additive_mask`, the mask is float32: 0 where tokens attend to each other, elsewhere the lowest number. **Eager
    attention requires it**: without it, documents attend to each other. `loss_weights` need labels.
    """

    additive_mask: bool = False

    def _arrays(self, rows: Rows, epoch: int) -> dict[str, Any]:
        _refuse_alignment(rows)
        tokens, shape = RowTokens.whole(rows), (len(rows), -1)
        input_ids = tokens.input_ids()
        segment_ids = tokens.segment_ids().reshape(shape)
        batch: dict[str, Any] = {
            "input_ids": input_ids.reshape(shape),
            "position_ids": (restart_positions(tokens.lengths) + self.position_offset).reshape(shape),
            "attention_mask": attention_mask(segment_ids, additive=self.additive_mask),
        }
        if self.mlm is not None:
            masked, labels = _masked_tokens(tokens, input_ids, self.mlm, epoch)
            batch["input_ids"], batch["labels"] = masked.reshape(shape), labels.reshape(shape)
        types = [TOKEN_TYPES] if TOKEN_TYPES in rows[0] else []
        for name in dict.fromkeys([*types, *self.keep_tokens]):
            values = _kept_tokens(tokens, name)
            batch[name] = values.reshape(len(rows), -1, *values.shape[1:])
        if self.loss_weights not in (None, "token") and "labels" not in batch:
            raise PackerError('loss_weights need labels: pass mlm, or keep_tokens=["labels"] for those on disk')
        batch |= tokens.targets(batch.get("labels", input_ids), self.loss_weights)
        batch["segments"] = {"segment_ids": segment_ids, **_kept_segments(tokens, self.keep or ())}
        return batch


@dataclass(frozen=True, kw_only=True)
class TRLExamples(BatchFormat):
    """B examples for TRL's DataCollatorForLanguageModeling(padding_free=True).

    `input_ids` and `labels`, int64, shape (L,), and `seq_lengths`, a list. By default, `input_ids` and `labels` are
    arrays, as TRL expects.
    """

    tensors: Tensors = "numpy"

    def _arrays(self, rows: Rows, epoch: int) -> list[dict[str, Any]]:
        _, input_ids, labels, _ = _whole_rows(rows)
        lengths = [row["seq_lengths"].tolist() for row in rows]
        return _examples(input_ids=input_ids, labels=labels, seq_lengths=lengths)


@dataclass(frozen=True, kw_only=True)
class TorchtitanBatch(BatchFormat):
    """`({"input", "positions"}, labels)`, int64, shape (B, L), as torchtitan's training step unpacks them.

    Labels are shifted. `padding_mask` adds a key of that name to the dict: bool, shape (B, L), True for padding. The
    trainer passes the mask to the model; models of torchtitan 0.3 and earlier fail with it.
    """

    padding_mask: bool = False

    def _arrays(self, rows: Rows, epoch: int) -> tuple[dict[str, Any], NDArray[np.int64]]:
        tokens, input_ids, labels, position_ids = _whole_rows(rows)
        inputs: dict[str, Any] = {"input": input_ids, "positions": position_ids}
        if self.padding_mask:
            inputs["padding_mask"] = tokens.padding().reshape(input_ids.shape)
        return inputs, shift_left(labels, NO_LOSS)


@dataclass(frozen=True, kw_only=True)
class TorchtuneExamples(BatchFormat):
    """B examples like in torchtune's PackedDataset, for padded_collate_packed. torchtune's recipes shift the labels.

    `tokens`, `labels` and `input_pos`, shape (L,), and `seq_lens`, shape (segments,), int64.
    """

    def _arrays(self, rows: Rows, epoch: int) -> list[dict[str, Any]]:
        _, input_ids, labels, position_ids = _whole_rows(rows)
        lengths = [row["seq_lengths"].astype(np.int64) for row in rows]
        return _examples(tokens=input_ids, labels=labels, input_pos=position_ids, seq_lens=lengths)


@dataclass(frozen=True, kw_only=True)
class MegatronBatch(BatchFormat):
    """The fields of Megatron-LM's SFT dataset in a micro-batch of one packed sequence.

    `tokens`, `labels` (shifted; -100 for no loss) and `position_ids`, int64, shape (1, B * L); `loss_mask`, float32, of
    the same shape; `cu_seqlens`, int32, shape (1, segments + 1); `max_seqlen`, int32, shape (1,). With `static`,
    segments of padding fill the sequence up to its tokens and segments, and max_seqlen is max_len. `padding_mask` adds
    a key of that name for `GPTModel.forward`: bool, shape (1, B * L), True for padding. With `mtp`, `mtp_labels`, shape
    (1, mtp, B * L), as in `HFBatch`.
    """

    static: StaticShape | None = None
    loss_weights: LossWeights | None = None
    padding_mask: bool = False
    mtp: int = 0

    def _arrays(self, rows: Rows, epoch: int) -> dict[str, Any]:
        tokens = RowTokens.whole(rows).padded(self.static)
        input_ids = tokens.input_ids()
        labels = tokens.labels(input_ids)[None]
        shifted = shift_left(labels, NO_LOSS)
        batch = {
            "tokens": input_ids[None],
            "labels": shifted,
            "loss_mask": (shifted != NO_LOSS).astype(np.float32),
            "position_ids": restart_positions(tokens.lengths)[None],
            "cu_seqlens": cu_seqlens_of(tokens.lengths).astype(np.int32)[None],
            "max_seqlen": np.array([tokens.longest], np.int32),
        }
        batch |= tokens.targets(labels, self.loss_weights, self.mtp)
        if "loss_weights" in batch:
            batch["loss_weights"] = shift_left(batch["loss_weights"], 0.0)
        if self.padding_mask:
            batch["padding_mask"] = tokens.padding()[None]
        return batch


@dataclass(frozen=True, kw_only=True)
class SegmentIdsBatch(BatchFormat):
    """Whole rows with numbered segments, for MaxText and JAX (with `tensors="numpy"`).

    `inputs`, `inputs_position`, `inputs_segmentation`, `targets`, `targets_position`, `targets_segmentation`, int32,
    shape (B, L). Targets are shifted. Segments count from 1 in every row, and 0 is padding. In `targets_segmentation`,
    tokens without loss are 0 as well, because MaxText derives its loss mask from it.
    """

    def _arrays(self, rows: Rows, epoch: int) -> dict[str, Any]:
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


@dataclass(frozen=True, kw_only=True)
class TreeBatch(BatchFormat):
    """One sequence of the real tokens of rows that may contain trees, for `attention.use`.

        input_ids, labels, position_ids   int64, shape (1, T); labels are -100 at the first token of every branch
        tree                              int32, shape (2, T). tree[0, k] is the end u of the range k..u - 1 of tokens
                                          that attend to token k; tree[1, k] is its position, counted on from the parent
        use_cache                         False
        segments                          as in `EncoderBatch`, without `segment_ids`, plus the next two; unless `keep`
                                          is None
          segment_of_token                int64, shape (T,): number of the token's segment, from 0
          answer_of_token                 int64, shape (T,): index of the token's document in its record (0: the chosen
                                          answer of a pair); -1 for padding

    For other attention, `packer.attention.block_mask(batch["tree"])` is a mask for FlexAttention, and `dense_mask` one
    for sdpa. Loss weights equal those of the separate documents. With `static`, the batch is padded to T tokens.
    """

    static: StaticShape | None = None
    loss_weights: LossWeights | None = None
    keep: Sequence[str] | None = None

    def _arrays(self, rows: Rows, epoch: int) -> dict[str, Any]:
        tokens = RowTokens.real(rows).padded(self.static)
        input_ids = tokens.input_ids()
        labels, nodes = tokens.labels(input_ids), Nodes.of(tokens)
        positions = nodes.positions()
        batch: dict[str, Any] = {
            "input_ids": input_ids[None],
            "labels": _warned(labels)[None],
            "position_ids": positions[None],
            "tree": np.stack([nodes.visible_until(), positions]).astype(np.int32),
            "use_cache": False,
        }
        if self.loss_weights not in (None, "token"):
            weights = tokens.loss_weights(labels, nodes.documents(tokens.doc_ids), self.loss_weights)
            batch["loss_weights"] = weights[None]
        if self.keep is not None:
            of_tokens = {"segment_of_token": nodes.segments, "answer_of_token": nodes.answers}
            of_tokens = {name: values.repeat(nodes.lengths) for name, values in of_tokens.items()}
            batch["segments"] = {**_kept_segments(tokens, self.keep), **of_tokens}
        return batch


FORMATS: dict[str, type[BatchFormat]] = {
    "hf": HFBatch,
    "hf_rows": HFRows,
    "encoder": EncoderBatch,
    "trl": TRLExamples,
    "torchtitan": TorchtitanBatch,
    "torchtune": TorchtuneExamples,
    "megatron": MegatronBatch,
    "segment_ids": SegmentIdsBatch,
    "tree": TreeBatch,
}


def batch_format(name: str, **options: Any) -> BatchFormat:
    """Return the format with this name and these options. None is accepted for options of other formats.

    Raises PackerError if the format lacks an option.
    """
    if name not in FORMATS:
        raise PackerError(f"format is {name!r}: choose one of {', '.join(FORMATS)}")
    for option, value in options.items():
        having = [other for other, record in FORMATS.items() if option in record.__dataclass_fields__]
        if name not in having and (value is not None or not having):
            remedy = " or ".join(having) or "one that `packer.loader.batch_formats` documents"
            raise PackerError(f"format {name} does not support {option}: leave it out, or choose {remedy}")
    fields = FORMATS[name].__dataclass_fields__
    return FORMATS[name](**{option: value for option, value in options.items() if option in fields})


def _refuse_alignment(rows: Rows) -> None:
    if "seq_tokens" in rows[0]:
        raise PackerError(
            "the rows are aligned, and an encoder would attend to the padding inside segments: pack without --align"
        )


def _whole_rows(
    rows: Rows, dtype: type[np.integer[Any]] = np.int64
) -> tuple[RowTokens, NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Return (tokens, input_ids, labels, position_ids) of whole rows; the last three have the shape (B, L)."""
    tokens, shape = RowTokens.whole(rows), (len(rows), -1)
    input_ids = tokens.input_ids(dtype)
    labels = tokens.labels(input_ids)
    return tokens, input_ids.reshape(shape), labels.reshape(shape), restart_positions(tokens.lengths).reshape(shape)


def _examples(**columns: Sequence[object] | NDArray[Any]) -> list[dict[str, Any]]:
    """Return one dict per row from columns with one value per row."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _warned(labels: NDArray[Any]) -> NDArray[Any]:
    """Return the labels of a batch for a Hugging Face model; warn if all are -100."""
    if not (labels != NO_LOSS).any():
        warnings.warn(
            "no token of a batch is trained, so the loss of a Hugging Face model, which is a mean, is NaN: pass "
            "num_items_in_batch, from packer.num_items_in_batch, to the model",
            stacklevel=2,
        )
    return labels


def _masked_tokens(
    tokens: RowTokens, input_ids: NDArray[np.int64], mlm: MaskedLM, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask the tokens of a batch and return (input_ids, labels), as `mask_tokens` does."""
    _refuse_alignment(tokens.rows)
    doc_starts = np.zeros(len(tokens.lengths), np.int64)
    doc_starts[tokens.doc_ids != PADDING] = tokens.segment_column("doc_starts")
    return mask_tokens(input_ids, tokens.lengths, tokens.doc_ids, doc_starts, mlm=mlm, epoch=epoch)


def _kept_tokens(tokens: RowTokens, name: str) -> NDArray[Any]:
    """Return a token column by name; padding is -100 for labels, otherwise 0."""
    return tokens.column(name, padding=NO_LOSS if name == "labels" else 0)


def _kept_segments(tokens: RowTokens, keep: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return `pooling_positions`, `doc_ids` and the `keep` columns, one value per segment, without padding."""
    starts = cu_seqlens_of(tokens.lengths)[:-1]
    found = {"pooling_positions": starts[tokens.doc_ids != PADDING], "doc_ids": tokens.segment_column("doc_ids")}
    return found | {name: tokens.segment_column(name) for name in keep}


_REPLACE = np.uint64(0x5851F42D4C957F2D)  # turns the draw of a chosen token into an independent draw


def mask_tokens(
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    doc_ids: NDArray[np.int64],
    doc_starts: NDArray[np.int64],
    *,
    mlm: MaskedLM,
    epoch: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask tokens of concatenated segments and return (masked input_ids, labels), int64, shape (T,).

    Labels are the original tokens at the chosen positions and -100 elsewhere; they are not shifted. `lengths` of the
    segments sum to T, `doc_starts` are the offsets of segments in their documents, and padding has the doc_id -1.
    """
    if len(input_ids) and not 0 <= (largest := int(input_ids.max())) < mlm.vocab_size:
        raise PackerError(
            f"a batch has the token {largest}, but mlm a vocab_size of {mlm.vocab_size}: pass that of the tokenizer"
        )
    fixed = mlm.is_special[input_ids]
    fixed |= np.repeat(doc_ids == PADDING, lengths)
    # 64 random bits per token, hashed from its document and its position in the document
    positions = restart_positions(lengths)
    positions += doc_starts.repeat(lengths)
    random = hashes_of(hashes_of(key_of(mlm.seed, MASKS, epoch), doc_ids).repeat(lengths), positions)
    chosen = _choose(fixed, cu_seqlens_of(lengths), random, mlm.probability)
    labels = np.full(len(input_ids), NO_LOSS, np.int64)
    labels[chosen] = input_ids[chosen]
    masked = input_ids.copy()
    masked[chosen] = _replacements(input_ids[chosen], random[chosen], mlm)
    return masked, labels


def _choose(
    fixed: NDArray[np.bool_], cu_seqlens: NDArray[np.int64], random: NDArray[np.uint64], probability: float
) -> NDArray[np.int64]:
    """Return the indices of the tokens to mask: a share of each segment's tokens that are not `fixed`."""
    # From here on, fixed tokens are not counted: token i is input_ids[free[i]].
    free = np.flatnonzero(~fixed)
    starts = np.searchsorted(free, cu_seqlens)  # first token of each segment
    sizes = np.diff(starts)
    needed = np.where(sizes, np.maximum(np.floor(probability * sizes + 0.5), 1), 0).astype(np.int64)
    # Sort the tokens of each segment by the high half of their draws.
    segments = np.arange(len(sizes), dtype=np.uint64).repeat(sizes)
    order = np.argsort(segments << np.uint64(32) | random[free] >> np.uint64(32), kind="stable")
    return free[order[np.arange(len(free)) - starts[:-1].repeat(sizes) < needed.repeat(sizes)]]


def _replacements(tokens: NDArray[np.int64], random: NDArray[np.uint64], mlm: MaskedLM) -> NDArray[np.int64]:
    """Return the replacement of each chosen token: the mask token, a random token or the token itself.

    The high bits of the draws choose among the three, and the low bits choose the random token.
    """
    drawn = mixed_all(random ^ _REPLACE)
    share = (drawn >> np.uint64(40)).astype(np.float64) * 2.0**-24
    low = (drawn & np.uint64(2**32 - 1)).astype(np.int64)
    random_ids = mlm.ordinary_ids[low * len(mlm.ordinary_ids) >> 32]
    unmasked = np.where(share < mlm.mask_share + mlm.random_share, random_ids, tokens)
    return np.where(share < mlm.mask_share, mlm.mask_id, unmasked)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MaskedLM:
    """Masks tokens for BERT's training task (Devlin et al., arXiv 1810.04805); an option of `collate` and `batches`.

    In each segment, a share `probability` of the tokens that are not special is chosen, rounded to a whole number, but
    at least one token. By default, 80% of the chosen tokens become the mask token, 10% a random token, and 10% are
    kept.

    The draw of each token is a hash of seed, epoch, document and position in the document: a document is masked the
    same way in any row, batch, rank or worker, and differently in each epoch. Each part of a split document is a
    separate segment.

    Raises:
        PackerError: a number is out of range.
    """

    mask_id: int
    """Token id of the mask token."""

    vocab_size: int
    """Number of token ids; random tokens are drawn from all ids that are not special."""

    special_ids: Sequence[int]
    """Token ids that are neither chosen nor drawn, such as [CLS], [SEP], padding and mask tokens."""

    probability: float = 0.15
    """Share of the tokens that are chosen, above 0 and at most 1."""

    mask_share: float = 0.8
    """Share of the chosen tokens that become `mask_id`, 0 to 1."""

    random_share: float = 0.1
    """Share of the chosen tokens that become a random token, 0 to 1; with mask_share, at most 1."""

    seed: int = 0
    """Seed of the draws, 0 to 2**64 - 1."""

    is_special: NDArray[np.bool_] = field(init=False, repr=False)
    """True for `special_ids` and `mask_id`, shape (vocab_size,)."""

    ordinary_ids: NDArray[np.int64] = field(init=False, repr=False)
    """Token ids that are not special, ascending."""

    def __post_init__(self) -> None:
        ids = np.array([*self.special_ids, self.mask_id], np.int64)
        outside = ids[(ids < 0) | (ids >= self.vocab_size)]
        if len(outside):
            raise PackerError(f"token id {outside[0]} is not in 0..{self.vocab_size - 1}: increase vocab_size")
        if not 0 < self.probability <= 1:
            raise PackerError(f"probability is {self.probability}: it must be above 0 and at most 1")
        check_range("seed", self.seed)
        for name in ("mask_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise PackerError(f"{name} is {getattr(self, name)}: it must be from 0 to 1")
        if self.mask_share + self.random_share > 1:
            raise PackerError(
                f"mask_share is {self.mask_share} and random_share {self.random_share}: their sum must be at most 1"
            )
        is_special = np.zeros(self.vocab_size, np.bool_)
        is_special[ids] = True
        if is_special.all():
            raise PackerError(f"all {self.vocab_size:,} tokens are special: there must be another one to draw")
        object.__setattr__(self, "is_special", is_special)
        object.__setattr__(self, "ordinary_ids", np.flatnonzero(~is_special))


def masked_lm(tokenizer: Any, *, probability: float = 0.15, seed: int = 0) -> MaskedLM:
    """Return a MaskedLM with the mask token and the special tokens of a Hugging Face tokenizer.

    Args:
        tokenizer: tokenizer with `get_vocab`, `mask_token_id` and `all_special_ids`.
        probability: as in `MaskedLM`.
        seed: as in `MaskedLM`.

    Raises:
        PackerError: the tokenizer has no mask token, or an argument is out of range.
    """
    if tokenizer.mask_token_id is None:
        raise PackerError(f"{type(tokenizer).__name__} has no mask token: pass another token's id to packer.MaskedLM")
    return MaskedLM(
        mask_id=tokenizer.mask_token_id,
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        special_ids=tokenizer.all_special_ids,
        probability=probability,
        seed=seed,
    )
