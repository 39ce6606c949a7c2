"""One of two processes of a training job, for tests/test_loss.py: `python -m tests.helpers.two_ranks FOLDER PACKED`."""

import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import packer
from tests.helpers.models import gradients, tiny_llama
from tests.helpers.torch_jobs import job
from tests.helpers.trainers import train_with_trainer
from tests.helpers.weighted_steps import train_ranks


def train_step(dataset, *, per, rank):
    """One optimizer step over the whole dataset, in 4 batches per rank, under DistributedDataParallel."""
    sampler = packer.BatchSampler(dataset, global_batch=8, rows=1, rank=rank, world_size=2)
    weights = None if per == "token" else per
    batches = [packer.collate(dataset.__getitems__(numbers), loss_weights=weights) for numbers in sampler]
    items = packer.num_items_in_batch(batches)
    own = [batch["loss_weights"].sum().item() if weights else int((batch["labels"] != -100).sum()) for batch in batches]
    model = tiny_llama(dtype=torch.float64)
    parallel = DistributedDataParallel(model)
    total = 0.0
    for number, batch in enumerate(batches, 1):
        labels, loss_weights = batch.pop("labels"), batch.pop("loss_weights", None)
        parallel.require_backward_grad_sync = number == len(batches)  # accumulate, and average in the last pass
        logits = parallel(**batch).logits
        loss = packer.causal_lm_loss(logits, labels, num_items=items, weights=loss_weights)
        (loss * 2).backward()
        total += loss.item()
    return {"loss": total, "items": items, "own_items": sum(own), "gradients": gradients(model)}


def main(folder: Path, packed: Path) -> None:
    with job(folder) as rank:
        dataset = packer.load(packed)
        for per in ("token", "document"):
            torch.save(train_step(dataset, per=per, rank=rank), folder / f"{per}-{rank}.pt")
        train_ranks(folder, packed, "hf", ["document"], rank, accumulations=[2])
        steps = packer.BatchSampler(dataset, global_batch=4).steps
        checkpoint = folder / "trainer" / f"checkpoint-{steps + 1}"
        shown = [train_with_trainer(dataset, folder / "trainer", resume=resume) for resume in (None, checkpoint)]
        torch.save(shown, folder / f"trainer-{rank}.pt")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
