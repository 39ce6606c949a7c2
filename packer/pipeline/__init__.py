"""Commands as functions: from a source to a plan, from a plan to shards, and back. No click, no printing.

- `packing`: the whole way from a source to a packed dataset; `tokenizing` ends where text has become tokens
- `open_inputs`, `read_documents`: a source or a mixture, opened and read as one sequence of documents
- `segment_reader`: segments of any part of it; `turns`, `untrained`: where chats are split, and segments left out
- `plans`: which of three ways a plan is made
    - `partitioning`: partitions make their own rows (`partition_rows`), regions those of what is left (`leftover_rows`)
    - `order_plan`: rows in the order of the source
    - `group_plan`: rows with groups of documents
- `shard_maker`: a plan to shards; `watching`, `disk_space`: whether files stay as they were, and have room
- `statistics`, `comparing`, `measure_row_lengths`: plans without tokens, from the lengths that `measure_source` reads
- `collect_figures`, `sample_rows`: everything that a report shows
- `verifying`: rows compared with their source (`against_source`), figures counted again (`recounting`)
"""

from packer.pipeline.collect_figures import dataset_figures, packed_figures
from packer.pipeline.comparing import compare
from packer.pipeline.measure_row_lengths import row_length_statistics
from packer.pipeline.packing import PackResult, pack
from packer.pipeline.statistics import dataset_statistics, packed_statistics
from packer.pipeline.tokenizing import TokenizeResult, tokenize
from packer.pipeline.verifying import verify

__all__ = [
    "PackResult",
    "TokenizeResult",
    "compare",
    "dataset_figures",
    "dataset_statistics",
    "pack",
    "packed_figures",
    "packed_statistics",
    "row_length_statistics",
    "tokenize",
    "verify",
]
