"""Batches of tensors from rows or raw examples: `collate`, `flatten` and `batches`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.batching.batch_formats import flat_batch, make_batch
from packer.loader.batching.batch_shape import StaticShape
from packer.loader.batching.token_masking import MaskedLM
from packer.loader.dataset import PackedDataset
from packer.loader.draws import check_range
from packer.loader.row_segments import LossWeights, Rows
from packer.loader.sampling.batch_sampler import BatchSampler

Tensors = Literal["torch", "numpy"]


def collate(
    rows: Sequence[Mapping[str, NDArray[Any]]],
    *,
    format: str = "hf",
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
    """Combine rows into one batch in the format of a trainer; a `collate_fn` for DataLoader.

    Below, B is the number of rows, L is max_len and T the number of tokens in the batch. If the dataset has no labels,
    they are derived from its segment boundaries. Labels are shifted only for trainers that do not shift them.

    `hf`, for Hugging Face models: one sequence of the real tokens, without padding. The keys are those of
    transformers' DataCollatorWithFlattening, plus `use_cache`:

        input_ids, labels, position_ids   int64, shape (1, T); labels are -100 at the first token of every segment
        seq_idx                           int32, shape (1, T): number of the token's segment
        cu_seq_lens_q, cu_seq_lens_k      int32, shape (segments + 1,): index of each segment's first token, then T
        max_length_q, max_length_k        int: tokens in the longest segment
        use_cache                         False: with a cache, transformers ignores packed sequences

    There is no attention_mask, because even a mask of ones disables packed attention in transformers.

    `hf_rows`, for Hugging Face models with sdpa or eager attention (flash attention requires B = 1): `input_ids`,
    `labels`, `position_ids`, int64, shape (B, L), and `use_cache`. Padding is a segment of its own.

    `encoder`, for Hugging Face encoders with sdpa attention: whole rows in which each token attends to its segment.

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

    `trl`: list of B examples with `input_ids` and `labels` (int64 arrays, shape (L,), whatever `tensors` is) and
    `seq_lengths` (list), for TRL's DataCollatorForLanguageModeling(padding_free=True).

    `torchtitan`: `({"input", "positions"}, labels)`, int64, shape (B, L); labels are shifted.

    `torchtune`: list of B examples with `tokens`, `labels`, `input_pos` (shape (L,)) and `seq_lens` (shape
    (segments,)), int64, for torchtune's padded_collate_packed.

    `megatron`: the fields of Megatron-LM's SFT dataset in a micro-batch of 1: `tokens`, `labels` (shifted; -100 for no
    loss) and `position_ids`, int64, shape (1, B * L); `loss_mask`, float32, of the same shape; `cu_seqlens`, int32,
    shape (1, segments + 1); `max_seqlen`, int32, shape (1,).

    `segment_ids`, for MaxText and JAX (with `tensors="numpy"`): `inputs`, `inputs_position`, `inputs_segmentation`,
    `targets`, `targets_position`, `targets_segmentation`, int32, shape (B, L). Segments count from 1 in every row; 0 is
    padding, and in `targets_segmentation` any token without loss. Targets are shifted.

    Args:
        rows: rows of a PackedDataset, at least one; or the same columns as mappings of lists or CPU tensors.
        format: name of a format above.
        static: shape of all batches, from `static_shape`, so that torch.compile compiles once; for `hf` and `megatron`.
            `hf` batches are padded to T tokens, cu_seqlens with repeats of T (empty segments), and max_length is
            max_len.
        loss_weights: add `loss_weights`, float64 and aligned with the labels, for a loss that is a mean per "sequence"
            or "document" instead of per token, see `causal_lm_loss`; for `hf`, `hf_rows`, `encoder` and `megatron`.
            Remove the key before calling the model.
        mlm: mask tokens; the labels are the original tokens. For `hf` and `encoder`.
        epoch: epoch of the masks; by default that of the BatchSampler that selected the rows, and 0 with any other
            sampler.
        keep: segment columns to add to `segments`; for `hf` and `encoder`. In `hf`, unless None, `segments` is a key
            as above, without `segment_ids`. Strings, lists, dates and times are NumPy arrays whatever `tensors` is, and
            so are whole numbers and booleans where one is missing: masked arrays. Missing floats are NaN in tensors.
        keep_tokens: token columns to add; for `hf` and `encoder`. With `encoder`, "labels" adds those on disk.
        position_offset: position of the first token of every segment, for `hf` and `encoder`; 2 for RoBERTa, which
            counts from the id of its padding plus 1.
        additive_mask: return the attention_mask of `encoder` as float32: 0 where tokens attend to each other, elsewhere
            the lowest number. **Required for eager attention**, which adds its mask to the logits: with a bool mask,
            documents would attend to each other.
        tensors: "torch", or "numpy" for arrays.

    Warns:
        UserWarning: no token of a batch for a Hugging Face model is trained. The model's loss, a mean, is NaN then,
            unless it gets `num_items_in_batch`.

    Raises:
        PackerError: there are no rows, or they lack a column; the format is unknown or does not support an option; the
            batch does not fit `static`; a token is not in the vocabulary of `mlm`; the epoch is not in 0..2^64-1; or
            torch is not installed and tensors are requested.
    """
    epoch = (getattr(rows, "epoch", None) or 0) if epoch is None else epoch
    check_range("epoch", epoch)
    for name, columns in (("keep", keep), ("keep_tokens", keep_tokens)):
        if isinstance(columns, str):  # a list of letters
            raise PackerError(f"{name} is {columns!r}: pass a list of columns, as in [{columns!r}]")
    batch = make_batch(
        rows_as_arrays(rows),
        format=format,
        epoch=epoch,
        static=static,
        loss_weights=loss_weights,
        mlm=mlm,
        keep=keep,
        keep_tokens=tuple(keep_tokens) or None,
        position_offset=position_offset or None,
        additive_mask=additive_mask or None,
    )
    if format in ("hf", "hf_rows"):
        _warn_if_nothing_is_trained(batch["labels"])
    return batch if format == "trl" else _as_tensors(tensors, batch)


def flatten(examples: Sequence[Mapping[str, Any]], *, tensors: Tensors = "torch") -> dict[str, Any]:
    """Concatenate raw tokenized examples into one sequence, as DataCollatorWithFlattening does; a `collate_fn`.

    This packs each mini-batch separately: an optimizer step sees the same documents as with padding, so nothing
    else about a training run changes (Kundu et al., arXiv 2407.09105). Keys, values and types equal those of
    `DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)`, plus `use_cache=False`: the
    format `hf` of `collate`.

    Args:
        examples: mappings with `input_ids`, and with `labels` in all or none of them; lists, arrays or CPU tensors of
            one dimension. Other keys, such as attention_mask, are ignored.
        tensors: "torch", or "numpy" for arrays.

    Warns:
        UserWarning: no token is trained, as in `collate`.

    Raises:
        PackerError: there are no examples; only some have labels; or one has no tokens, another number of labels than
            of tokens, or values that are not integers in one dimension.
    """
    tokens, example_labels = examples_as_arrays(examples)
    lengths = np.array([len(ids) for ids in tokens], np.int64)
    input_ids = np.concatenate(tokens).astype(np.int64, copy=False)
    labels = np.concatenate(tokens if example_labels is None else example_labels).astype(np.int64)
    labels[np.cumsum(lengths) - lengths] = NO_LOSS
    _warn_if_nothing_is_trained(labels)
    batch: dict[str, Any] = _as_tensors(tensors, flat_batch(input_ids, labels, lengths))
    return batch


def batches(
    dataset: PackedDataset,
    *,
    rows: int,
    seed: int | None = 0,
    epoch: int = 0,
    drop_last: bool = False,
    **options: Any,
) -> Iterator[Any]:
    """Yield the batches of one epoch in a single process, each as `collate` returns it.

    `BatchSampler` yields rows in the same order, and supports several ranks, DataLoader workers and resuming.

    Args:
        dataset: dataset from `load`.
        rows: rows per batch, at least 1; a row has up to max_len real tokens.
        seed: seed of the order of rows, 0..2^64-1; None for the order on disk.
        epoch: number of the epoch, 0..2^64-1; each epoch has its own order and masks.
        drop_last: whether to leave out a last batch of fewer rows.
        options: keyword arguments of `collate`, other than the epoch.

    Raises:
        PackerError: rows is below 1, or an argument is not valid for `collate`.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch needs at least 1")
    sampler = BatchSampler(dataset, global_batch=rows, seed=seed, epoch=epoch, drop_last=drop_last)
    for row_numbers in sampler:
        yield collate(dataset.__getitems__(row_numbers), epoch=epoch, **options)


