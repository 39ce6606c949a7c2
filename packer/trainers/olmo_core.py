"""OLMo-core: packed rows as the dataset of any of its training scripts, by two overrides of its configuration.

    torchrun train.py ... --dataset._CLASS_=packer.trainers.olmo_core.Packed --dataset.packed=dataset-packed-4096

`packed` is a path, a list of paths, or paths with weights. Each row is an instance with the lengths of its documents,
which OLMo-core otherwise finds by EOS. OLMo-core's attention raises an error if it cannot use these lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from olmo_core.data.numpy_dataset import NumpyFSLDatasetBase, NumpyFSLDatasetConfig
from olmo_core.distributed.parallel import MeshDimName, get_world_mesh

from packer.errors import PackerError
from packer.trainers.guard import PackedPaths, labels_as_mask, open_rows


class PackedInstances(NumpyFSLDatasetBase):
    """Rows as instances for OLMo-core's own data loader, which shuffles and divides them.

    input_ids: int64, shape (L,). label_mask: bool, shape (L,), whether a token is trained. doc_lens: int32, the places
    of each document; the last one may be padding.
    """

    def __init__(self, packed: PackedPaths, sequence_length: int, **tokenizer: int) -> None:
        self._rows = open_rows(packed)
        if self._rows.max_len != sequence_length:
            raise PackerError(
                f"dataset.sequence_length is {sequence_length}: set it to {self._rows.max_len}, the tokens per row"
            )
        super().__init__(str(packed), sequence_length=sequence_length, **tokenizer)

    def prepare(self) -> None:
        """Raise a PackerError if several processes share the tokens of a row. OLMo-core calls this before training."""
        mesh = get_world_mesh()
        if mesh is not None and MeshDimName.cp in (mesh.mesh_dim_names or ()):
            raise PackerError(
                "with context parallelism (cp_config), OLMo-core 3.0 takes the positions of documents in a divided row "
                "for those in the whole row: train without it"
            )

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the rows, which OLMo-core compares with the fingerprint in a checkpoint."""
        return self._rows.fingerprint

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self._rows[int(index)]
        return {
            "input_ids": torch.tensor(row["input_ids"], dtype=torch.long),
            "label_mask": torch.tensor(labels_as_mask("OLMo-core", row["input_ids"], row["labels"])),
            "doc_lens": torch.tensor(row["seq_lengths"], dtype=torch.int32),
        }


@dataclass(kw_only=True)
class Packed(NumpyFSLDatasetConfig):
    """Configuration of packed rows, which replace the files and mixtures of a script."""

    packed: Any = None
    """Path of the packed dataset, a list of paths, or paths with weights."""

    def build(self) -> PackedInstances:
        """Open the rows. Raises a PackerError if `sequence_length` is not their number of tokens, or as `open_rows`."""
        ids = {name: getattr(self.tokenizer, name) for name in ("pad_token_id", "eos_token_id", "vocab_size")}
        rows = PackedInstances(self.packed, self.sequence_length, **ids)
        if self.work_dir is not None:
            rows.work_dir = self.work_dir
        return rows
