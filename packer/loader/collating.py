"""Batches of tensors from rows or raw examples: `collate`, `flatten` and `batches`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from packer.errors import PackerError
from packer.loader.batch_formats import HFBatch, batch_format
from packer.loader.batch_input import Tensors, examples_as_rows
from packer.loader.batch_sampler import BatchSampler
from packer.loader.dataset import PackedDataset
from packer.loader.load import load
from packer.loader.row_segments import StaticShape
from packer.stores import AnyPath


def collate(rows: Sequence[Mapping[str, Any]], *, format: str = "hf", epoch: int | None = None, **options: Any) -> Any:
    """Combine rows into one batch in the format of a trainer; a `collate_fn` for DataLoader.

    Args:
        rows: rows of a PackedDataset, at least one; or the same columns as mappings of lists or CPU tensors.
        format: `hf` or `hf_rows` for Hugging Face models, `encoder` for BERT and similar models, `trl`, `torchtitan`,
            `torchtune`, `megatron`, `segment_ids` for MaxText and JAX, or `tree` for rows packed with
            `--pairs` or `--share-prefixes`.
        epoch: epoch of the masks; by default that of the BatchSampler that selected the rows, or else 0.
        options: fields of the format's record in `packer.loader.batch_formats`, which documents them and the keys of
            the batch, such as `loss_weights` and `tensors`.

    Warns:
        UserWarning: no token for a Hugging Face model is trained: its loss is NaN without `num_items_in_batch`.

    Raises:
        PackerError: the format does not have an option, or no batch can be made of these rows.
    """
    return batch_format(format, **options)(rows, epoch=epoch)


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
    batch: dict[str, Any] = HFBatch(tensors=tensors)(examples_as_rows(examples))
    return batch


def batches(
    dataset: PackedDataset | str | AnyPath,
    rows: int,
    *,
    seed: int | None = 0,
    epoch: int = 0,
    drop_last: bool = False,
    format: str = "hf",
    **options: Any,
) -> Iterator[Any]:
    """Yield the batches of one epoch in a single process, each as `collate` returns it.

    `BatchSampler` yields rows in the same order, and supports several ranks, DataLoader workers and resuming.

    Args:
        dataset: dataset from `load`, or its path.
        rows: rows per batch, at least 1; a row has up to max_len real tokens.
        seed: seed of the order of rows, 0..2^64-1; None for the order on disk.
        epoch: number of the epoch, 0..2^64-1; each epoch has its own order and masks.
        drop_last: whether to leave out a last batch of fewer rows.
        format: as in `collate`.
        options: as in `collate`.

    Raises:
        PackerError: rows is below 1, or an argument is not valid for `collate`.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch needs at least 1")
    if "shuffle" in options:
        raise PackerError("rows are shuffled unless seed is None, which keeps the order on disk: leave shuffle out")
    make = batch_format(format, **options)
    dataset = dataset if isinstance(dataset, PackedDataset) else load(dataset)
    sampler = BatchSampler(dataset, global_batch=rows, seed=seed, drop_last=drop_last)
    sampler.set_epoch(epoch)
    for row_numbers in sampler:
        yield make(dataset.__getitems__(row_numbers))


_MULTIPLE = 16  # tokens of a static shape: matrices of such sizes are fast in 8 bits, too


def static_shape(dataset: PackedDataset, *, rows: int) -> StaticShape:
    """Return a shape that fits any batch of `rows` rows of a dataset, and little more.

    The number of segments is that of the rows with the most segments. There are as many tokens more than
    rows * max_len, rounded up to a multiple of 16, so that a batch of few segments is padded by segments of a token or
    more. Reads the segment boundaries of all rows once, and no tokens.

    Args:
        dataset: dataset from `load`.
        rows: rows per batch, at least 1.

    Raises:
        PackerError: rows is below 1.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch needs at least 1")
    counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(offsets) for offsets, _, _ in dataset.segments())])
    most = np.repeat(np.sort(counts)[-rows:], dataset.most_repeats)[-rows:]
    segments = int(most.sum()) + rows - len(most)
    # Real tokens of a row are at least as many as its segments, so `segments - rows` tokens more are enough for padding
    # of one token each. They take segments themselves if a batch has as many as the shape.
    segments += -(-(segments - rows + _MULTIPLE - 1) // max(dataset.max_len - 1, 1))
    tokens = rows * dataset.max_len + segments - rows
    return StaticShape(
        tokens=-(-tokens // _MULTIPLE) * _MULTIPLE,
        segments=segments,
        max_len=dataset.max_len,
        pad_id=dataset.pad_id,
    )
