"""Train on packed rows in a plain training loop.

python examples/plain_loop.py dataset-packed-4096 Qwen/Qwen3-0.6B --rows 4 --global-batch 32

The loss of a step is the mean over the tokens of all its batches, which equals the loss of the unpacked documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import click
import torch
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
    """Train on batches of `rows` and steps of `global_batch` rows; yield (loss, gradient norm) of every step."""
    dataset = packer.load(packed)
    sampler = packer.BatchSampler(dataset, global_batch=global_batch, rows=rows)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    device = model.device
    model.train()
    for _ in range(epochs):
        batches = iter(loader)
        while step := list(islice(batches, sampler.accumulation)):
            items = packer.num_items_in_batch(step)  # batches differ in tokens, so a mean of their means would be wrong
            total = 0.0
            for batch in step:
                batch = {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
                labels = batch.pop("labels")
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    loss = packer.causal_lm_loss(model(**batch).logits, labels, num_items=items)
                loss.backward()
                total += loss.item()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            yield total, norm.item()


@click.command()
@click.argument("packed")
@click.argument("model")
@click.option("--rows", default=4, show_default=True, help="Rows per batch.")
@click.option("--global-batch", default=32, show_default=True, help="Rows per optimizer step.")
@click.option("--epochs", default=1, show_default=True, help="Passes over the dataset.")
@click.option("--learning-rate", default=2e-5, show_default=True, help="Learning rate of AdamW.")
def main(packed: str, model: str, rows: int, global_batch: int, epochs: int, learning_rate: float) -> None:
    """Train MODEL, a path or Hub id, on the PACKED dataset."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = packer.attention.use(AutoModelForCausalLM.from_pretrained(model).float().to(device))
    steps = train(loaded, packed, rows=rows, global_batch=global_batch, epochs=epochs, learning_rate=learning_rate)
    for number, (loss, norm) in enumerate(steps, 1):
        print(f"step {number}: loss {loss:.4f}, gradient norm {norm:.4f}")


if __name__ == "__main__":
    main()
