"""Train a BERT model on packed rows with masked language modeling.

Attention, masks and positions do not cross documents.

packer pack wikipedia --max-len 512 --max-segments 3 --no-labels     # documents with their [CLS] and [SEP]
python examples/bert_mlm.py wikipedia-packed-512 google-bert/bert-base-uncased --rows 16 --global-batch 256

The loss of a step is the mean over the masked tokens of all its batches, or, with --mean sequence, the mean over
documents of the mean over their masked tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Literal

import click
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

import packer


def train(
    model: PreTrainedModel,
    packed: str,
    mlm: packer.MaskedLM,
    *,
    rows: int = 16,
    global_batch: int = 256,
    epochs: int = 1,
    mean: Literal["document"] | None = None,
    position_offset: int = 0,
    learning_rate: float = 1e-4,
    max_grad_norm: float = 1.0,
) -> Iterator[tuple[float, float]]:
    """Train on batches of `rows` and steps of `global_batch` rows; yield (loss, gradient norm) of every step."""
    dataset = packer.load(packed)
    sampler = packer.BatchSampler(dataset, global_batch=global_batch, rows=rows)  # passes the epoch to the masks
    options = {"format": "encoder", "mlm": mlm, "loss_weights": mean, "position_offset": position_offset}
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=partial(packer.collate, **options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    model.train()
    for _ in range(epochs):
        batches = iter(loader)
        while step := list(islice(batches, sampler.accumulation)):
            items = packer.num_items_in_batch(step)
            total = 0.0
            for batch in step:
                del batch["segments"]  # for models that pool each document
                batch = {name: value.to(model.device) for name, value in batch.items()}
                labels, weights = batch.pop("labels"), batch.pop("loss_weights", None)
                with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
                    loss = packer.masked_lm_loss(model(**batch).logits, labels, num_items=items, weights=weights)
                loss.backward()
                total += loss.item()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            yield total, norm.item()


@click.command()
@click.argument("packed")
@click.argument("model")
@click.option("--rows", default=16, show_default=True, help="Rows per batch.")
@click.option("--global-batch", default=256, show_default=True, help="Rows per optimizer step.")
@click.option("--epochs", default=1, show_default=True, help="Passes over the dataset.")
@click.option("--learning-rate", default=1e-4, show_default=True, help="Learning rate of AdamW.")
@click.option(
    "--mean", type=click.Choice(["token", "document"]), default="token", show_default=True, help="Mean of the loss."
)
@click.option("--position-offset", default=0, show_default=True, help="Position of each first token: 2 for RoBERTa.")
def main(
    packed: str,
    model: str,
    rows: int,
    global_batch: int,
    epochs: int,
    learning_rate: float,
    mean: str,
    position_offset: int,
) -> None:
    """Train MODEL, a path or Hub id of a model and its tokenizer, on the PACKED dataset."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = AutoModelForMaskedLM.from_pretrained(model, attn_implementation="sdpa").float().to(device)
    steps = train(
        loaded,
        packed,
        packer.masked_lm(AutoTokenizer.from_pretrained(model)),
        rows=rows,
        global_batch=global_batch,
        epochs=epochs,
        mean=None if mean == "token" else "document",
        position_offset=position_offset,
        learning_rate=learning_rate,
    )
    for number, (loss, norm) in enumerate(steps, 1):
        print(f"step {number}: loss {loss:.4f}, gradient norm {norm:.4f}")


if __name__ == "__main__":
    main()
