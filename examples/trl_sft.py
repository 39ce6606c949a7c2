"""Train on packed rows with TRL's SFTTrainer, which reads the packed dataset from disk.

python examples/trl_sft.py dataset-packed-4096 Qwen/Qwen3-0.6B trained --rows 4 --accumulation 8

On disk, rows are shuffled within each shard only; SFTTrainer shuffles all of them by default.
"""

from __future__ import annotations

import click
import torch
from datasets import load_from_disk
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

import packer


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    packed: str,
    folder: str,
    *,
    rows: int = 4,
    accumulation: int = 8,
    epochs: int = 1,
    learning_rate: float = 2e-5,
    max_grad_norm: float = 1.0,
) -> SFTTrainer:
    """Return a trainer with batches of `rows` and `accumulation` batches per step; checkpoints go to `folder`."""
    arguments = SFTConfig(
        output_dir=folder,
        packing=True,  # otherwise TRL ignores seq_lengths, and documents attend to each other
        max_length=packer.load(packed).max_len,
        dataset_kwargs={"skip_prepare_dataset": True},  # otherwise TRL packs the rows again
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        max_grad_norm=max_grad_norm,
        logging_steps=1,
        bf16=torch.cuda.is_available(),
        report_to=[],
    )
    # the tokenizer is needed for its padding token only
    return SFTTrainer(model=model, args=arguments, train_dataset=load_from_disk(packed), processing_class=tokenizer)


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
    tokenizer = AutoTokenizer.from_pretrained(model)
    make_trainer(
        loaded,
        tokenizer,
        packed,
        folder,
        rows=rows,
        accumulation=accumulation,
        epochs=epochs,
        learning_rate=learning_rate,
    ).train()


if __name__ == "__main__":
    main()
