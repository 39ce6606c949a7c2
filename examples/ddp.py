"""Train on packed rows with DistributedDataParallel, with one process per GPU or on the CPU.

    torchrun --nproc-per-node 2 examples/ddp.py dataset-packed-4096 Qwen/Qwen3-0.6B --rows 4 --global-batch 32

The steps are the same for any number of processes: a step has `global_batch` rows, and its loss is the mean over all
their tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

import click
import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, PreTrainedModel

import packer


def train(
    model: PreTrainedModel,
    packed: str,
    *,
    rows: int = 4,
    global_batch: int = 32,
    epochs: int = 1,
    learning_rate: float = 2e-5,
    max_grad_norm: float = 1.0,
) -> Iterator[tuple[float, float]]:
    """Train on batches of `rows` and steps of `global_batch` rows over all ranks; yield (loss, gradient norm)."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    dataset = packer.load(packed)
    sampler = packer.BatchSampler(dataset, global_batch=global_batch, rows=rows, rank=rank, world_size=ranks, balance=1)
    if rank == 0:
        print(f"{ranks} ranks: attention takes {sampler.imbalance():.3f}x the balanced time")
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=learning_rate)
    device = model.device
    parallel.train()
    for _ in range(epochs):
        batches = iter(loader)
        while step := list(islice(batches, sampler.accumulation)):
            items = packer.num_items_in_batch(step)  # over all ranks, whose numbers of tokens differ
            total = torch.zeros((), device=device)
            for number, batch in enumerate(step, 1):
                batch = {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
                labels = batch.pop("labels")
                parallel.require_backward_grad_sync = number == len(step)
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    loss = packer.causal_lm_loss(parallel(**batch).logits, labels, num_items=items)
                (loss * ranks).backward()  # DDP averages gradients over ranks, and the sum is needed
                total += loss.detach()
            norm = torch.nn.utils.clip_grad_norm_(parallel.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            distributed.all_reduce(total)
            yield total.item(), norm.item()
    del parallel  # torch 2.13 hangs if it outlives its process group


@click.command()
@click.argument("packed")
@click.argument("model")
@click.option("--rows", default=4, show_default=True, help="Rows per batch on each rank.")
@click.option("--global-batch", default=32, show_default=True, help="Rows per optimizer step over all ranks.")
@click.option("--epochs", default=1, show_default=True, help="Passes over the dataset.")
@click.option("--learning-rate", default=2e-5, show_default=True, help="Learning rate of AdamW.")
def main(packed: str, model: str, rows: int, global_batch: int, epochs: int, learning_rate: float) -> None:
    """Train MODEL, a path or Hub id, on the PACKED dataset."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    loaded = packer.attention.use(AutoModelForCausalLM.from_pretrained(model).float().to(device))
    steps = train(loaded, packed, rows=rows, global_batch=global_batch, epochs=epochs, learning_rate=learning_rate)
    for number, (loss, norm) in enumerate(steps, 1):
        if distributed.get_rank() == 0:
            print(f"step {number}: loss {loss:.4f}, gradient norm {norm:.4f}")
    del steps
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
