"""Train on packed rows with torchtitan's Grain pipeline, which came after 0.3, on any number of devices.

    torchrun --nproc-per-node 8 examples/torchtitan_grain.py dataset-packed-4096 llama3_8b assets/hf/Llama-3.1-8B

The rows are a source of torchtitan's own loader, which shuffles them, divides them among ranks, repeats them, and
resumes with the checkpoint. Documents begin where positions restart; torchtitan's FlexAttention and varlen attention
use these boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import click
from numpy.random import Generator
from torchtitan.components.data import (
    ConcatThenSplitPackingConfig,
    DatasetBuildContext,
    DatasetIterationPolicy,
    GrainDataLoader,
    RandomAccessDataSource,
    SampleProcessor,
    SingleDatasetConfig,
    TextSequence,
)
from torchtitan.config import Configurable

import packer


class PackedRows(Configurable, RandomAccessDataSource):
    """Rows of the packed dataset at `path`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """The packed dataset."""

        path: str
        """Path or URL of the packed dataset."""

    def __init__(self, config: Config, *, dataset_iteration_policy: DatasetIterationPolicy) -> None:
        self._dataset = packer.load(config.path)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._dataset[index]


class RowToTextSequence(SampleProcessor):
    """Tokens, shifted labels and positions of a row; and the padding mask, if torchtitan takes one (September 2026)."""

    @dataclass(kw_only=True, slots=True)
    class Config(SampleProcessor.Config):
        """Nothing to configure."""

    def __init__(self, config: Config, *, context: DatasetBuildContext) -> None:
        self._context = context
        self._has_mask = "padding_mask" in {field.name for field in fields(TextSequence)}

    def __call__(self, row: dict[str, Any], rng: Generator) -> TextSequence:
        """Return a row; nothing is drawn."""
        tokens, batch_tokens = len(row["input_ids"]), self._context.num_tokens_per_batch
        if batch_tokens % tokens:
            raise packer.PackerError(
                f"training.num_tokens_per_microbatch_per_dp_rank is {batch_tokens}: set it to a multiple of {tokens}, "
                "the tokens per row"
            )
        inputs, labels = packer.collate([row], format="torchtitan", padding_mask=self._has_mask, tensors="numpy")
        (input_ids,), (labels,) = inputs.pop("input"), labels
        return TextSequence(input_ids=input_ids, labels=labels, **{name: values[0] for name, values in inputs.items()})


def packed_loader(path: str, *, seed: int = 0) -> GrainDataLoader.Config:
    """Return the configuration of a loader of packed rows; a batch has as many rows as fit in its tokens."""
    rows = SingleDatasetConfig(source=PackedRows.Config(path=path), processor=RowToTextSequence.Config())
    return GrainDataLoader.Config(dataset=ConcatThenSplitPackingConfig(dataset=rows), seed=seed)


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
    config.dataloader = packed_loader(packed)
    config.training.max_context_length = packer.load(packed).max_len
    config.training.num_tokens_per_microbatch_per_dp_rank = rows * config.training.max_context_length
    config.training.steps = steps
    config.validator.enable = False
    trainer = config.build()
    try:
        trainer.train()
    finally:
        trainer.close()


if __name__ == "__main__":
    main()
