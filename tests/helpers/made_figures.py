"""Figures made by hand, for tests of ratios, tables and sentences."""

from typing import Any

import numpy as np

from packer.json_records import PlanTotals
from packer.options import PackOptions
from packer.report.figures import Figures
from packer.report.measures import RowFigures, RowSums, tally


def rows_of(rows: list[list[int]], max_len: int) -> RowFigures:
    """Figures of rows of these segment lengths."""
    sums = RowSums(max_len)
    sums.add(np.concatenate([np.array(row) for row in rows]), np.cumsum([0, *map(len, rows)]))
    return sums.finish()


def figures_of(
    lengths: Any,
    *,
    max_len: int,
    rows: int,
    lower_bound: int = 1,
    documents_per_step: int = 64,
    algorithm: str = "bfd",
    row_figures: RowFigures | None = None,
    totals: dict[str, Any] | None = None,
    **options: Any,
) -> Figures:
    """Figures of documents of these lengths, truncated to max_len; `totals` and `options` change what follows."""
    lengths = np.asarray(lengths)
    kept = np.minimum(lengths, max_len)
    histogram = np.bincount(kept, minlength=max_len + 1).astype(np.int64)
    empty, histogram[0] = int(histogram[0]), 0
    counted: dict[str, Any] = {
        "documents": len(lengths),
        "documents_split": 0,
        "documents_truncated": int((lengths > max_len).sum()),
        "documents_dropped": {"empty": empty, "too_long": 0},
        "tokens": int(lengths.sum()),
        "tokens_packed": int(kept.sum()),
        "tokens_truncated": int((lengths - kept).sum()),
        "tokens_dropped": {"too_long": 0},
        "segments": int(histogram.sum()),
        "rows": rows,
        "lower_bound": lower_bound,
    } | (totals or {})
    return Figures(
        options=PackOptions(max_len=max_len, algorithm=algorithm, **options),
        totals=PlanTotals(**counted, efficiency=counted["tokens_packed"] / (rows * max_len)),
        histogram=histogram,
        documents_per_step=documents_per_step,
        document_lengths=tally(lengths),
        measured_rows=row_figures,
    )
