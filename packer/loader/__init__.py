"""Load packed datasets for training: rows by number, and batches in which documents do not attend to each other.

    dataset.py        rows by number
    open_dataset.py   how a dataset is opened: on a disk, in object storage, or an index with its source
    open_shards.py    shards while they are mapped: columns of record batches as arrays
    padding_row.py    a row of padding, for empty batches
    notebook_view.py  what notebooks show of a dataset
    cache/            shards of object storage, on the disk of the node
    index/            tokens of an index, from its source
    sampling/         orders of the rows, and the batches of each rank
    batching/         rows -> the batch of a trainer: collate, flatten and batches
    document_rows.py  documents of each row, for trainers that make their own examples
    loss.py           losses as means over tokens, sequences or documents
    schedule.py       effect of packing on batch size, steps and betas

Several of these use:

    row_segments.py   positions, labels and loss weights from segment boundaries
    epoch_list.py     a batch that knows its epoch
    draws.py          counter-based random bits

Requires NumPy and pyarrow; torch only to return tensors, obstore and xxhash only for object storage.
"""

from typing import TYPE_CHECKING

from packer.labels import NO_LOSS
from packer.names_on_use import names_on_use

if TYPE_CHECKING:
    from packer.loader.batching.batch_shape import StaticShape, static_shape
    from packer.loader.batching.collating import batches, collate, flatten
    from packer.loader.batching.masking_options import MaskedLM, masked_lm
    from packer.loader.dataset import PackedDataset, load
    from packer.loader.document_rows import DocumentRows, rows
    from packer.loader.loss import causal_lm_loss, masked_lm_loss, num_items_in_batch
    from packer.loader.sampling.attention_balance import Imbalance
    from packer.loader.sampling.batch_sampler import BatchSampler
    from packer.loader.schedule import PackedSchedule, packed_schedule

__all__ = [
    "NO_LOSS",
    "BatchSampler",
    "DocumentRows",
    "Imbalance",
    "MaskedLM",
    "PackedDataset",
    "PackedSchedule",
    "StaticShape",
    "batches",
    "causal_lm_loss",
    "collate",
    "flatten",
    "load",
    "masked_lm",
    "masked_lm_loss",
    "num_items_in_batch",
    "packed_schedule",
    "rows",
    "static_shape",
]

__getattr__ = names_on_use(
    __name__,
    {
        "batching.batch_shape": ("StaticShape", "static_shape"),
        "batching.collating": ("batches", "collate", "flatten"),
        "batching.masking_options": ("MaskedLM", "masked_lm"),
        "dataset": ("PackedDataset", "load"),
        "document_rows": ("DocumentRows", "rows"),
        "loss": ("causal_lm_loss", "masked_lm_loss", "num_items_in_batch"),
        "sampling.attention_balance": ("Imbalance",),
        "sampling.batch_sampler": ("BatchSampler",),
        "schedule": ("PackedSchedule", "packed_schedule"),
    },
)
