"""Train on packed rows with the Hugging Face Trainer.

python examples/hugging_face_trainer.py dataset-packed-4096 Qwen/Qwen3-0.6B trained --rows 4 --accumulation 8

With torchrun or `accelerate launch`, it trains on all devices.
"""

from __future__ import annotations

import click
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments

import packer


def make_trainer(
    model: PreTrainedModel,
    packed: str,
    folder: str,
    *,
    rows: int = 4,
    accumulation: int = 8,
    epochs: int = 1,
    learning_rate: float = 2e-5,
    max_grad_norm: float = 1.0,
) -> Trainer:
    """Return a trainer with batches of `rows` and `accumulation` batches per step; checkpoints go to `folder`."""
    arguments = TrainingArguments(
        output_dir=folder,
        remove_unused_columns=False,  # True would remove the boundaries of the documents
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        max_grad_norm=max_grad_norm,
        logging_steps=1,
        bf16=torch.cuda.is_available(),
        report_to=[],
    )
    return Trainer(model=model, args=arguments, train_dataset=packer.load(packed), data_collator=packer.collate)


@click.command()
@click.argument("packed")
@click.argument("model")
@click.argument("folder")
@click.option("--rows", default=4, show_default=True, help="Rows per batch on each device.")
@click.option("--accumulation", default=8, show_default=True, help="Batches per optimizer step on each device.")
@click.option("--epochs", default=1, show_default=True, help="Passes over the dataset.")
@click.option("--learning-rate", default=2e-5, show_default=True, help="Learning rate of AdamW.")
def main(packed: str, model: str, folder: str, rows: int, accumulation: int, epochs: int, learning_rate: float) -> None:
    """Train MODEL, a path or Hub id, on the PACKED dataset; checkpoints go to FOLDER."""
    loaded = packer.attention.use(AutoModelForCausalLM.from_pretrained(model).float())
    make_trainer(
        loaded, packed, folder, rows=rows, accumulation=accumulation, epochs=epochs, learning_rate=learning_rate
    ).train()


if __name__ == "__main__":
    main()
