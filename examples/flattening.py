"""Train without padding and without a packed dataset: each mini-batch of documents is flattened into one row.

    python examples/flattening.py tokenized Qwen/Qwen3-0.6B trained --documents 16

A step sees the same documents as with padding, so that nothing else about a run changes. SOURCE is a folder of
`datasets.save_to_disk` with `input_ids` and, optionally, `labels`.
"""

from __future__ import annotations

import click
import torch
from datasets import load_from_disk
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments

import packer


def make_trainer(
    model: PreTrainedModel,
    source: str,
    folder: str,
    *,
    documents: int = 16,
    accumulation: int = 1,
    epochs: int = 1,
    learning_rate: float = 2e-5,
    max_grad_norm: float = 1.0,
) -> Trainer:
    """Return a trainer with batches of `documents` and `accumulation` batches per step; checkpoints go to `folder`."""
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=documents,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        max_grad_norm=max_grad_norm,
        logging_steps=1,
        bf16=torch.cuda.is_available(),
        report_to=[],
    )
    return Trainer(model=model, args=arguments, train_dataset=load_from_disk(source), data_collator=packer.flatten)


@click.command()
@click.argument("source")
@click.argument("model")
@click.argument("folder")
@click.option("--documents", default=16, show_default=True, help="Documents per batch on each device.")
@click.option("--accumulation", default=1, show_default=True, help="Batches per optimizer step on each device.")
@click.option("--epochs", default=1, show_default=True, help="Passes over the dataset.")
@click.option("--learning-rate", default=2e-5, show_default=True, help="Learning rate of AdamW.")
def main(
    source: str, model: str, folder: str, documents: int, accumulation: int, epochs: int, learning_rate: float
) -> None:
    """Train MODEL, a path or Hub id, on the documents of SOURCE; checkpoints go to FOLDER."""
    loaded = packer.attention.use(AutoModelForCausalLM.from_pretrained(model).float())
    make_trainer(
        loaded,
        source,
        folder,
        documents=documents,
        accumulation=accumulation,
        epochs=epochs,
        learning_rate=learning_rate,
    ).train()


if __name__ == "__main__":
    main()
