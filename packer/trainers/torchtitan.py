"""torchtitan: every configuration of its models, with packed rows as the data.

    torchrun -m torchtitan.train --module packer.trainers.torchtitan --config llama3_8b
        --dataloader.packed dataset-packed-4096 --training.seq_len 4096

`--dataloader.packed` is a path, or JSON: a list of paths, or paths with weights. Versions after 0.3 read rows through
Grain; there, `training.num_tokens_per_microbatch_per_dp_rank` is a multiple of the tokens of a row.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from typing import Any

from packer.errors import PackerError
from packer.loader.batch_formats import TorchtitanBatch
from packer.loader.batch_sampler import BatchSampler
from packer.trainers.guard import open_rows

_Missing = type("Missing", (), {"Config": object})
"""Stands for classes that the installed version lacks, so that this module can be imported even without torchtitan."""

try:
    from torchtitan.components.dataloader import ParallelAwareDataloader
except ImportError:  # removed in August 2026, in favor of Grain
    ParallelAwareDataloader = _Missing
try:
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
except ImportError:  # version 0.3 or earlier
    RandomAccessDataSource = object
    Configurable = SampleProcessor = _Missing


class PackedDataLoader(ParallelAwareDataloader):
    """Batches of packed rows, epoch after epoch. They resume with torchtitan's checkpoint."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """Configuration of torchtitan's data loaders, the packed dataset, and the seed."""

        packed: str = ""
        """Path of the packed dataset; or, as JSON, several paths, or paths with weights."""

        seed: int = 0

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None = 1,
        **_: Any,  # such as the tokenizer, which tokenized rows do not need
    ) -> None:
        dataset = open_rows(config.packed)
        if dataset.max_len != seq_len:
            raise PackerError(f"training.seq_len is {seq_len}: set it to {dataset.max_len}, the tokens per row")
        sampler = BatchSampler(
            dataset,
            global_batch=local_batch_size * dp_world_size,
            rank=dp_rank,
            world_size=dp_world_size,
            seed=config.seed,
            drop_last=True,  # all batches have the same shape
        )
        super().__init__(
            dataset,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            batch_sampler=sampler,
            collate_fn=TorchtitanBatch(),
            num_workers=config.num_workers,
            persistent_workers=config.persistent_workers,
            pin_memory=config.pin_memory,
            prefetch_factor=config.prefetch_factor,
            snapshot_every_n_steps=snapshot_every_n_steps or 1,
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield batches without end. The sampler shuffles each epoch differently."""
        while True:
            yield from super().__iter__()


class RowSource(Configurable, RandomAccessDataSource):
    """Rows of a packed dataset, which Grain shuffles, divides and repeats."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """The packed dataset."""

        path: str = ""
        """Path of the packed dataset; or, as JSON, several paths, or paths with weights."""

    def __init__(self, config: Config, *, dataset_iteration_policy: DatasetIterationPolicy) -> None:
        self._dataset = open_rows(config.path)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._dataset[index]


class RowToTextSequence(SampleProcessor):
    """Tokens, shifted labels and positions of a row, and the padding mask if torchtitan takes one (September 2026)."""

    @dataclass(kw_only=True, slots=True)
    class Config(SampleProcessor.Config):
        """An empty configuration."""

    def __init__(self, config: Config, *, context: DatasetBuildContext) -> None:
        self._context = context
        has_mask = "padding_mask" in {field.name for field in fields(TextSequence)}
        self._collate = TorchtitanBatch(padding_mask=has_mask, tensors="numpy")

    def __call__(self, row: dict[str, Any], rng: object) -> TextSequence:
        """Return a row; `rng` is not used."""
        tokens, batch_tokens = len(row["input_ids"]), self._context.num_tokens_per_batch
        if batch_tokens % tokens:
            raise PackerError(
                f"training.num_tokens_per_microbatch_per_dp_rank is {batch_tokens}: set it to a multiple of {tokens}, "
                "the tokens per row"
            )
        inputs, labels = self._collate([row])
        names = {"input": "input_ids"}
        return TextSequence(labels=labels[0], **{names.get(name, name): values[0] for name, values in inputs.items()})


def grain_loader() -> GrainDataLoader.Config:
    """Return the configuration of a loader that reads packed rows through Grain.

    A batch joins as many rows as fit into its tokens.
    """
    rows = SingleDatasetConfig(source=RowSource.Config(), processor=RowToTextSequence.Config())
    return GrainDataLoader.Config(dataset=ConcatThenSplitPackingConfig(dataset=rows))


def __getattr__(name: str) -> Callable[[], Any]:
    """Return torchtitan's configuration of this name, such as `llama3_8b`, with packed rows as its data."""
    if not name.startswith("_"):
        from torchtitan import models

        found = [model.name for model in pkgutil.iter_modules(models.__path__) if model.ispkg]
        for model in sorted(found, key=lambda model: not name.startswith(model)):
            try:
                registry = import_module(f"{models.__name__}.{model}.config_registry")
            except ImportError:
                if name.startswith(model):
                    raise
                continue  # a model whose packages are not installed
            if hasattr(registry, name):
                return partial(_packed, getattr(registry, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _packed(make: Callable[[], Any]) -> Any:
    """Return a configuration with packed rows as its data, whose attention finds documents by their positions."""
    config = make()
    for layer in config.model_spec.model.layers:
        inner = getattr(getattr(layer, "attention", None), "inner_attention", None)
        kind = type(inner).__qualname__.partition(".")[0]
        if kind not in ("FlexAttention", "VarlenAttention"):
            raise PackerError(
                f"{make.__name__} has layers with {'no attention' if inner is None else kind}, which ignores the "
                "boundaries of documents: choose a configuration with flex or varlen attention in every layer"
            )
    config.dataloader = grain_loader() if ParallelAwareDataloader is _Missing else PackedDataLoader.Config()
    config.validator.enable = False  # the validator reads a dataset of texts
    return config
