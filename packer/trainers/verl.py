"""verl's SFT trainer: packed rows as its dataset.

    data.custom_cls.path=pkg://packer.trainers.verl data.custom_cls.name=PackedRows data.train_files=dataset-packed-4096

verl treats a row, without its padding, as one sequence. Documents begin where positions restart.
With `+data.loss=document` or `weight`, the loss is the mean over documents, or by the weights in the rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from packer.loader.batch_formats import HFBatch
from packer.trainers.guard import PackedPaths, check_loss, check_settings, labels_as_mask, open_rows

_ONE_SEQUENCE = "documents in a row would see each other"
_RULES = {
    "data.pad_mode": (("no_padding",), "rows have different lengths"),
    "model.use_remove_padding": ((True,), f"{_ONE_SEQUENCE}, because verl would pass a mask to attention"),
    "model.override_config.attn_implementation": (
        ("sdpa", "eager", "flash_attention_2", "flash_attention_3"),
        "it may ignore the boundaries of documents",
    ),
    "engine.strategy": (("fsdp", "fsdp2", "veomni", "torchtitan"), f"{_ONE_SEQUENCE}, because it ignores positions"),
}

_SIZES = ("ulysses_sequence_parallel_size", "ulysses_parallel_size")
_ULYSSES_RULES = dict.fromkeys(
    ("model.override_config.attn_implementation", "engine.attn_implementation"),
    (("flash_attention_2", "flash_attention_3"), "each process would attend to its own part of a row only"),
)
"""Rules for sequence parallelism. verl adapts only FlashAttention, its default, to it."""


class PackedRows(Dataset[dict[str, torch.Tensor]]):
    """Items of verl's `no_padding` mode.

    Args:
        parquet_files: packed dataset: a path, a list of paths, or paths with weights.
        config: verl's data configuration, whose parent has the settings that are checked.
        max_samples: number of rows to use, -1 for all.

    Raises:
        PackerError: the dataset cannot be opened, or a setting would mix documents.
    """

    def __init__(self, parquet_files: PackedPaths, config: Any = None, max_samples: int = -1, **_: Any) -> None:
        if config is not None:
            from omegaconf import OmegaConf

            root = config._get_root()
            check_settings("verl", root, _RULES)
            sizes = (OmegaConf.select(root, f"engine.{name}") for name in _SIZES)
            if any(size is not None and size > 1 for size in sizes):
                check_settings("verl with Ulysses", root, _ULYSSES_RULES)
            if OmegaConf.is_config(parquet_files):
                parquet_files = OmegaConf.to_container(parquet_files)
        self._rows = open_rows(parquet_files, weights=True)
        self._count = len(self._rows) if max_samples < 0 else min(max_samples, len(self._rows))
        loss = None if config is None else config.get("loss")
        check_loss(loss, self._rows)
        self._collate = HFBatch(loss_weights=loss)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        batch = self._collate([self._rows[index]])
        tokens, labels, positions = (batch[name][0] for name in ("input_ids", "labels", "position_ids"))
        trained = labels_as_mask("verl", tokens, labels)
        weights = batch["loss_weights"][0].float() if "loss_weights" in batch else trained.long()
        return {"input_ids": tokens, "position_ids": positions, "loss_mask": weights}  # verl divides by its sum