def _warn_if_nothing_is_trained(labels: NDArray[Any]) -> None:
    if not (labels != NO_LOSS).any():
        warnings.warn(
            "no token of a batch is trained, so the loss of a Hugging Face model, which is a mean, is NaN: pass "
            "num_items_in_batch, from packer.num_items_in_batch, to the model",
            stacklevel=3,
        )


def _as_tensors(tensors: Tensors, batch: Any) -> Any:
    """Return a batch with its arrays as tensors that share their memory; with "numpy", return it unchanged."""
    if tensors == "numpy":
        return batch
    if tensors != "torch":
        raise PackerError(f"tensors is {tensors!r}: choose torch or numpy")
    try:
        import torch
    except ImportError as error:
        raise PackerError('torch is not installed: pip install "packer-llm[torch]", or use tensors="numpy"') from error

    def convert(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(convert, value))
        if isinstance(value, dict):
            return {name: convert(part) for name, part in value.items()}
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":  # torch has no strings or dates
            return value
        is_missing = np.ma.is_masked(value) and value.dtype.kind != "f"  # missing floats are NaN under the mask
        return value if is_missing else torch.from_numpy(np.ma.getdata(value))

    return convert(batch)


REQUIRED = ("input_ids", "seq_lengths", "doc_ids")
"""Columns that every row must have; like labels, they hold integers in one dimension."""


