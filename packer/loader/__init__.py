"""Load packed datasets for training: rows by number, and batches in which documents do not attend to each other.

    dataset.py        rows by number
    open_dataset.py   how a dataset is opened: on a disk, in object storage, or an index with its source
    open_shards.py    shards while they are mapped: columns of record batches as arrays
    cache/            shards of object storage, on the disk of the node
    index/            tokens of an index, from its source
    row_segments.py   positions, labels and loss weights from segment boundaries
    batch_input.py    rows and raw examples -> checked arrays
    batch_shape.py    fixed batch shapes for torch.compile
    draws.py          counter-based random bits
    masking.py        options of masked language modeling
    token_masks.py    random masking of tokens
    batch_options.py  options of a batch format
    encoders.py       batches for bidirectional encoders
    batch_formats.py  rows -> the batch of each trainer
    sampling/         orders of the rows, and the batches of each rank
    epoch_list.py     a batch that knows its epoch
    padding_row.py    a row of padding, for empty batches
    document_rows.py  documents of each row, for trainers that make their own examples
    collating.py      collate, flatten and batches, which a training loop calls
    loss.py           losses as means over tokens, sequences or documents
    schedule.py       effect of packing on batch size, steps and betas

Requires NumPy and pyarrow; torch only to return tensors, obstore and xxhash only for object storage.
"""

from packer.labels import NO_LOSS
from packer.loader.batch_shape import StaticShape, static_shape
from packer.loader.collating import batches, collate, flatten
from packer.loader.dataset import PackedDataset, load
from packer.loader.document_rows import DocumentRows, rows
from packer.loader.loss import causal_lm_loss, masked_lm_loss, num_items_in_batch
from packer.loader.masking import MaskedLM, masked_lm
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
