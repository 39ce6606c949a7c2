"""torchtitan after 0.3: packed rows as a source of its Grain pipeline, which shuffles, divides and repeats them.

Batches are rows laid end to end: `training.num_tokens_per_microbatch_per_dp_rank` is a multiple of their length.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from packer.errors import PackerError
from packer.loader.batch_formats import TorchtitanBatch
from packer.trainers.guard import open_rows

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
except ImportError:  # the module can be imported without torchtitan
    RandomAccessDataSource = object
    Configurable = SampleProcessor = type("Missing", (), {"Config": object})


class PackedRows(Configurable, RandomAccessDataSource):
    """Rows of a packed dataset."""

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
    """Tokens, shifted labels and positions of a row; and the padding mask, if torchtitan takes one (September 2026)."""

    @dataclass(kw_only=True, slots=True)
    class Config(SampleProcessor.Config):
        """Nothing to configure."""

    def __init__(self, config: Config, *, context: DatasetBuildContext) -> None:
        self._context = context
        has_mask = "padding_mask" in {field.name for field in fields(TextSequence)}
        self._collate = TorchtitanBatch(padding_mask=has_mask, tensors="numpy")

    def __call__(self, row: dict[str, Any], rng: object) -> TextSequence:
        """Return a row; nothing is drawn."""
        tokens, batch_tokens = len(row["input_ids"]), self._context.num_tokens_per_batch
        if batch_tokens % tokens:
            raise PackerError(
                f"training.num_tokens_per_microbatch_per_dp_rank is {batch_tokens}: set it to a multiple of {tokens}, "
                "the tokens per row"
            )
        inputs, labels = self._collate([row])
        names = {"input": "input_ids"}
        return TextSequence(labels=labels[0], **{names.get(name, name): values[0] for name, values in inputs.items()})


def packed_loader() -> GrainDataLoader.Config:
    """Return the configuration of a loader of packed rows; a batch has as many rows as fit in its tokens."""
    rows = SingleDatasetConfig(source=PackedRows.Config(), processor=RowToTextSequence.Config())
    return GrainDataLoader.Config(dataset=ConcatThenSplitPackingConfig(dataset=rows))
