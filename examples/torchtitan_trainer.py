"""Train on packed rows with torchtitan, on any number of devices.

    torchrun --nproc-per-node 8 examples/torchtitan_trainer.py dataset-packed-4096 llama3_8b assets/hf/Llama-3.1-8B

torchtitan accepts a custom data loader in its configuration. This one yields `({"input", "positions"}, labels)` and
resumes with the checkpoint. Documents begin where positions restart; torchtitan's FlexAttention and varlen attention
use these boundaries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import torch
from torchtitan.components.dataloader import ParallelAwareDataloader

import packer

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class PackedDataLoader(ParallelAwareDataloader):
    """Batches of packed rows, epoch after epoch; `dataset_path` names the packed dataset."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """Configuration of torchtitan's data loaders, and the seed."""

        seed: int = 0
        """Seed of the order of rows."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None = 1,
        **others: Any,  # such as the tokenizer, which tokenized rows do not need
    ) -> None:
        dataset = packer.load(config.dataset_path)
        if dataset.max_len != seq_len:
            raise packer.PackerError(f"training.seq_len is {seq_len}: set it to {dataset.max_len}, the tokens per row")
        sampler = packer.BatchSampler(
            dataset,
            global_batch=local_batch_size * dp_world_size,
            rank=dp_rank,
            world_size=dp_world_size,
            seed=config.seed,
            drop_last=True,  # batches of one shape
        )
        super().__init__(
            dataset,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            batch_sampler=sampler,
            collate_fn=partial(packer.collate, format="torchtitan"),
            num_workers=config.num_workers,
            persistent_workers=config.persistent_workers,
            pin_memory=config.pin_memory,
            prefetch_factor=config.prefetch_factor,
            snapshot_every_n_steps=snapshot_every_n_steps or 1,
        )

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches without end; the sampler shuffles each epoch differently."""
        while True:
            yield from super().__iter__()


@click.command()
@click.argument("packed")
@click.argument("configuration")
@click.argument("assets")
@click.option("--rows", default=1, show_default=True, help="Rows per batch on each device.")
@click.option("--steps", default=1000, show_default=True, help="Optimizer steps.")
def main(packed: str, configuration: str, assets: str, rows: int, steps: int) -> None:
    """Train a CONFIGURATION of torchtitan's Llama 3 on the PACKED dataset; ASSETS has its tokenizer."""
    from torchtitan.models.llama3 import config_registry

    config = getattr(config_registry, configuration)()
    config.hf_assets_path = assets
    config.dataloader = PackedDataLoader.Config(dataset_path=packed)
    config.training.seq_len = packer.load(packed).max_len
    config.training.local_batch_size = rows
    config.training.steps = steps
    config.validator.enable = False
    trainer = config.build()
    try:
        trainer.train()
    finally:
        trainer.close()


if __name__ == "__main__":
    main()
