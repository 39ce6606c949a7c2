"""The way of the data: source, lengths, histogram, patterns, plan, shards. No click, no printing.

`pack.py` is the whole way, `open_inputs.py`, `planning.py` and `writing.py` are stretches of it, `read_documents.py`
makes one sequence of documents of a source or a mixture; `measure_source.py` reads lengths alone, `statistics.py` is
the way without tokens, `comparing.py` that way with every algorithm, `verifying.py` the way back, on which
`packed_segments.py` reads the rows (`segment_buckets.py`: in bounded memory) and `against_source.py` compares them
(`segment_differences.py`: what differs first); `recounting.py` counts the figures of the manifest again.
`tokenizing.py` stops where text has become tokens.
"""

from packer.pipeline.comparing import compare
from packer.pipeline.pack import PackResult, pack
from packer.pipeline.statistics import dataset_statistics, packed_statistics
from packer.pipeline.tokenizing import TokenizeResult, tokenize
from packer.pipeline.verifying import verify

__all__ = [
    "PackResult",
    "TokenizeResult",
    "compare",
    "dataset_statistics",
    "pack",
    "packed_statistics",
    "tokenize",
    "verify",
]
