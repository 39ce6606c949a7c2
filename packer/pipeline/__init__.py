"""The commands as functions, without click or printing: from a source to a plan, to shards, and back to the source.

- `packing`: packs a source; `tokenizing`: tokenizes text and stops there; `name_output`: where they write by default
- `appending`: adds documents to a packed dataset (`growing_dataset`, `known_documents`)
- `open_inputs`, `read_documents`: open a source or a mixture, and read it as one sequence of documents
- `segments/`: documents cut into segments
- `planning/`: plans the rows; `partitions/`: plans of histogram algorithms
- `shard_maker`, `write_shards`: make and write the shards of a plan
- `materializing`: writes the rows of an index with their tokens; `packed_source`: opens the source of a packed dataset
- `complete_pack`, `complete_output`: check whether an existing output is intact and is what was requested
- `watch_source`, `disk_space`: check that source files do not change, and that rows fit
- `statistics`, `comparing`, `measure_row_lengths`: plan without tokens, from lengths that `measure_source` reads
- `collect_figures`, `sample_rows`: collect everything that a report shows
- `verifying`: checks a packed dataset; `verification/`: compares it with its source

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