def rows_as_arrays(rows: Any) -> Rows:
    """Return the rows of a batch with arrays as columns; rows of a PackedDataset are returned as they are.

    Raises:
        PackerError: there are no rows, a required column is missing, only some rows have labels, or a required
            column does not hold integers in one dimension.
    """
    _check_list(rows, "row")
    has_labels = "labels" in rows[0]
    names = (*REQUIRED, "labels") if has_labels else REQUIRED
    found = []
    for number, row in enumerate(rows):
        where = f"row {number} of the batch"
        if not isinstance(row, Mapping):
            raise PackerError(f"{where} is of type {type(row).__name__}: pass rows of packer.load")
        for name in REQUIRED:
            if name not in row and name == "input_ids" and "doc_starts" in row:
                raise PackerError(
                    f"{where} has no tokens, because the dataset is an index: name the dataset that was packed, as in "
                    "packer.load(path, source=...)"
                )
            if name not in row:
                raise PackerError(
                    f"{where} has no column {name}, only {', '.join(row)}: pass rows of packer.load; in the "
                    "Hugging Face Trainer, set remove_unused_columns=False"
                )
        _check_labels_alike("row", number, row, has_labels)
        if not all(isinstance(values, np.ndarray) for values in row.values()):
            row = {name: _array(values, f"{where} has {name}") for name, values in row.items()}
            row |= {name: _objects(row[name]) for name in row if row[name].ndim > 1 and name not in names}
        for name in names:
            _check_integers(row[name], f"{where} has {name}")
        found.append(row)
    return found


