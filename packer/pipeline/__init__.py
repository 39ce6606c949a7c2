"""The way of the data: source, lengths, histogram, patterns, plan, shards. No click, no printing.

`pack.py` is the whole way, `planning.py` and `writing.py` are two stretches of it; `statistics.py` is the way without
tokens, `comparing.py` that way with every algorithm, `verifying.py` the way back.
"""

from packer.pipeline.comparing import compare
from packer.pipeline.pack import PackResult, pack
from packer.pipeline.statistics import dataset_statistics, packed_statistics
from packer.pipeline.verifying import verify

__all__ = ["PackResult", "compare", "dataset_statistics", "pack", "packed_statistics", "verify"]
