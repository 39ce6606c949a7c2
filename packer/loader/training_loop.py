"""Functions for training loops: batches (`collate`, `flatten`, `batches`), losses, and settings of a packed run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.column_names import NO_LOSS
from packer.errors import PackerError, as_whole
from packer.loader.batch_formats import HFBatch, batch_format
from packer.loader.batch_sampler import BatchSampler
from packer.loader.dataset import PackedDataset
from packer.loader.load import load
from packer.loader.row_tokens import StaticShape, Tensors, examples_as_rows
from packer.stores import AnyPath

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def collate(rows: Sequence[Mapping[str, Any]], *, format: str = "hf", epoch: int | None = None, **options: Any) -> Any:
    """Combine rows into one batch in the format of a trainer; a `collate_fn` for DataLoader.

    Args:
        rows: rows of a PackedDataset, at least one; or the same columns as mappings of lists or CPU tensors.
        format: `hf` or `hf_rows` for Hugging Face models, `encoder` for BERT and similar models, `trl`, `torchtitan`,
            `torchtune`, `megatron`, `segment_ids` for MaxText and JAX, or `tree` for rows packed with `--pairs` or
            `--share-prefixes`.
        epoch: epoch for which masks are drawn; by default the epoch of the BatchSampler, otherwise 0.
        options: fields of the format's class, such as `loss_weights` and `tensors`. `packer.loader.batch_formats`
            documents them and the keys of the batch.

    Warns:
        UserWarning: no token for a Hugging Face model is trained, so its loss is NaN without `num_items_in_batch`.

    Raises:
        PackerError: the format does not have an option, or the rows cannot form a batch.
    """
    return batch_format(format, **options)(rows, epoch=epoch)


def flatten(examples: Sequence[Mapping[str, Any]], *, tensors: Tensors = "torch") -> dict[str, Any]:
    """Concatenate raw tokenized examples into one sequence, as DataCollatorWithFlattening does; a `collate_fn`.

    This packs each mini-batch separately: an optimizer step sees the same documents as with padding, so nothing
    else about a training run changes (Kundu et al., arXiv 2407.09105). Keys, values and types equal those of
    `DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)`, plus `use_cache=False`: the
    format `hf` of `collate`.

    Args:
        examples: mappings with `input_ids`, and with `labels` in all or none of them, as one-dimensional lists, arrays
            or CPU tensors. Other keys, such as attention_mask, are ignored.
        tensors: "torch", or "numpy" for arrays.

    Warns:
        UserWarning: no token is trained, as in `collate`.

    Raises:
        PackerError: there are no examples; only some have labels; or an example has no tokens, a different number of
            labels than tokens, or values that are not integers in one dimension.
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

    `BatchSampler` yields rows in the same order, and also supports several ranks, DataLoader workers and resuming.

    Args:
        dataset: dataset from `load`, or its path.
        rows: rows per batch, at least 1; a row has up to max_len real tokens.
        seed: seed of the order of rows, 0 to 2**64 - 1; None for the order on disk.
        epoch: number of the epoch, 0 to 2**64 - 1; each epoch has its own order and masks.
        drop_last: whether to leave out a last batch with fewer rows.
        format: as in `collate`.
        options: as in `collate`.

    Raises:
        PackerError: rows is below 1, or an argument is not valid for `collate`.
    """
    as_whole("rows", rows, least=1)
    if "shuffle" in options:
        raise PackerError("rows are shuffled unless seed is None, which keeps the order on disk: leave shuffle out")
    make = batch_format(format, **options)
    dataset = dataset if isinstance(dataset, PackedDataset) else load(dataset)
    sampler = BatchSampler(dataset, global_batch=rows, seed=seed, drop_last=drop_last)
    sampler.set_epoch(epoch)
    for row_numbers in sampler:
        yield make(dataset.__getitems__(row_numbers))


_MULTIPLE = 16  # granularity of static shapes, in tokens: such matrix sizes are also fast in 8 bits


def static_shape(dataset: PackedDataset, *, rows: int) -> StaticShape:
    """Return a shape that fits every batch of `rows` rows of a dataset, and is only slightly larger.

    It has room for the segments of the rows with the most segments. The number of tokens is somewhat larger than rows *
    max_len, and a multiple of 16, so that a batch of few segments can be padded by segments of at least one token.
    Reads the segment boundaries of all rows once, and no tokens.

    Args:
        dataset: dataset from `load`.
        rows: rows per batch, at least 1.

    Raises:
        PackerError: rows is below 1.
    """
    as_whole("rows", rows, least=1)
    counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(offsets) for offsets, _, _ in dataset.segments())])
    most = np.repeat(np.sort(counts)[-rows:], dataset.most_repeats)[-rows:]
    segments = int(most.sum()) + rows - len(most)
    # A row has at least as many real tokens as segments, so `segments - rows` extra tokens are enough for padding
    # segments of one token each. If a batch has as many segments as the shape, these extra tokens need extra segments.
    segments += -(-(segments - rows + _MULTIPLE - 1) // max(dataset.max_len - 1, 1))
    tokens = rows * dataset.max_len + segments - rows
    return StaticShape(
        tokens=-(-tokens // _MULTIPLE) * _MULTIPLE,
        segments=segments,
        max_len=dataset.max_len,
        pad_id=dataset.pad_id,
    )


def num_items_in_batch(batches: Iterable[Any], *, group: ProcessGroup | None = None) -> float:
    """Return the number of items over which the loss of an optimizer step is averaged, for its batches on all ranks.

    Batches and ranks differ in their number of trained tokens, so the mean of their means is not the mean over all
    tokens. Instead, divide the summed loss of each batch by this number:

        items = packer.num_items_in_batch(batches)
        for batch in batches:
            loss = model(**batch, num_items_in_batch=items).loss  # Hugging Face models accept the number
            (loss * world_size).backward()                        # DDP and FSDP average gradients over ranks

    Args:
        batches: batches of one optimizer step on this rank, as torch tensors, in any format except `segment_ids` and
            `trl`.
        group: ranks to sum over; by default all ranks if torch.distributed is initialized.

    Returns:
        The number of labels that are not -100. If the batches have `loss_weights`, their sum, which is the number of
        sequences or documents with a trained token. It is the same on every rank, and 1 if nothing is trained, so that
        the loss is 0 instead of NaN.
    """
    import torch
    import torch.distributed as distributed

    total: float = 0
    for batch in batches:
        if isinstance(batch, dict) and "loss_weights" in batch:
            total += float(batch["loss_weights"].sum())
        else:
            labels = batch["labels"] if isinstance(batch, dict) else batch[1]  # torchtitan: (inputs, labels)
            total += int((labels != NO_LOSS).sum())
    if not (distributed.is_available() and distributed.is_initialized()):
        return total or 1
    device = "cuda" if "nccl" in str(distributed.get_backend(group)) else "cpu"
    summed = torch.tensor(total, dtype=torch.float64, device=device)
    distributed.all_reduce(summed, group=group)
    return type(total)(summed.item()) or 1


def causal_lm_loss(logits: Tensor, labels: Tensor, *, num_items: float, weights: Tensor | None = None) -> Tensor:
    """Return the summed cross-entropy of the next tokens divided by `num_items`: this batch's part of the step's mean.

    Without weights, the step's loss is the mean over tokens, as Hugging Face models compute it. With the weights of
    `collate(..., loss_weights=...)` it is the mean over sequences or documents of the mean over their tokens, which
    equals the loss of the unpacked batch with each sequence averaged separately (Krell et al., arXiv 2107.02027).

    Args:
        logits: shape (B, T, vocabulary), any floating dtype; the loss has the same dtype.
        labels: int64, shape (B, T), not shifted, -100 for no loss, as in the formats `hf` and `hf_rows`.
        num_items: result of `num_items_in_batch` for batches with the same kind of weights.
        weights: shape (B, T), aligned with the labels.

    Returns:
        A scalar. Multiply it by the number of ranks if gradients are averaged over them (DDP, FSDP).
    """
    shifted_weights = None if weights is None else weights[:, 1:]
    return masked_lm_loss(logits[:, :-1], labels[:, 1:], num_items=num_items, weights=shifted_weights)


def masked_lm_loss(logits: Tensor, labels: Tensor, *, num_items: float, weights: Tensor | None = None) -> Tensor:
    """Return the summed cross-entropy of the masked tokens divided by `num_items`: `causal_lm_loss` without a shift.

    Use it instead of the loss of a Hugging Face masked language model, which averages over each batch and ignores
    `num_items_in_batch`. Pass the labels of `collate(..., mlm=...)`; other arguments are as in `causal_lm_loss`.
    """
    from torch.nn.functional import cross_entropy

    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LOSS, reduction="none")
    if weights is not None:
        losses = losses * weights.flatten().to(losses.dtype)
    return losses.sum() / num_items


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSchedule:
    """Hyperparameters of a packed run that correspond to a run with one document per row."""

    packing_factor: float
    """Documents per row."""

    global_batch: int
    """Rows per optimizer step."""

    documents_per_step: float
    """Mean number of documents per optimizer step."""

    steps: int
    """Number of optimizer steps of the run, counting the last, smaller one of each epoch."""

    betas: tuple[float, float]
    """Decay rates of the running averages of gradients in Adam and LAMB."""


def packed_schedule(
    dataset: PackedDataset,
    *,
    batch_size: int,
    global_batch: int | None = None,
    epochs: int = 1,
    betas: tuple[float, float] = (0.9, 0.999),
) -> PackedSchedule:
    """Convert the tuned batch size of a run with one document per row into rows of a packed dataset.

    By default, a step keeps its number of documents: batch_size / packing_factor rows, with the same learning rate,
    warm-up and betas (adjusted for rounding to whole rows). With `global_batch=batch_size`, a step keeps its number of
    rows, and sees packing_factor times as many documents. Betas are then raised to that power, as Krell et al. (arXiv
    2107.02027) do with LAMB: 0.9 becomes 0.81 for a factor of 2. docs/explanation/steps-and-learning-rate.md says how
    to choose.

    A split document counts once.

    Args:
        dataset: dataset from `load`.
        batch_size: number of documents per optimizer step, over all ranks, in the unpacked run; at least 1.
        global_batch: number of rows per optimizer step; by default the number that holds about batch_size documents.
        epochs: number of passes over the dataset.
        betas: betas of the unpacked run, each at least 0 and below 1.

    Raises:
        PackerError: a number is out of range.
    """
    for name, value in (("batch_size", batch_size), ("global_batch", global_batch), ("epochs", epochs)):
        as_whole(name, 1 if value is None else value, least=1)
    if not all(0 <= beta < 1 for beta in betas):
        raise PackerError(f"betas are {betas}: they must be at least 0 and below 1")
    packing_factor = dataset.documents_per_row
    rows = max(1, round(batch_size / packing_factor)) if global_batch is None else global_batch
    growth = rows * packing_factor / batch_size
    return PackedSchedule(
        packing_factor=packing_factor,
        global_batch=rows,
        documents_per_step=rows * packing_factor,
        steps=-(-len(dataset) // rows) * epochs,
        betas=(betas[0] ** growth, betas[1] ** growth),
    )
