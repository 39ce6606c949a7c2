"""Losses of causal and masked models as means over tokens, sequences or documents, exact across batches and ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from packer.column_names import NO_LOSS

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def num_items_in_batch(batches: Iterable[Any], *, group: ProcessGroup | None = None) -> float:
    """Return the number of items that the loss of an optimizer step is averaged over, for its batches on all ranks.

    Batches and ranks differ in their number of trained tokens, so the mean of their means is not the mean over all
    tokens. Divide the sum of each batch's loss by this number instead:

        items = packer.num_items_in_batch(batches)
        for batch in batches:
            loss = model(**batch, num_items_in_batch=items).loss  # Hugging Face models accept the number
            (loss * world_size).backward()                        # DDP and FSDP average gradients over ranks

    Args:
        batches: batches of one optimizer step on this rank, as torch tensors, in any format except `segment_ids` and
            `trl`.
        group: ranks to sum over; by default all of them if torch.distributed is initialized.

    Returns:
        The number of labels that are not -100, or the sum of `loss_weights` if the batches have them, which is the
        number of sequences or documents with a trained token. It is the same on every rank, and 1 if nothing is
        trained, so that the loss is 0 instead of NaN.
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
    """Return the summed cross-entropy of the next tokens over `num_items`: this batch's part of the step's mean.

    Without weights, the step's loss is the mean over tokens, as Hugging Face models compute it. With the weights of
    `collate(..., loss_weights=...)` it is the mean over sequences or documents of the mean over their tokens, which
    equals the loss of the unpacked batch with each sequence averaged separately (Krell et al., arXiv 2107.02027).

    Args:
        logits: shape (B, T, vocabulary), any floating dtype; the loss has the same dtype.
        labels: int64, shape (B, T), not shifted, -100 for no loss: the labels of the formats `hf` and `hf_rows`.
        num_items: result of `num_items_in_batch`, for batches with the same kind of weights.
        weights: shape (B, T), aligned with the labels.

    Returns:
        A scalar. Multiply it by the number of ranks if gradients are averaged over them (DDP, FSDP).
    """
    shifted_weights = None if weights is None else weights[:, 1:]
    return masked_lm_loss(logits[:, :-1], labels[:, 1:], num_items=num_items, weights=shifted_weights)


def masked_lm_loss(logits: Tensor, labels: Tensor, *, num_items: float, weights: Tensor | None = None) -> Tensor:
    """Return the summed cross-entropy of the masked tokens over `num_items`; like `causal_lm_loss` without a shift.

    Use it instead of the loss of a Hugging Face masked language model, which averages over each batch and ignores
    `num_items_in_batch`. The labels are those of `collate(..., mlm=...)`; all else is as in `causal_lm_loss`.
    """
    from torch.nn.functional import cross_entropy

    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LOSS, reduction="none")
    if weights is not None:
        losses = losses * weights.flatten().to(losses.dtype)
    return losses.sum() / num_items
