"""What notebooks show of a packed dataset: its facts, and its first rows as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from packer.plots import DrawnRow, row_plot
from packer.plots.notebook_facts import notebook_facts

if TYPE_CHECKING:
    from packer.loader.dataset import PackedDataset
    from packer.loader.open_shards import Row

SHOWN_ROWS = 5
"""Rows in the picture."""

SHOWN_SEGMENTS = 400
"""Segments of a row that are drawn one by one."""


def dataset_html(dataset: PackedDataset) -> str:
    """Return HTML with the facts of the manifest and the first rows of a packed dataset."""
    rows = [_drawn(number, dataset[number]) for number in range(min(SHOWN_ROWS, len(dataset)))]
    plot = row_plot(f"The first {len(rows)} rows", rows, max_len=dataset.max_len)
    return notebook_facts(f"PackedDataset {dataset.path.name}", dataset.manifest.facts(), plot)


def _drawn(number: int, row: Row) -> DrawnRow:
    extents = row["seq_lengths"][: np.count_nonzero(row["doc_ids"] >= 0)]
    shown = extents[:SHOWN_SEGMENTS]
    return DrawnRow(name=str(number), extents=shown.tolist(), rest=int(extents[SHOWN_SEGMENTS:].sum()))
