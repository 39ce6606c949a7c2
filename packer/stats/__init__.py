"""Padding, efficiency and steps per epoch, before and after packing: numbers from numbers, nothing read or drawn.

- `distribution`: quantiles and bins of document lengths, or of segments per row
- `padding`: padding ratios of every way to batch segments, from a histogram of their lengths
- `dataset`: `dataset_stats`, for a dataset that is to be packed
- `packed`: `packed_stats`, for one that is
- `mixing`: how mixed rows are, and how evenly they share the work of attention
- `rows` and `comparison`: what algorithms make of the same documents, side by side; not imported here, for Numba is
"""

from packer.stats.dataset import DatasetStats, Epoch, dataset_stats
from packer.stats.distribution import Distribution, distribution
from packer.stats.mixing import Mixing
from packer.stats.packed import PackedStats, RowArrays, packed_stats
from packer.stats.padding import BATCH_SIZES, Padding, padding_ratios

__all__ = [
    "BATCH_SIZES",
    "DatasetStats",
    "Distribution",
    "Epoch",
    "Mixing",
    "PackedStats",
    "Padding",
    "RowArrays",
    "dataset_stats",
    "distribution",
    "packed_stats",
    "padding_ratios",
]
