"""The mean of a causal or masked model's loss over tokens, sequences or documents, exact over batches and ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from packer.loader.dataset import NO_LOSS

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def num_items_in_batch(batches: Iterable[Any], *, group: ProcessGroup | None = None) -> float:
    """Count what the loss of an optimizer step is a mean of, over its batches and all ranks.

    Batches and ranks have different numbers of trained tokens, so a mean of their means is not the mean over all
    tokens. Divide the sum of each batch's loss by this number instead:

        items = packer.num_items_in_batch(batches)
        for batch in batches:
            loss = model(**batch, num_items_in_batch=items).loss  # Hugging Face models take the number
            (loss * world_size).backward()                        # DDP and FSDP average gradients over ranks

    Args:
        batches: the step's batches of this rank, of any format but `segment_ids` and `trl`, as torch tensors.
        group: ranks to sum over; by default all of them where torch.distributed is initialised.

    Returns:
        Labels that are not -100; or, where the batches have `loss_weights`, the sum of these: the sequences or
        documents with a trained token. The same on every rank. 1 where nothing is trained, so that the loss is 0 and
        not NaN.
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
    """Sum of the next tokens' cross-entropy over `num_items`: this batch's part of the mean over an optimizer step.

    With `weights` from `collate(..., loss_weights=...)` it is the mean over sequences or documents of the mean over
    their tokens, which is what the batch gives unpacked, each sequence averaged by itself (Krell et al., arXiv
    2107.02027); without, the mean over tokens, which is what Hugging Face models compute.

    Args:
        logits: shape (B, T, vocabulary), any floating dtype; the loss is of the same.
        labels: int64, shape (B, T), not shifted, -100 for no loss: those of the formats `hf` and `hf_rows`.
        num_items: from `num_items_in_batch`, of batches with the same weights.
        weights: shape (B, T), aligned with the labels.

    Returns:
        A scalar. Where gradients are averaged over ranks (DDP, FSDP), multiply it by their number.
    """
    shifted = None if weights is None else weights[:, 1:]
    return masked_lm_loss(logits[:, :-1], labels[:, 1:], num_items=num_items, weights=shifted)


def masked_lm_loss(logits: Tensor, labels: Tensor, *, num_items: float, weights: Tensor | None = None) -> Tensor:
    """Sum of the masked tokens' cross-entropy over `num_items`: as `causal_lm_loss`, and nothing is shifted.

    BERT's own loss in transformers is the mean over a batch, whatever `num_items_in_batch` says.

    Args:
        logits: shape (B, T, vocabulary), any floating dtype; the loss is of the same.
        labels: int64, shape (B, T), -100 for no loss: those of `collate(..., mlm=...)`.
        num_items: from `num_items_in_batch`, of batches with the same weights.
        weights: shape (B, T), aligned with the labels.

    Returns:
        A scalar. Where gradients are averaged over ranks (DDP, FSDP), multiply it by their number.
    """
    from torch.nn.functional import cross_entropy

    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LOSS, reduction="none")
    if weights is not None:
        losses = losses * weights.flatten().to(losses.dtype)
    return losses.sum() / num_items
