"""The commands as functions, without click or printing: from a source to a plan, to shards, and back to the source.

- `packing`: packs a source; `tokenizing`: tokenizes text and stops there; `name_output`: where they write by default
- `appending`: packs more documents onto a packed dataset (`growing_dataset`, `known_documents`)
- `open_inputs`, `read_documents`: open a source or a mixture, and read it as one sequence of documents
- `segment_reader`: cuts any range of documents into segments, chats at `turns`, and without `untrained` ones
- `make_plan`: plans the rows in one of three ways
    - `partitioning`: partitions pack their own documents (`partition_rows`), regions pack leftovers (`leftover_rows`)
    - `order_plan`: rows follow the order of the source
    - `group_plan`: groups of documents are kept together or apart; `limit_plan`: rows have limits besides tokens
- `index_shards`: takes the rows of an index instead (`materializing`); `packed_source` opens what was packed again
- `shard_maker`, `write_shards`: make and write the shards of a plan; `leftover_values`: values that travel to the pool
- `complete_pack`, `complete_output`: whether an output that is there already is what is asked for, and intact
- `watch_source`, `disk_space`: source files must not change, rows must fit
- `statistics`, `comparing`, `measure_row_lengths`: plan without tokens, from lengths that `measure_source` reads
- `collect_figures`, `sample_rows`: collect everything that a report shows
- `verifying`: compares rows with their source (`against_source`) and counts the totals again (`recounting`)

Importing this package imports none of them.
"""

from typing import TYPE_CHECKING

from packer.names_on_use import names_on_use

if TYPE_CHECKING:
    from packer.pipeline.appending import AppendResult, append
    from packer.pipeline.collect_figures import dataset_figures, packed_figures
    from packer.pipeline.comparing import compare
    from packer.pipeline.materializing import materialize
    from packer.pipeline.measure_row_lengths import row_length_statistics
    from packer.pipeline.packing import PackResult, pack
    from packer.pipeline.statistics import dataset_statistics, mixing_sample, packed_statistics
    from packer.pipeline.tokenizing import TokenizeResult, tokenize
    from packer.pipeline.verifying import verify

__all__ = [
    "AppendResult",
    "PackResult",
    "TokenizeResult",
    "append",
    "compare",
    "dataset_figures",
    "dataset_statistics",
    "materialize",
    "mixing_sample",
    "pack",
    "packed_figures",
    "packed_statistics",
    "row_length_statistics",
    "tokenize",
    "verify",
]

__getattr__ = names_on_use(
    __name__,
    {
        "appending": ("AppendResult", "append"),
        "collect_figures": ("dataset_figures", "packed_figures"),
        "comparing": ("compare",),
        "materializing": ("materialize",),
        "measure_row_lengths": ("row_length_statistics",),
        "packing": ("PackResult", "pack"),
        "statistics": ("dataset_statistics", "mixing_sample", "packed_statistics"),
        "tokenizing": ("TokenizeResult", "tokenize"),
        "verifying": ("verify",),
    },
)
