"""Read a packed dataset into training: rows by number, and batches in which no document sees another.

    dataset.py    rows by number, memory-mapped
    inputs.py     rows and raw examples, as checked arrays
    segments.py   positions, labels and weights from boundaries
    formats.py    rows -> the batch that a trainer reads
    encoders.py   the same for models that see both ways
    masking.py    which tokens a masked language model restores
    static.py     batches of one shape, for torch.compile
    collating.py  collate, flatten, batches: what a training loop calls
    draws.py      random bits from a counter
    order.py      the order of rows, and how ranks share a global batch
    sampler.py    the same with a state: ranks, workers, epochs, resume
    loss.py       the mean over tokens, sequences or documents, over all ranks
    schedule.py   what packing does to batch size, steps and momentum

Needs numpy and pyarrow; torch where tensors are asked for.
"""

from packer.loader.collating import batches, collate, flatten
from packer.loader.dataset import NO_LOSS, PackedDataset, load
from packer.loader.loss import causal_lm_loss, masked_lm_loss, num_items_in_batch
from packer.loader.masking import MaskedLM, masked_lm
from packer.loader.sampler import BatchSampler, Imbalance
from packer.loader.schedule import PackedSchedule, packed_schedule
from packer.loader.static import StaticShape, static_shape

__all__ = [
    "NO_LOSS",
    "BatchSampler",
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
    "static_shape",
]
