"""Figures of datasets before and after packing: padding, efficiency, mixing, steps per epoch. No input or output.

- `distribution`: quantiles and bins of document lengths, or of segments per row
- `padding`: padding ratios of batching strategies, from a histogram of lengths
- `dataset_figures`: figures of a dataset before packing
- `packed_figures`: figures of a packed dataset
- `row_mixing`: how mixed rows are, and how evenly attention is divided among them
- `row_limits`: use of limited columns (`--limit`)
- `row_lengths`: figures of the same documents in rows of several lengths, to choose max_len by
- `report_figures`: everything that a report in HTML shows
- `model_work`: work of a 7B model on rows, and the share of attention in it
- `row_figures` and `algorithm_comparison`: figures of each algorithm's rows

Importing this package imports none of them.
"""

from typing import TYPE_CHECKING

from packer.names_on_use import names_on_use

if TYPE_CHECKING:
    from packer.stats.dataset_figures import DatasetStats, Epoch, dataset_stats
    from packer.stats.distribution import Distribution
    from packer.stats.model_work import RowWork
    from packer.stats.packed_figures import PackedStats, RowArrays, packed_stats
    from packer.stats.padding import BATCH_SIZES, Padding, padding_ratios
    from packer.stats.report_figures import ReportFigures, ShownRow
    from packer.stats.row_lengths import RowLength, RowLengths, row_length
    from packer.stats.row_mixing import Mixing, RowMixing

__all__ = [
    "BATCH_SIZES",
    "DatasetStats",
    "Distribution",
    "Epoch",
    "Mixing",
    "PackedStats",
    "Padding",
    "ReportFigures",
    "RowArrays",
    "RowLength",
    "RowLengths",
    "RowMixing",
    "RowWork",
    "ShownRow",
    "dataset_stats",
    "packed_stats",
    "padding_ratios",
    "row_length",
]

__getattr__ = names_on_use(
    __name__,
    {
        "dataset_figures": (
            "DatasetStats",
            "Epoch",
            "dataset_stats",
        ),
        "distribution": ("Distribution",),
        "model_work": ("RowWork",),
        "packed_figures": (
            "PackedStats",
            "RowArrays",
            "packed_stats",
        ),
        "padding": (
            "BATCH_SIZES",
            "Padding",
            "padding_ratios",
        ),
        "report_figures": (
            "ReportFigures",
            "ShownRow",
        ),
        "row_lengths": (
            "RowLength",
            "RowLengths",
            "row_length",
        ),
        "row_mixing": (
            "Mixing",
            "RowMixing",
        ),
    },
)
