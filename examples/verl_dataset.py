"""Dataset of packed rows for verl's SFT trainer; its configuration names this file.

    torchrun --nproc-per-node 8 -m verl.trainer.sft_trainer data.train_files=dataset-packed-4096 \
        data.custom_cls.path=examples/verl_dataset.py data.custom_cls.name=PackedRows ...

A row without its padding is what verl treats as one sequence. Documents begin where positions restart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

import packer


class PackedRows(Dataset[dict[str, torch.Tensor]]):
    """Items of verl's `no_padding` mode; `parquet_files` is the path or URL of a packed dataset."""

    def __init__(self, parquet_files: str, max_samples: int = -1, **others: Any) -> None:
        self._rows = packer.load(parquet_files)
        self._count = len(self._rows) if max_samples < 0 else min(max_samples, len(self._rows))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        batch = packer.collate([self._rows[index]])
        tokens, labels, positions = (batch[name][0] for name in ("input_ids", "labels", "position_ids"))
        trained = labels != -100
        if not torch.equal(tokens[trained], labels[trained]):
            raise packer.PackerError("verl takes labels from the tokens, so a label must be its token or -100")
        return {"input_ids": tokens, "position_ids": positions, "loss_mask": trained.long()}
