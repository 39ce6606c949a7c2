"""NeMo Automodel: packed rows as its dataset.

    dataset:
      _target_: packer.trainers.automodel.dataset
      packed: dataset-packed-4096
    packed_sequence:
      packed_sequence_size: 4096
      prepacked: true
    dataloader:
      collate_fn: packer.trainers.automodel.collate
      shuffle: true

Its configuration may name functions of another package only if the variable NEMO_ENABLE_USER_MODULES is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.column_names import PADDING
from packer.errors import PackerError
from packer.loader.batch_formats import TorchtitanBatch
from packer.loader.dataset import PackedDataset
from packer.trainers.guard import PackedPaths, open_rows


class GuardedRow(dict[str, Any]):
    """A row, or its columns. Code other than `collate` that reads it gets an error with the remedy."""

    def __missing__(self, name: object) -> Any:
        """Raise a PackerError, because other code tries to pack the row again or to collate it without boundaries."""
        raise PackerError(
            "Automodel would ignore the boundaries of documents: set packed_sequence.prepacked to true and "
            f"dataloader.collate_fn to {__name__}.{collate.__name__}"
        )


class PrepackedRows:
    """Rows for `collate`: prepacked sequences of Automodel, as lists of numbers.

    `input_ids`, `labels` (shifted) and `position_ids` have max_len numbers. `seq_lens` has the tokens of each document.
    `seq_lens_padded` has the places that each document takes; the last one includes the padding of the row.
    """

    def __init__(self, rows: PackedDataset) -> None:
        self._rows = rows
        self._collate = TorchtitanBatch(tensors="numpy")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> GuardedRow:
        row = self._rows[index]
        inputs, labels = self._collate([row])
        extents = row["seq_lengths"].tolist()
        documents = int(np.count_nonzero(row["doc_ids"] != PADDING))
        lengths = row["seq_tokens"].tolist() if "seq_tokens" in row else extents
        columns = {
            "input_ids": inputs["input"][0].tolist(),
            "labels": labels[0].tolist(),
            "position_ids": inputs["positions"][0].tolist(),
            "seq_lens": lengths[:documents],
            "seq_lens_padded": [*extents[: documents - 1], sum(extents[documents - 1 :])],
        }
        return GuardedRow(prepacked=GuardedRow(columns))  # under a key that only `collate` knows


def collate(rows: list[GuardedRow]) -> dict[str, Any]:
    """Return a batch of Automodel's `packed_sequence_thd_collater`, in which the rows are joined into one.

    FlashAttention in transformers finds documents by their positions only if there is a single row.
    """
    from nemo_automodel.components.datasets.utils import packed_sequence_thd_collater

    items = [row["prepacked"] for row in rows]
    joined = {name: [value for item in items for value in item[name]] for name in items[0]}
    batch: dict[str, Any] = packed_sequence_thd_collater([joined])
    return batch


def dataset(packed: PackedPaths) -> PrepackedRows:
    """Return the rows of a packed dataset: a path, a list of paths, or paths with weights; errors as `open_rows`."""
    return PrepackedRows(open_rows(packed))
