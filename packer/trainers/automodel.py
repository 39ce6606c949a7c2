"""NeMo Automodel: packed rows as its dataset.

    dataset:
      _target_: packer.trainers.automodel.dataset
      packed: dataset-packed-4096

Its configuration may name a function of another package only if the variable NEMO_ENABLE_USER_MODULES is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.loader.batch_formats import TorchtitanBatch
from packer.loader.dataset import PackedDataset
from packer.shards.row_format import PADDING
from packer.trainers.guard import Packed, open_rows


class PrepackedRows:
    """Rows as Automodel's prepacked sequences, for its `packed_sequence_thd_collater`.

    `input_ids`, `labels` (shifted) and `position_ids`, lists of max_len numbers; `seq_lens`, the tokens of each
    document; and `seq_lens_padded`, the places that it takes, of which the last has the padding of the row.
    """

    def __init__(self, rows: PackedDataset) -> None:
        self._rows = rows
        self._collate = TorchtitanBatch(tensors="numpy")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[index]
        inputs, labels = self._collate([row])
        extents = row["seq_lengths"].tolist()
        documents = int(np.count_nonzero(row["doc_ids"] != PADDING))
        lengths = row["seq_tokens"].tolist() if "seq_tokens" in row else extents
        return {
            "input_ids": inputs["input"][0].tolist(),
            "labels": labels[0].tolist(),
            "position_ids": inputs["positions"][0].tolist(),
            "seq_lens": lengths[:documents],
            "seq_lens_padded": [*extents[: documents - 1], sum(extents[documents - 1 :])],
        }


def dataset(packed: Packed) -> PrepackedRows:
    """Return the rows of a packed dataset: a path, a list of paths, or paths with weights.

    Raises:
        PackerError: the dataset cannot be opened.
    """
    return PrepackedRows(open_rows(packed))