def examples_as_arrays(
    examples: Sequence[Mapping[str, Any]],
) -> tuple[list[NDArray[np.integer[Any]]], list[NDArray[np.integer[Any]]] | None]:
    """Return (tokens, labels) of raw examples, one array per example; labels is None if no example has any.

    Raises:
        PackerError: there are no examples, only some of them have labels, or one has no tokens, another number of
            labels than of tokens, or values that are not integers in one dimension.
    """
    _check_list(examples, "example")
    has_labels = isinstance(examples[0], Mapping) and "labels" in examples[0]
    tokens, labels = [], []
    for number, example in enumerate(examples):
        where = f"example {number} of the batch"
        if not isinstance(example, Mapping):
            raise PackerError(f"{where} is of type {type(example).__name__}: pass mappings with input_ids")
        if "input_ids" not in example:
            raise PackerError(
                f"{where} has no input_ids, only {', '.join(map(str, example))}: pass mappings with input_ids"
            )
        _check_labels_alike("example", number, example, has_labels)
        ids = _array(example["input_ids"], f"{where} has input_ids")
        if not ids.size:
            raise PackerError(f"{where} has 0 tokens: leave empty examples out")
        _check_integers(ids, f"{where} has input_ids")
        tokens.append(ids)
        if has_labels:
            labels.append(_labels_of(example["labels"], len(ids), where))
    return tokens, labels if has_labels else None


def _labels_of(values: Any, tokens: int, where: str) -> NDArray[np.integer[Any]]:
    """Return the labels of an example with so many tokens as a checked array."""
    if values is None:
        raise PackerError(f"{where} has labels None: pass one per token, or leave the key out of all examples")
    labels = _array(values, f"{where} has labels")
    if labels.ndim == 1 and len(labels) != tokens:
        raise PackerError(f"{where} has {len(labels)} labels for {tokens} tokens: pass one per token")
    _check_integers(labels, f"{where} has labels")
    return labels


def _check_list(values: Any, noun: str) -> None:
    if isinstance(values, Mapping):
        raise PackerError(f"the batch is one mapping with the keys {', '.join(values)}: pass a list of {noun}s")
    if not len(values):
        raise PackerError(f"there are 0 {noun}s: a batch needs at least 1")


def _check_labels_alike(noun: str, number: int, item: Mapping[str, Any], first_has_labels: bool) -> None:
    """Check that an item of the batch has labels if and only if the first one does."""
    if ("labels" in item) == first_has_labels:
        return
    this, first = ("no labels", "has some") if first_has_labels else ("labels", "has none")
    raise PackerError(f"{noun} {number} of the batch has {this}, {noun} 0 {first}: pass labels for all of them or none")


def _array(values: Any, subject: str) -> NDArray[Any]:
    """Convert a list or a tensor; strings and lists of different lengths become an array of objects."""
    if isinstance(values, np.ndarray):
        return values
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return _objects(values)
    except (TypeError, RuntimeError) as error:  # a tensor on a GPU, or of a dtype that NumPy lacks
        raise PackerError(f"{subject} that NumPy cannot read ({error}): pass lists, arrays or CPU tensors") from error
    return array.astype(object) if array.dtype.kind in "US" else array


def _objects(values: Any) -> NDArray[Any]:
    """Return an array with one object per value, as the rows of a PackedDataset hold lists."""
    return np.fromiter(values, dtype=object, count=len(values))


def _check_integers(array: NDArray[Any], subject: str) -> None:
    if array.ndim != 1:
        remedy = "pass it in one dimension, as values[0]" if array.shape[:1] == (1,) else "pass a list of integers"
        raise PackerError(f"{subject} of shape {list(array.shape)}: {remedy}")
    if array.dtype.kind not in "iu":
        raise PackerError(f"{subject} of type {array.dtype}: pass a list of integers")
